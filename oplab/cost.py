"""What a program costs as written: FLOPs, transcendentals, bytes, right inside loops and custom kernels.

XLA's `cost_analysis` counts the body of a loop once and knows nothing of a library call; here a body counts
as often as it runs. Shapes decide everything and nothing is run. What the compiler leaves may need less: it
folds, merges, fuses and drops what nobody uses. Seeing that difference is what the lab is for.

Conventions: those of XLA's HloCostAnalysis wherever it has one, and where we differ the text says so.

- `flops`: one for each element of a result, for integers and comparisons too; a multiply-add is two. A
  complex operation counts as its real ones: add 2, multiply 6, divide 11, multiply-add 8 (XLA: as if it were
  real). Moving data is free, between two dtypes too (XLA: 1 a conversion). A convolution counts its zero
  padding (XLA leaves the border out).
- `transcendentals`: exp, log, tanh, erf, pow, sqrt, ...: one for each element, kept apart, *not* in `flops`.
- `bytes`: each distinct operand and each result once, which is what the operator moves when it runs by
  itself, unfused. Slices and gathers move only what they touch; updates happen in place. A new name for the
  same bytes moves none: a reshape, an axis of 1 that comes or goes (XLA: a copy). Literals, Refs and tokens
  are 0 bytes. A loop moves what its body's operators move, a Pallas kernel its operands and results.
- Not known is None, never 0. A sum holds what is known, and its `notes` say what is missing: "at least".

The file reads from the whole to the parts: a function, a jaxpr, an equation. How often the jaxprs inside an
equation run stands in `oplab.trips`, the rule of each primitive in one table at the foot of `oplab.flops`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from . import _jax
from .flops import ANNOTATIONS, RULES
from .quantities import Cost, nbytes
from .trips import CALLS, COMBINERS, LOOPS, NOTHING, known_arguments, known_integers, taken_branch, trips

# A whole program --------------------------------------------------------------------------------------------


def flops(function: Callable, *args: Any, **kwargs: Any) -> int | None:
    """FLOPs of one call of `function`, traced and not run. A warning says what the number leaves out, if any.

    flops(lambda x, w: x @ w, x, w)      # 2 * rows * columns * inner
    """
    cost = function_cost(function, *args, **kwargs)
    if not cost.exact:
        warnings.warn(f"this count of FLOPs is not exact: {cost.note}", stacklevel=2)
    return cost.flops


def function_cost(function: Callable, *args: Any, **kwargs: Any) -> Cost:
    """Cost of one call of `function`. It may be jitted already; then its static arguments stay static."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f"expected a function to count, got {kind}: call flops(f, x), not flops(f(x))")
    jitted = isinstance(function, jax.stages.Wrapped)
    wrapped = function if jitted else jax.jit(lambda *args, **kwargs: function(*args, **kwargs))
    return jaxpr_cost(wrapped.trace(*args, **kwargs).jaxpr)


# A jitted function that is called 200 times is one jaxpr: count it once. An entry goes when its jaxpr goes.
_counted: weakref.WeakKeyDictionary[Any, dict[tuple, Cost]] = weakref.WeakKeyDictionary()


def jaxpr_cost(jaxpr: Any, arguments: tuple[int | None, ...] = ()) -> Cost:
    """Cost of running a jaxpr once. `arguments`: the values of its scalar integer arguments, where known."""
    memo = _counted.setdefault(jaxpr, {})
    if arguments not in memo:
        known, total = known_integers(jaxpr, arguments), Cost()
        for eqn in _jax.open_jaxpr(jaxpr).eqns:
            total += _cost(eqn, list(_jax.sub_jaxprs(eqn.params)), known)
        memo[arguments] = total
    return memo[arguments]


class Counted(NamedTuple):
    """One equation of a program, nested ones too: the cost of one run, and how often it runs in all."""

    id: str  # "e7", or "e7.body_jaxpr.e2" for the third equation of the body of e7
    eqn: Any
    cost: Cost
    runs: int | None  # None: in a loop that stops on the data. In a branch of a cond: as if always taken


def equations(jaxpr: Any) -> Iterator[Counted]:
    """Every equation of a closed jaxpr, each before those inside it."""
    yield from _equations(jaxpr, (), "", 1)


def _equations(jaxpr: Any, arguments: tuple, prefix: str, runs: int | None) -> Iterator[Counted]:
    known = known_integers(jaxpr, arguments)
    for i, eqn in enumerate(_jax.open_jaxpr(jaxpr).eqns):
        bodies = list(_jax.sub_jaxprs(eqn.params))
        yield Counted(f"{prefix}e{i}", eqn, _cost(eqn, bodies, known), runs)
        for path, body in bodies:
            try:
                inner, given = trips(eqn, path, known), known_arguments(eqn, path, body, known)
            except MISFITS:
                inner, given = None, ()
            inside = 0 if 0 in (runs, inner) else None if None in (runs, inner) else runs * inner
            yield from _equations(body, given, f"{prefix}e{i}.{path}.", inside)


