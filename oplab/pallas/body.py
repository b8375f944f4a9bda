"""What a kernel's body does with its Refs: which it reads and writes, in which order, and at which steps.

Reading the body once is enough: its equations are the same at every step, but for conditions. A condition on
`pl.program_id`, such as `@pl.when(pl.program_id(2) == 0)`, is integer arithmetic, computed for all steps at
once. Under any other condition, and in a loop that may not run, an access is possible but not certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _jax
from .kernel import Kernel
from .known import body_of_call, on_cpu

# What a value is made from: an argument of the kernel, by position; ("program", axis); or ELSEWHERE.
Source = int | tuple[str, int] | str
ELSEWHERE: Source = "elsewhere"

# Operators that hand a value on, and those that join one with another: `o_ref[...] += x` is get, add, swap.
PASS = {"convert_element_type", "reshape", "broadcast_in_dim", "squeeze", "transpose", "copy"}
JOIN = {"add", "add_any", "sub", "mul", "max", "min"}


class Access(NamedTuple):
    """One access of the body to a Ref.

    ref: the argument of the kernel, by position.
    kind: "read"; "write" (what was there is lost); "add" (what was there is read, joined with something else
        and written again: an accumulation); "other" (a copy, an atomic operation, or anything not known).
    certain, possible: at which steps it happens for sure, and at which it may: (steps,) each.
    whole: does it cover the whole block?
    sources: what the value written is made from.
    """

    ref: int
    kind: str
    certain: np.ndarray
    possible: np.ndarray
    whole: bool = False
    sources: frozenset[Source] = frozenset()


def accesses(kernel: Kernel, places: np.ndarray) -> list[Access]:
    """Every access of a kernel's body to its Refs, in program order; `places`: (steps, axes of the grid)."""
    body = kernel.eqn.params["jaxpr"]
    refs = {var: i for i, var in enumerate(_jax.open_jaxpr(body).invars)}
    always = np.ones(len(places), bool)
    reader = _Reader(kernel, places)
    with on_cpu():
        reader.read(body, Scope(refs, {}, {}), always, always)
    return reader.found


