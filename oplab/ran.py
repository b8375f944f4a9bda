"""What ran: which implementation each call of a lab operator was really lowered to.

`implementation=None` leaves the choice to the operator, and an operator may be called anywhere: in a scan,
in somebody's layer, in a gradient. Every op that an operator's lowering writes is named after the
implementation that wrote it, "jit(f)/pallas/softmax/exp", and the walk's tags lead from the op to the
equation. So nothing is asked of the operator: the answer is read from the program that the compiler gets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pandas as pd

from . import _jax, provenance
from .lowerable import INTERPRET, calls, platforms
from .ops.operator import IMPLEMENTATIONS, MAP
from .stages import script, stablehlo
from .stages.stage import Stage, frame
from .tracing import jitted, kind, plain_errors, readable_name, trace

_jax.hide_frames(__file__)

COLUMNS = ["equation", "operator", "asked", "ran", "platform", "interpreted", "file", "line", "note"]
_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"')


def ran(f: Callable | Any, *args: Any, platform: str | None = None, **kwargs: Any) -> pd.DataFrame:
    """One row for each equation of f that is an operator of the lab's.

    f, args, kwargs: as for `oplab.walk`, or a walk, alone.
    platform: "cpu", "cuda", "rocm", "tpu", or None for the one that the function would run on here. It is
        lowered for it, not compiled and not run.

    equation, operator, file, line: as in `w.jaxpr.table`. asked: the `implementation` given, or None.
    ran: what it was lowered to; None where nothing was written, and `note` says so. interpreted: a Pallas
    kernel that Pallas' interpreter runs step by step, rather than a compiled one.

    Raises WalkError, with the sentence, where f cannot be traced or lowered.
    """
    if platform is not None:
        (platform,) = platforms("ran", platform)
        if platform == INTERPRET:
            raise ValueError("ran expects the platform of a machine, got 'interpret': on the cpu, the column "
                             "`interpreted` says which kernels are interpreted.")
    if hasattr(f, "ran") and not args and not kwargs:
        if platform in (None, f.target):
            return f.ran()  # it is lowered already
        name, traced, function = f.name, f.traced, f.function
    elif callable(f):
        name, function = readable_name(f), f
        traced = trace(jitted(f, {}), name, args, kwargs)
    else:
        raise TypeError(f"ran expects a function and example arguments, or a walk, got {kind(f)}.")
    tagged = provenance.tag(traced.jaxpr)
    program = _jax.with_jaxpr(traced, tagged.jaxpr)
    with plain_errors(name, "lowered"):
        lowered = program.lower(lowering_platforms=(platform,)) if platform else program.lower()
        text = _jax.stablehlo_text(lowered)
    locations = script.locate(tagged.equations.values(), script.definition(function))
    return table(text, stablehlo.stage(text, tagged), tagged, platform or _here(), locations)


def table(
    text: str, stage: Stage, tagged: provenance.Tagged, platform: str, locations: dict[str, Any]
) -> pd.DataFrame:
    """The table of `ran`, of a tagged program that was lowered for `platform`: its text with locations, its
    StableHLO stage, and the line of each equation.
    """
    ours = [e for e in tagged.equations.values() if e.primitive in MAP and "implementation" in e.eqn.params]
    written, compiled = _written(text, tagged), _kernels(stage)
    rows = []
    for e in ours:
        name, where = written.get(e.id), locations[e.id][0]
        note = "" if name else "nothing was written: its result is not used, or is empty"
        interpreted = name == "pallas" and e.id not in compiled
        rows.append((e.id, e.primitive, e.eqn.params["implementation"], name, platform, interpreted,
                     where and where.file, where and where.line, note))  # fmt: skip
    return frame(rows, COLUMNS)


def _written(text: str, tagged: provenance.Tagged) -> dict[str, str]:
    """Equation -> the implementation in the names of its ops."""
    found: dict[str, str] = {}
    for name in _LOCATION.findall(text):
        tags = [match for match in provenance.TAG.finditer(name) if match[1] in tagged.by_tag]
        if not tags:
            continue
        scopes = name[tags[-1].end() :].split("/")
        for e in tagged.ending(tuple(match[1] for match in tags)):
            for scope, after in zip(scopes, scopes[1:]):
                if after == e.primitive and scope in IMPLEMENTATIONS:
                    found.setdefault(e.id, scope)
    return found


def _kernels(stage: Stage) -> set[str]:
    """The equations that call code by name: a kernel that was compiled is such code."""
    lines = stage.text.split("\n")
    ops = stage.table[stage.table["name"] == "stablehlo.custom_call"]
    return {e for op in ops.itertuples() if calls(lines[op.text_line - 1]) for e in op.equations}


def _here() -> str:
    """The platform of this process, named as lowering rules are: JAX calls both kinds of GPU "gpu"."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    return "rocm" if "rocm" in jax.devices()[0].client.platform_version.lower() else "cuda"
