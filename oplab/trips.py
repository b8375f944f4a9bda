"""How often the jaxprs inside an equation run: the trip counts of loops, found before anything runs.

A scan says how long it is. A while loop is understood when it counts: a scalar integer that starts at a known
value, moves by a known step and is compared with a known bound. What is known is followed from constants
through calls and into the bodies of loops. Where the data decides, the answer is None.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from . import _jax
from .quantities import size_in, size_out

NOTHING: Mapping[Any, int] = {}  # no variable's value is known

# Plain calls, and the parameter that runs, once. Others that the equation may hold (a transpose) do not run.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "jaxpr_call": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_vmap_call": "call",
    "custom_partitioning": "call",
    "linear_call": "callee",
    "composite": "jaxpr",
    "run_state": "jaxpr",
    "run_scoped": "jaxpr",
    "eval_jaxpr": "jaxpr",
    "xla_metadata_call": "jaxpr",
    "call_hi_primitive": "_prim",
}
# Operators with a small function inside, which joins two elements.
COMBINERS = {
    "reduce",
    "reduce_window",
    "select_and_scatter",
    "scatter",
    "scatter-add",
    "scatter-sub",
    "scatter-mul",
    "scatter-min",
    "scatter-max",
}
LOOPS = {"scan", "while", "cond", "shard_map", "pallas_call", "custom_linear_solve"}


def trips(eqn: Any, path: str, known: Mapping[Any, int] = NOTHING) -> int | None:
    """How often the jaxpr at `path` runs when its equation runs once; None when the data decides.

    `path` is spelt as in `_jax.sub_jaxprs`: "jaxpr", "body_jaxpr", "branches.0", "jaxprs.solve". A branch of
    a cond counts 1 unless the choice is known. A shard_map runs its body on every shard, and all count.
    """
    params = eqn.params
    match eqn.primitive.name:
        case "scan":
            return params["length"]
        case "while":
            count = _while_trips(eqn, known)
            return count + 1 if count is not None and path == "cond_jaxpr" else count
        case "cond":
            taken = taken_branch(eqn, known)
            return 1 if taken is None else int(path == f"branches.{taken}")
        case "shard_map":
            return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
        case "pallas_call":
            grid = params["grid_mapping"].grid
            return math.prod(grid) if all(isinstance(n, (int, np.integer)) for n in grid) else None
        case "custom_linear_solve":
            return int(path == "jaxprs.solve")
        case "reduce":
            return max(0, size_in(eqn) - size_out(eqn))
        case "reduce_window":
            return size_out(eqn) * (math.prod(params["window_dimensions"]) - 1)
        case "select_and_scatter":  # operand, source, start
            window = math.prod(params["window_dimensions"])
            return size_in(eqn, 1) * (window - 1 if path == "select_jaxpr" else 1)
        case name if name in COMBINERS:  # a scatter: operand, indices, updates
            return size_in(eqn, 2)
        case name:
            return int(path == CALLS.get(name, path))


def known_integers(jaxpr: Any, arguments: tuple[int | None, ...] = ()) -> dict[Any, int]:
    """Variable -> value, for the scalar integers that follow from a jaxpr's constants and known arguments."""
    inner = _jax.open_jaxpr(jaxpr)
    constants = map(_integer, getattr(jaxpr, "consts", ()))
    given = (*zip(inner.constvars, constants), *zip(inner.invars, arguments))
    known = {var: value for var, value in given if value is not None and _holds(var.aval, value)}
    for eqn in inner.eqns:
        fold = _FOLDS.get(eqn.primitive.name)
        if fold and eqn.outvars[0].aval.shape == ():
            operands = [_value(atom, known) for atom in eqn.invars]
            if None not in operands and _holds(eqn.outvars[0].aval, fold(*operands)):
                known[eqn.outvars[0]] = fold(*operands)
    return known


_SAME = "convert_element_type broadcast_in_dim reshape squeeze copy pvary".split()
_FOLDS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": max,
    "min": min,
    "clamp": lambda low, n, high: min(max(n, low), high),
    **dict.fromkeys(_SAME, lambda n: n),
}


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if getattr(value, "shape", None) != () or isinstance(value, jax.core.Tracer):
        return None
    try:
        return int(value) if jax.dtypes.issubdtype(value.dtype, np.integer) else None
    except RuntimeError:  # deleted, or on another machine
        return None


def _value(atom: Any, known: Mapping[Any, int]) -> int | None:
    return _integer(atom.val) if hasattr(atom, "val") else known.get(atom)


def _holds(aval: Any, value: int) -> bool:
    """Is `aval` an integer type that can hold `value`? Where it cannot, arithmetic wraps around."""
    if not hasattr(aval, "dtype") or not jax.dtypes.issubdtype(aval.dtype, np.integer):
        return False
    limits = jax.dtypes.iinfo(aval.dtype)
    return int(limits.min) <= value <= int(limits.max)