class Scope(NamedTuple):
    """What is known of the variables of one jaxpr."""

    refs: Mapping[
        Any, int | None
    ]  # Ref -> the kernel's argument, by position; None for the body's own memory
    known: dict[Any, np.ndarray]  # scalar integer -> its value at every step
    sources: dict[Any, frozenset[Source]]

    def of(self, atoms: Sequence[Any]) -> frozenset[Source]:
        """What some values are made from, the Refs among them included."""
        variables = [atom for atom in atoms if not hasattr(atom, "val")]
        own = {self.refs[v] if self.refs[v] is not None else ELSEWHERE for v in variables if v in self.refs}
        return frozenset(own).union(*(self.sources.get(v, ()) for v in variables))

    def value(self, atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else self.known.get(atom)


class _Reader:
    """Walks the jaxprs of a body and remembers the accesses it meets."""

    def __init__(self, kernel: Kernel, places: np.ndarray):
        self.places, self.grid, self.axes = places, kernel.grid, kernel.own_axes
        self.found: list[Access] = []

    def read(self, jaxpr: Any, scope: Scope, certain: np.ndarray, possible: np.ndarray) -> None:
        inner = _jax.open_jaxpr(jaxpr)
        uses = Counter(atom for eqn in inner.eqns for atom in eqn.invars if not hasattr(atom, "val"))
        uses.update(atom for atom in inner.outvars if not hasattr(atom, "val"))
        adding, absorbed = _accumulations(inner, uses)
        for eqn in inner.eqns:
            name = eqn.primitive.name
            refs = [v for v in eqn.invars if not hasattr(v, "val") and v in scope.refs]
            if name in ("program_id", "num_programs"):
                self._grid(eqn, scope)
            elif name in ("get", "masked_load"):
                scope.sources[eqn.outvars[0]] = scope.of(eqn.invars)
                if eqn.outvars[0] not in absorbed:
                    self._note(scope, eqn.invars[0], "read", certain, possible)
            elif name in ("swap", "addupdate", "masked_swap"):
                if eqn.outvars and uses[eqn.outvars[0]]:
                    scope.sources[eqn.outvars[0]] = scope.of(eqn.invars)
                    self._note(scope, eqn.invars[0], "read", certain, possible)
                kind = "add" if name == "addupdate" or id(eqn) in adding else "write"
                more = (name != "masked_swap" and _covers(eqn), scope.of(eqn.invars[1:]))
                self._note(scope, eqn.invars[0], kind, certain, possible, *more)
            elif refs and name == "cond":
                self._cond(eqn, scope, certain, possible)
            elif refs and (bodies := list(_bodies(eqn))):
                self._inside(eqn, bodies, scope, certain, possible)
            else:
                for ref in refs:
                    self._note(scope, ref, "other", np.zeros_like(certain), possible)
                self._plain(eqn, scope)

    def _note(self, scope: Scope, ref: Any, kind: str, certain: Any, possible: Any, *more: Any) -> None:
        if scope.refs.get(ref) is not None:
            self.found.append(Access(scope.refs[ref], kind, certain, possible, *more))

    def _grid(self, eqn: Any, scope: Scope) -> None:
        axis, out = eqn.params["axis"], eqn.outvars[0]
        if eqn.primitive.name == "program_id":
            scope.sources[out] = frozenset({("program", axis)})
            scope.known[out] = self.places[:, self.axes[axis]]
        else:
            scope.known[out] = np.full(len(self.places), self.grid[self.axes[axis]], np.int32)

    def _plain(self, eqn: Any, scope: Scope) -> None:
        """An equation without Refs: what its results are made from and, of scalar integers, their values."""
        sources = scope.of(eqn.invars)
        scope.sources.update((out, sources) for out in eqn.outvars)
        operands = [scope.value(atom) for atom in eqn.invars]
        if eqn.primitive.name == "multiple_of" and operands[0] is not None:  # a promise, and no arithmetic
            scope.known[eqn.outvars[0]] = operands[0]
            return
        axes = [0 if np.shape(value) == (len(self.places),) else None for value in operands]
        if eqn.effects or 0 not in axes or any(value is None for value in operands) or not len(self.places):
            return
        if not all(_is_small_integer(out.aval) for out in eqn.outvars):
            return
        try:
            results = jax.vmap(lambda *values: eqn.primitive.bind(*values, **eqn.params), axes)(*operands)
        except Exception:  # not ours to compute: then it is not known
            return
        results = results if eqn.primitive.multiple_results else [results]
        scope.known.update((out, np.asarray(value)) for out, value in zip(eqn.outvars, results))

    def _cond(self, eqn: Any, scope: Scope, certain: np.ndarray, possible: np.ndarray) -> None:
        branches, index = eqn.params["branches"], scope.value(eqn.invars[0])
        sources = scope.of(eqn.invars[:1])
        for number, branch in enumerate(branches):
            inner = _enter(scope, zip(_jax.open_jaxpr(branch).invars, eqn.invars[1:]))
            if index is None:
                self.read(branch, inner, np.zeros_like(certain), possible)
            else:
                taken = np.clip(index, 0, len(branches) - 1) == number
                self.read(branch, inner, certain & taken, possible & taken)
            sources |= inner.of(_jax.open_jaxpr(branch).outvars)
        scope.sources.update((out, sources) for out in eqn.outvars)

    def _inside(
        self, eqn: Any, bodies: list, scope: Scope, certain: np.ndarray, possible: np.ndarray
    ) -> None:
        """The jaxprs of a call, of a loop, or of `run_scoped`. In a loop anything may come from anything."""
        once = eqn.primitive.name == "run_scoped" or body_of_call(eqn) is not None
        length = 1 if once else eqn.params.get("length")  # of a scan; a `while` may not run at all
        everything = scope.of(eqn.invars)
        if eqn.primitive.name == "while":
            for ref in eqn.invars[: eqn.params["cond_nconsts"]]:
                if not hasattr(ref, "val") and ref in scope.refs:
                    self._note(scope, ref, "read", np.zeros_like(certain), possible)
        for body, pairs in bodies:
            inner = _enter(scope, pairs, None if once else everything)
            local = {v: None for v in _jax.open_jaxpr(body).invars if _is_ref(v) and v not in inner.refs}
            inner = inner._replace(refs={**inner.refs, **local})
            never = np.zeros_like(certain)
            self.read(body, inner, certain if length else never, never if length == 0 else possible)
            if once:
                scope.sources.update((out, inner.of([v])) for out, v in zip(eqn.outvars, _outputs(body)))
        if not once:
            scope.sources.update((out, everything) for out in eqn.outvars)


def _enter(scope: Scope, pairs: Iterator[tuple[Any, Any]], sources: frozenset[Source] | None = None) -> Scope:
    """The scope of a jaxpr inside, from pairs of its arguments and the operands they stand for.

    sources: what they may all come from, in a loop; None where each is its operand and nothing else.
    """
    pairs = list(pairs)
    refs = {var: scope.refs[atom] for var, atom in pairs if not hasattr(atom, "val") and atom in scope.refs}
    if sources is not None:
        return Scope(refs, {}, {var: sources for var, _ in pairs if var not in refs})
    known = {var: scope.value(atom) for var, atom in pairs if scope.value(atom) is not None}
    return Scope(refs, known, {var: scope.of([atom]) for var, atom in pairs if var not in refs})


def _bodies(eqn: Any) -> Iterator[tuple[Any, Iterator[tuple[Any, Any]]]]:
    """The jaxprs in an equation, their arguments paired with its operands; none where that is not known."""
    name, operands = eqn.primitive.name, list(eqn.invars)
    if name == "while":
        operands = operands[eqn.params["cond_nconsts"] :]
    for path, body in _jax.sub_jaxprs(eqn.params):
        inner = _jax.open_jaxpr(body)
        if name == "run_scoped":
            yield body, zip(inner.constvars, operands)
        elif name == "while" and path == "body_jaxpr" or name == "scan" or body_of_call(eqn) is body:
            yield body, zip(inner.invars, operands)


def _outputs(jaxpr: Any) -> list[Any]:
    return _jax.open_jaxpr(jaxpr).outvars


def _is_small_integer(aval: Any) -> bool:
    return getattr(aval, "shape", None) == () and getattr(aval.dtype, "kind", "") in tuple("iub")


def _is_ref(var: Any) -> bool:
    return hasattr(var.aval, "inner_aval")


def _accumulations(inner: Any, uses: Counter) -> tuple[set[int], set[Any]]:
    """Which writes of a jaxpr are accumulations, as ids of equations, and the reads that are a part of them.

    A write accumulates if its value is what was in the same Ref joined with something. A read is a part of
    that, and no read in its own right, if its value goes there and nowhere else.
    """
    defined = {out: eqn for eqn in inner.eqns for out in eqn.outvars}
    adding: set[int] = set()
    absorbed: set[Any] = set()
    for swap in inner.eqns:
        if swap.primitive.name != "swap":
            continue
        seen, upwards = set(), [(swap.invars[1], False, True)]
        while upwards:  # from the value that is written to what it was made from
            atom, joined, alone = upwards.pop()
            if hasattr(atom, "val") or atom not in defined or atom in seen:
                continue
            seen.add(atom)
            eqn, alone = defined[atom], alone and uses[atom] == 1
            if eqn.primitive.name in JOIN:
                upwards += [(operand, True, alone) for operand in eqn.invars]
            elif eqn.primitive.name in PASS:
                upwards.append((eqn.invars[0], joined, alone))
            elif eqn.primitive.name == "get" and eqn.invars[0] is swap.invars[0] and joined:
                adding.add(id(swap))
                absorbed |= {atom} if alone else set()
    return adding, absorbed


def _covers(eqn: Any) -> bool:
    """Does a write go to all of its Ref?"""
    transforms = eqn.params["tree"].unflatten(eqn.invars[2:])
    return all(
        _is_all(index, size)
        for transform in transforms
        for index, size in zip(getattr(transform, "indices", (None,)), getattr(transform, "shape", (0,)))
    )


def _is_all(index: Any, size: int) -> bool:
    start, extent, stride = (getattr(index, name, None) for name in ("start", "size", "stride"))
    return isinstance(start, int) and (start, extent, stride) == (0, size, 1)
