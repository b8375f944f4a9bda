"""The walk: one function, taken through every stage of the compiler, and the stages joined.

    w = oplab.walk(f, *args)
    w.script  w.jaxpr  w.stablehlo  w.hlo      one trace, one lowering, one compile
    w.passes  w.kernels  w.fates  w.links      one compile more, with dumps (none if these come first)
    w.execute(); w.execution                   runs the function

Nothing is computed before it is asked for. The function is traced once and its jaxpr tagged (see
`provenance`); what is lowered, compiled and run is the tagged program: the same one, byte for byte, but for
the names of its parts.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import pandas as pd

from . import _jax, cost, fates, join, provenance
from .attribution import attribute
from .display import progress
from .document import Documented, from_walk
from .ran import table as implementations
from .stages import buffers, emitter, execution, hlo, jaxpr, kernels, pass_lines, passes, script, stablehlo
from .stages.stage import Stage
from .tracing import WalkError, jitted, kind, on, plain_errors, readable_name, trace

_jax.hide_frames(__file__)  # whoever asked for a stage is the lab, not the experiment


def walk(
    f: Callable,
    *args: Any,
    target: str = "cpu",
    static_argnums: Any = (),
    static_argnames: Any = (),
    donate_argnums: Any = (),
    donate_argnames: Any = (),
    options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Walk:
    """Walk `f(*args, **kwargs)` from its lines to its kernels.

    f: whatever `jax.jit` takes, or a function that is jitted already. args, kwargs: arrays, or
    `jax.ShapeDtypeStruct`s, in any pytree; they are what `execute` runs it on. (A keyword of f's own called
    `target` or `options` goes in by `functools.partial`.)
    static_argnums, static_argnames, donate_argnums, donate_argnames: as for `jax.jit`.
    target: "cpu", the hardware to compile for. options: XLA compile options, such as those that
    `w.kernels.table.switch` names.

    Raises WalkError, in one sentence, for what cannot be traced; nothing is lowered or compiled before a
    stage is asked for.
    """
    if not callable(f):
        raise WalkError(
            f"oplab.walk expects a function and example arguments, got {kind(f)}: write oplab.walk(f, x), "
            "not oplab.walk(f(x))."
        )
    if target not in ("cpu", jax.default_backend()):
        raise WalkError(
            f"oplab.walk expects the target to be 'cpu', got {target!r}: no other is known here yet."
        )
    if options is not None and not isinstance(options, dict):
        raise WalkError(f"oplab.walk expects options as a dict of XLA compile options, got {kind(options)}.")
    jit_options = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
    }
    given = {key: value for key, value in jit_options.items() if value not in ((), None, [])}
    name = readable_name(f)
    with on(target):
        traced = trace(jitted(f, given), name, args, kwargs)
    return Walk(f, name, traced, args, kwargs, target, dict(options or {}))


class Walk(Documented):
    """One function's way through the compiler, from `oplab.walk`. Stages are computed when asked for."""

    def __init__(
        self,
        f: Callable,
        name: str,
        traced: Any,
        args: tuple,
        kwargs: dict,
        target: str,
        options: dict[str, Any],
    ) -> None:
        self.function, self.name, self.target, self.options = f, name, target, options
        self.traced = traced
        self._args, self._kwargs = args, kwargs
        self._lock = threading.RLock()
        self._dumped: tuple[Any, passes.Dump, str] | None = None
        self._measured: tuple[list[float], pd.DataFrame, str] | None = None
        self._peaks: dict[str, Any] | None = None  # of a machine, once someone asked for a roofline

    # The certain stages: the same on every run --------------------------------------------------------------

    @cached_property
    def script(self) -> Stage:
        """The lines of Python that were reached."""
        return script.stage(self._locations)

    @cached_property
    def jaxpr(self) -> Stage:
        """What tracing kept: one row per equation, nested ones too."""
        return jaxpr.stage(self.traced.jaxpr, self._tagged, self._locations, self._counted)

    @cached_property
    def stablehlo(self) -> Stage:
        """What JAX hands to the compiler."""
        return stablehlo.stage(_jax.stablehlo_text(self.lowered), self._tagged)

    @cached_property
    def passes(self) -> Stage:
        """What each pass of XLA changed."""
        _, dump, problem = self._dump
        return passes.stage(dump, problem)

    @cached_property
    def hlo(self) -> Stage:
        """The optimised program: one row per instruction, those inside fusions too."""
        return hlo.stage(self._module, self._owners)

    @cached_property
    def kernels(self) -> Stage:
        """What runs as one unit: compiled code, or a library's name with the reason."""
        _, dump, problem = self._dump
        return kernels.stage(self._kernels, self._owners, dump, problem)

    # What joins them ----------------------------------------------------------------------------------------

    @cached_property
    def fates(self) -> pd.DataFrame:
        """What became of every equation: equation, primitive, line, fate, by_pass, into."""
        dump = self._dump[1]  # first of all: this compile then serves every stage
        kinds = {k.instruction.name: k.kind for k in self._kernels}
        emitted = {e for equations in self.stablehlo.table["equations"] for e in equations}
        lines = {e: where[0].line if where[0] else None for e, where in self._locations.items()}
        return fates.ledger(self._tagged, self._module, self._owners, kinds, dump, lines, emitted)

    @cached_property
    def links(self) -> pd.DataFrame:
        """Which line belongs to which, stage by stage: from_stage, from_id, to_stage, to_id, how."""
        fates = self.fates
        return join.links(
            self.script.table,
            self.jaxpr.table,
            self.stablehlo.table,
            self.hlo.table,
            self.kernels.table,
            fates,
        )

    @cached_property
    def buffers(self) -> pd.DataFrame:
        """Which bytes are kept from which step to which, as the compiler planned it: see `stages.buffers`."""
        dump = self._dump[1]
        return buffers.table(dump.buffers, dump.live_ranges)

    @cached_property
    def pass_lines(self) -> pd.DataFrame:
        """Which equations each line of `passes.text` belongs to: text_line, equations."""
        return pass_lines.table(self._dump[1], self._tagged)

    def summary(self) -> pd.DataFrame:
        """One row per kernel: its equations and lines, what it costs, and, once executed, what was measured.

        flops, bytes: of one call of the function, loops included. Each equation's FLOPs stand with one kernel
            only; bytes are what the kernel's operands and result hold.
        runs, median_us, spread_us: how often it was started in all, and the median and interquartile range,
            over the runs, of the time it was busy. share: of all kernels' median times.
        """
        measured = self._measured[1] if self._measured else None
        return join.summary(self.kernels.table, self.jaxpr.table, self._module, self.fates, measured)

    def roofline(self, peaks: Any = None, dtype: str = "float32") -> pd.DataFrame:
        """What each kernel reaches and could reach, as `oplab.roofline(w, peaks, dtype)`; the page then draws
        these peaks too. Without `peaks` this machine's are measured, which takes some seconds.
        """
        from .roofline import roofline

        table = roofline(self, peaks, dtype)
        self._peaks = table.attrs["peaks"]
        return table

    def ran(self) -> pd.DataFrame:
        """Which implementation each operator of `oplab.ops` was lowered to; the columns are `oplab.ran`'s."""
        text = _jax.stablehlo_text(self.lowered)
        return implementations(text, self.stablehlo, self._tagged, self.target, self._locations)

    def census(self) -> pd.DataFrame:
        """How many of each operator: equations as written, and runs (loop bodies times their trip count)."""
        return join.census(self.jaxpr.table, {e.id for e in self._tagged.equations.values() if e.children})

    def code(self, instruction: str) -> dict[str, str]:
        """A kernel's code by form: "mlir" (where an emitter began with it), "llvm" (optimised), "asm".

        Empty for a library's kernel: `w.kernels.table` says whose it is, why, and what makes XLA write it.
        """
        found = next((k for k in self._kernels if k.instruction.name == instruction), None)
        if found is None:
            known = ", ".join(k.instruction.name for k in self._kernels[:8])
            raise WalkError(
                f"oplab expects the name of a kernel, got {instruction!r}: this program has {known}."
            )
        code = kernels.code(found, self._dump[1])
        if found.code in self._dump[1].emitted and found.code in self.emitter_mlir:
            code = {"mlir": self.emitter_mlir[found.code], **code}
        return code

    @cached_property
    def emitter_mlir(self) -> dict[str, str]:
        """Kernel -> the MLIR that its emitter began with, read by a child process (see `stages.emitter`)."""
        return emitter.read_mlir(self.lowered, self.options)

    # Running it ---------------------------------------------------------------------------------------------

    def execute(self, repeats: int = 20) -> Walk:
        """Run the function `repeats` times (and once to warm up) under the profiler; returns the walk itself.

        Its callbacks and prints run as often. Donated arguments are copied for each run, untimed.
        """
        if not isinstance(repeats, int) or repeats < 1:
            raise WalkError(f"execute expects a number of runs of at least 1, got {repeats!r}.")
        args, kwargs = self._dynamic_arguments()
        shapes = [a for a in jax.tree.leaves((args, kwargs)) if isinstance(a, jax.ShapeDtypeStruct)]
        if shapes:
            raise WalkError(
                f"execute needs arrays to run on, and this walk was given a shape "
                f"({shapes[0].dtype}{list(shapes[0].shape)}): walk the function with arrays."
            )
        compiled = self.compiled
        donated = any(
            info.donated
            for info in jax.tree.leaves(self.traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))
        )

        def prepare() -> tuple:
            return jax.block_until_ready(jax.tree.map(_copied, (args, kwargs))) if donated else (args, kwargs)

        names = {i.name for i in self._module.instructions.values()}
        with self._lock:
            self._measured = execution.measure(
                compiled, prepare, repeats, names, functools.partial(progress, desc="execute")
            )
        return self

    @property
    def execution(self) -> Stage:
        """What ran, thunk by thunk, in the last `execute`: measured, never compared as text."""
        if self._measured is None:
            raise WalkError("This walk has not been run: call w.execute() first.")
        return execution.stage(*self._measured)

    @property
    def wall_us(self) -> list[float]:
        """The wall time of each run of the last `execute`."""
        if self._measured is None:
            raise WalkError("This walk has not been run: call w.execute() first.")
        return self._measured[0]

    # Showing and keeping it ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The whole walk as one JSON document, see `oplab/walk.schema.json`."""
        return from_walk(self)

    def __repr__(self) -> str:
        equations = len(self._tagged.equations)
        return f"<walk of {self.name} for {self.target}: {equations} equation{'s' * (equations != 1)}>"

    # What the stages are made from --------------------------------------------------------------------------

    @cached_property
    def _tagged(self) -> provenance.Tagged:
        return provenance.tag(self.traced.jaxpr)

    @cached_property
    def _counted(self) -> dict[str, cost.Counted]:
        return {c.id: c for c in cost.equations(self.traced.jaxpr)}

    @cached_property
    def _locations(self) -> dict[str, tuple[script.Location | None, script.Location | None]]:
        return script.locate(self._tagged.equations.values(), script.definition(self.function))

    @cached_property
    def lowered(self) -> Any:
        """The tagged program, lowered (`jax.stages.Lowered`)."""
        with self._lock, on(self.target), plain_errors(self.name, "lowered"):
            return _jax.with_jaxpr(self.traced, self._tagged.jaxpr).lower()

    @cached_property
    def compiled(self) -> Any:
        """The tagged program, compiled (`jax.stages.Compiled`)."""
        with self._lock, plain_errors(self.name, "compiled"):
            if self._dumped is not None:
                return self._dumped[0]
            with _jax.no_persistent_cache():
                return self.lowered.compile(compiler_options=self.options or None)

    @property
    def _dump(self) -> tuple[Any, passes.Dump, str]:
        with self._lock, plain_errors(self.name, "compiled"):
            if self._dumped is None:
                self._dumped = passes.compile_with_dumps(self.lowered, self.options)
            return self._dumped

    @cached_property
    def _module(self) -> hlo.Module:
        return hlo.parse(self.compiled.as_text())

    @cached_property
    def _owners(self) -> dict[str, tuple[tuple[str, ...], str, str]]:
        return attribute(self._module, self._tagged)

    @cached_property
    def _kernels(self) -> list[kernels.Kernel]:
        _, dump, problem = self._dump
        return kernels.kernels(self._module, dump, problem)

    def _dynamic_arguments(self) -> tuple[tuple, dict]:
        """The arguments without the static ones, which are compiled in."""
        wanted_args, wanted_kwargs = self.traced.args_info
        kwargs = {key: value for key, value in self._kwargs.items() if key in wanted_kwargs}
        if len(wanted_args) == len(self._args):
            return self._args, kwargs
        args, todo = [], list(wanted_args)
        for value in self._args:
            if todo and jax.tree.structure(value) == jax.tree.structure(todo[0]) and _fits(value, todo[0]):
                args.append(value)
                todo.pop(0)
        return tuple(args), kwargs


def _fits(value: Any, info: Any) -> bool:
    """Could these leaves be the ones that were traced? (A static 3 and an array have the same structure.)"""
    return all(
        jax.numpy.shape(v) == i.shape and jax.dtypes.result_type(v) == i.dtype
        for v, i in zip(jax.tree.leaves(value), jax.tree.leaves(info), strict=True)
        if hasattr(v, "dtype") or isinstance(v, (int, float))
    )


def _copied(leaf: Any) -> Any:
    return jax.numpy.copy(leaf) if isinstance(leaf, jax.Array) else leaf