# One equation -----------------------------------------------------------------------------------------------

# What a rule raises on another library's primitive of the same name, or on a shape with symbols in it.
MISFITS = (LookupError, AttributeError, TypeError, ValueError, jax.errors.InconclusiveDimensionOperation)


def equation_cost(eqn: Any, known: Mapping[Any, int] = NOTHING) -> Cost:
    """Cost of running one equation once, and the jaxprs in it as often as they run.

    `known`: the variables whose values are known before the run, as `known_integers` finds them.
    """
    return _cost(eqn, list(_jax.sub_jaxprs(eqn.params)), known)


def _cost(eqn: Any, bodies: list[tuple[str, Any]], known: Mapping[Any, int]) -> Cost:
    name = eqn.primitive.name
    try:
        if bodies or (bodies := _expansion(eqn)):
            return _cost_of_bodies(eqn, bodies, known)
        if name not in RULES:
            return Cost(None, None, _bytes_moved(eqn), (f"the cost of `{name}` is not known",))
        work = RULES[name](eqn)
        return (work if isinstance(work, Cost) else Cost(work)) + Cost(bytes=_bytes_moved(eqn))
    except MISFITS as problem:
        why = type(problem).__name__
        return Cost(None, None, None, (f"the cost of `{name}` could not be counted ({why})",))


def _expansion(eqn: Any) -> list[tuple[str, Any]]:
    """What a high-level primitive of newer JAX stands for: it holds no jaxpr, but can be asked."""
    primitive = eqn.params.get("_prim")
    if not hasattr(primitive, "expand"):
        return []

    def expand(*flat):
        return primitive.expand(*jax.tree.unflatten(primitive.in_tree, flat))

    arguments = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    return [("_prim", jax.make_jaxpr(expand)(*arguments))]


def _cost_of_bodies(eqn: Any, bodies: list[tuple[str, Any]], known: Mapping[Any, int]) -> Cost:
    name, total = eqn.primitive.name, Cost()
    if name == "cond" and taken_branch(eqn, known) is None:
        return _dearest([jaxpr_cost(body, known_arguments(eqn, path, body, known)) for path, body in bodies])
    for path, body in bodies:
        runs = trips(eqn, path, known)
        if runs is None:
            runs, total = 1, total + Cost(notes=(f"one trip of a `{name}` that stops on the data",))
        if runs:
            total += jaxpr_cost(body, known_arguments(eqn, path, body, known)) * runs
    if name in COMBINERS or name == "pallas_call":
        return replace(total, bytes=_bytes_moved(eqn))
    if name not in CALLS and name not in LOOPS:
        return total + Cost(notes=(f"`{name}` is not known: each jaxpr in it is counted once",))
    return total


def _dearest(branches: list[Cost]) -> Cost:
    """The most expensive branch: by operations, then by bytes (XLA: the maximum of each count by itself)."""
    dearest = max(branches, key=lambda c: ((c.flops or 0) + (c.transcendentals or 0), c.bytes or 0))
    if all(branch == dearest for branch in branches):
        return dearest
    return dearest + Cost(notes=("the most expensive branch of a `cond`",))


def _bytes_moved(eqn: Any) -> int:
    """Each distinct operand and each result once, but for those that touch only a part of their operand."""
    name, inputs = eqn.primitive.name, [nbytes(v.aval) for v in eqn.invars]
    results = sum(nbytes(v.aval) for v in eqn.outvars)
    if name in ANNOTATIONS or _renames(eqn):
        return 0
    if name in ("slice", "dynamic_slice", "gather"):  # reads what it returns; reads the indices
        return 2 * results + sum(inputs[1:])
    if name == "dynamic_update_slice":
        return 2 * inputs[1] + sum(inputs[2:])
    if name.startswith("scatter"):  # reads and writes the places it touches; reads updates and indices
        return 3 * inputs[2] + inputs[1]
    distinct = {id(v): n for v, n in zip(eqn.invars, inputs) if not hasattr(v, "val")}
    return sum(distinct.values()) + results


# What may be a new name for bytes that stay where they are.
RENAMES = frozenset(
    """
    reshape squeeze expand_dims broadcast_in_dim transpose bitcast bitcast_convert_type convert_element_type
    """.split()
)


def _renames(eqn: Any) -> bool:
    """Does the result hold the operand's bytes, in the order in which they lie already?"""
    name = eqn.primitive.name
    if name not in RENAMES or len(eqn.invars) != 1 or hasattr(eqn.invars[0], "val"):
        return False
    before, after = eqn.invars[0].aval, eqn.outvars[0].aval
    if nbytes(before) != nbytes(after):  # a broadcast that repeats
        return False
    if name == "convert_element_type":  # to the same dtype: that is how JAX says that it is no longer weak
        return before.dtype == after.dtype
    order = eqn.params.get({"transpose": "permutation", "reshape": "dimensions"}.get(name)) or ()
    moving = [axis for axis in order if before.shape[axis] != 1]  # an axis of 1 can go anywhere
    return moving == sorted(moving)
