"""Integers that are known before anything runs: sizes of a dynamic grid, and scalar-prefetch arguments.

Both reach a `pallas_call` as ordinary values, often after some arithmetic on the arguments of the function
around it (the pages of a cache, the rows of each expert). Where those arguments are concrete arrays, the few
equations that lead to them are computed on the CPU, and no others. What depends on anything else is None.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _jax
from ..ops.operator import MAP
from ..trips import CALLS

# Of the plain calls, those whose jaxpr does not take the equation's operands one by one.
OTHERWISE = {"linear_call", "run_state", "run_scoped", "call_hi_primitive"}
LARGEST = 2**20  # elements of an array in such arithmetic; what is larger is data, and data is not touched


class Place(NamedTuple):
    """A jaxpr, and how it is reached: as a part of `equation` of the jaxpr at `outer`, or, at the top, with
    `given`, one value for each of its arguments or None where it is not known.
    """

    jaxpr: Any
    outer: Place | None = None
    equation: Any = None
    path: str = ""
    given: Sequence[Any] = ()


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Whatever is computed inside is computed on the CPU, also where an accelerator is the default."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            "Index maps are computed on the CPU, and JAX was started without it: add cpu to JAX_PLATFORMS, "
            "as in JAX_PLATFORMS=cuda,cpu."
        ) from error
    with jax.default_device(device):
        yield


def values(place: Place, atoms: Sequence[Any]) -> list[Any]:
    """The values of variables (or literals) of the jaxpr at `place`; None for each that is not known."""
    inner = _jax.open_jaxpr(place.jaxpr)
    free = _needed(inner, atoms)[1]
    wanted = [i for i, var in enumerate(inner.invars) if var in free]
    arguments: list[Any] = [None] * len(inner.invars)
    for i, value in zip(wanted, _arguments(place, wanted)):
        arguments[i] = value
    with on_cpu():
        return _evaluate(place.jaxpr, arguments, atoms)


def body_of_call(eqn: Any) -> Any | None:
    """The jaxpr that a plain call runs, or None for any other equation.

    One of oplab's operators, asked to run as its Pallas kernel, is a call of the launcher of that kernel.
    """
    name = eqn.primitive.name
    if name in MAP and eqn.params.get("implementation") == "pallas":
        return _launched(name, tuple(v.aval for v in eqn.invars), tuple(sorted(eqn.params.items())))
    body = None if name in OTHERWISE else eqn.params.get(CALLS.get(name))
    same = _jax.is_jaxpr(body) and len(_jax.open_jaxpr(body).invars) == len(eqn.invars)
    return body if same else None


@functools.lru_cache(maxsize=256)
def _launched(operator: str, avals: tuple, params: tuple) -> Any:
    launcher = MAP[operator]["pallas"]["cpu"].launcher
    given = {key: value for key, value in params if key != "implementation"}
    return jax.make_jaxpr(functools.partial(launcher, **given))(*avals)


def _arguments(place: Place, wanted: Sequence[int]) -> list[Any]:
    """The values of some arguments, by number, of the jaxpr at `place`."""
    if place.outer is None:
        return [_as_array(place.given[i], _jax.open_jaxpr(place.jaxpr).invars[i].aval) for i in wanted]
    operands = _operands(place)
    found = values(place.outer, [operands[i] for i in wanted if operands[i] is not None])
    following = iter(found)
    return [None if operands[i] is None else next(following) for i in wanted]


def _operands(place: Place) -> list[Any]:
    """For each argument of the jaxpr at `place`, the operand of the equation around it that it always is.

    None for what changes from one trip of a loop to the next, and for all of an equation not known here.
    """
    eqn, inner = place.equation, _jax.open_jaxpr(place.jaxpr)
    name, none = eqn.primitive.name, [None] * len(inner.invars)
    if body_of_call(eqn) is place.jaxpr:
        return list(eqn.invars)
    if name == "cond" and place.path.startswith("branches"):
        return list(eqn.invars[1:])
    if name == "while" and place.path == "body_jaxpr":
        first, many = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        return [*eqn.invars[first : first + many], *none[many:]]
    if name == "scan" and len(eqn.invars) == len(inner.invars):
        varying = _varying(eqn, inner)
        return [None if i in varying else operand for i, operand in enumerate(eqn.invars)]
    return none


def _varying(eqn: Any, body: Any) -> set[int]:
    """The arguments of a scan's body that are a carry or a slice: all but its constants, which come first.

    The params that count them differ between versions of JAX; but a carry goes in as it comes out, and only a
    slice has another rank inside.
    """

    def same_rank(outer: Any, inner: Any) -> int:
        return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in zip(outer, inner))

    carries = same_rank(eqn.outvars, body.outvars)
    constants = same_rank(eqn.invars, body.invars) - carries
    return set(range(constants, len(eqn.invars)))


# Computing what leads to a few variables, and nothing else -------------------------------------------------


def _needed(inner: Any, atoms: Iterable[Any]) -> tuple[list[Any], set[Any]]:
    """The equations of an open jaxpr that lead to `atoms`, in order, and all variables on the way."""
    wanted = {atom for atom in atoms if not hasattr(atom, "val")}
    equations = []
    for eqn in reversed(inner.eqns):
        if any(out in wanted for out in eqn.outvars):
            equations.append(eqn)
            wanted |= {atom for atom in eqn.invars if not hasattr(atom, "val")}
    return equations[::-1], wanted


def _evaluate(jaxpr: Any, arguments: Sequence[Any], atoms: Sequence[Any]) -> list[Any]:
    inner = _jax.open_jaxpr(jaxpr)
    known = dict(zip(inner.constvars, getattr(jaxpr, "consts", ()))) | dict(zip(inner.invars, arguments))
    for eqn in _needed(inner, atoms)[0]:
        operands = [_value(atom, known) for atom in eqn.invars]
        body = body_of_call(eqn)
        if body is not None:
            results = _evaluate(body, operands, _jax.open_jaxpr(body).outvars)
        else:
            results = _compute(eqn, operands)
        known.update(zip(eqn.outvars, results))
    return [_value(atom, known) for atom in atoms]


def _value(atom: Any, known: dict[Any, Any]) -> Any:
    return atom.val if hasattr(atom, "val") else known.get(atom)


def _compute(eqn: Any, operands: list[Any]) -> list[Any]:
    """The results of one equation; None for each when an operand is not known or it is not for us to run."""
    unknown = [None] * len(eqn.outvars)
    sizes = [math.prod(getattr(atom.aval, "shape", ())) for atom in (*eqn.invars, *eqn.outvars)]
    if any(value is None for value in operands) or max(sizes, default=0) > LARGEST:
        return unknown
    if _acts(eqn):
        return unknown
    try:
        results = eqn.primitive.bind(*operands, **eqn.params)
    except Exception:  # a primitive that cannot be bound by itself: then its result is not known
        return unknown
    return list(results) if eqn.primitive.multiple_results else [results]


def _acts(eqn: Any) -> bool:
    """Is it, or does it hold, a kernel, a call back into Python, or anything else with an effect?"""
    if eqn.effects or eqn.primitive.name == "pallas_call" or "callback" in eqn.primitive.name:
        return True
    bodies = (_jax.open_jaxpr(body) for _, body in _jax.sub_jaxprs(eqn.params))
    return any(_acts(inner) for body in bodies for inner in body.eqns)


def _as_array(value: Any, aval: Any) -> Any:
    """An argument as NumPy has it, in the dtype it was traced with; None for a shape without values."""
    if value is None or isinstance(value, jax.ShapeDtypeStruct):
        return None
    try:
        return np.asarray(value).astype(aval.dtype)
    except (TypeError, RuntimeError):  # random keys; an array that was donated, or lies on another host
        return None