def taken_branch(eqn: Any, known: Mapping[Any, int]) -> int | None:
    index = _value(eqn.invars[0], known)
    return None if index is None else min(max(index, 0), len(eqn.params["branches"]) - 1)  # it is clamped


def known_arguments(eqn: Any, path: str, body: Any, known: Mapping[Any, int]) -> tuple[int | None, ...]:
    """What is known of the arguments of the jaxpr at `path`; () when that is nothing."""
    name, values = eqn.primitive.name, [_value(atom, known) for atom in eqn.invars]
    match name:
        case "scan":
            values = values[: _scan_constants(eqn, _jax.open_jaxpr(body))]
        case "while":
            values = _while_arguments(eqn, path, values)
        case "cond":
            values = values[1:]
        case _ if CALLS.get(name) != path and name != "shard_map":
            values = []
    return tuple(values) if any(value is not None for value in values) else ()


def _scan_constants(eqn: Any, body: Any) -> int:
    """How many operands of a scan are constants. Its params differ by version, but a carry keeps its rank."""

    def same_rank(outer: Any, inner: Any) -> int:
        return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in zip(outer, inner, strict=True))

    return same_rank(eqn.invars, body.invars) - same_rank(eqn.outvars, body.outvars)


def _while_arguments(eqn: Any, path: str, values: list[int | None]) -> list[int | None]:
    """Constants as they are; of the carry what the body hands on unchanged: a fori_loop's upper bound."""
    body = _jax.open_jaxpr(eqn.params["body_jaxpr"])
    in_cond, in_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    carry = [
        value if before is after else None
        for value, before, after in zip(
            values[in_cond + in_body :], body.invars[in_body:], body.outvars, strict=True
        )
    ]
    return (values[:in_cond] if path == "cond_jaxpr" else values[in_cond : in_cond + in_body]) + carry


_FLIPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "ne": "ne"}


def _while_trips(eqn: Any, known: Mapping[Any, int]) -> int | None:
    """Trips of a while loop that counts: `i < bound`, i starts known and each trip adds a known step."""
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    in_cond = known_integers(cond, known_arguments(eqn, "cond_jaxpr", cond, known))
    in_body = known_integers(body, known_arguments(eqn, "body_jaxpr", body, known))
    cond, body = _jax.open_jaxpr(cond), _jax.open_jaxpr(body)
    test = _defined_by(cond, cond.outvars[0])
    if test is None or test.primitive.name not in _FLIPPED:
        return None
    (left, right), compare = test.invars, test.primitive.name
    if _value(left, in_cond) is not None:
        left, right, compare = right, left, _FLIPPED[compare]
    counter, bound = _origin(cond, left), _value(right, in_cond)
    cond_consts, body_consts = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    place = next((i for i, var in enumerate(cond.invars[cond_consts:]) if var is counter), None)
    if place is None or bound is None:
        return None
    start = _value(eqn.invars[cond_consts + body_consts + place], known)
    adds = _defined_by(body, _origin(body, body.outvars[place]))
    step = _step(adds, body, body.invars[body_consts + place], in_body)
    count = _count(compare, start, bound, step) if step and start is not None else None
    if count is None:
        return None
    places = (counter.aval, left.aval, adds.outvars[0].aval)  # no counter may wrap around on its way
    return count if all(_holds(a, n) for a in places for n in (start, start + count * step)) else None


def _defined_by(jaxpr: Any, var: Any) -> Any | None:
    return next((eqn for eqn in jaxpr.eqns if any(out is var for out in eqn.outvars)), None)


def _origin(jaxpr: Any, var: Any) -> Any:
    """The variable that `var` is, but for its type: JAX converts weakly typed counters."""
    while (eqn := _defined_by(jaxpr, var)) is not None and eqn.primitive.name in _SAME:
        var = eqn.invars[0]
    return var


def _step(eqn: Any | None, body: Any, counter: Any, known: Mapping[Any, int]) -> int | None:
    """The known step that an equation of the loop's body adds to the counter."""
    if eqn is None or eqn.primitive.name not in ("add", "sub"):
        return None
    left, right = eqn.invars
    if _origin(body, left) is counter:
        step = _value(right, known)
        return -step if step is not None and eqn.primitive.name == "sub" else step
    return _value(left, known) if _origin(body, right) is counter and eqn.primitive.name == "add" else None


def _count(compare: str, start: int, bound: int, step: int) -> int | None:
    """Trips of `while start COMPARE bound: start += step`; None when it would only end by wrapping around."""
    match compare:
        case "gt" | "ge":
            return _count("lt" if compare == "gt" else "le", -start, -bound, -step)
        case "le":
            return _count("lt", start, bound + 1, step)
        case "ne":
            count, rest = divmod(bound - start, step)
            return count if rest == 0 and count >= 0 else None
    return 0 if start >= bound else -((start - bound) // step) if step > 0 else None
