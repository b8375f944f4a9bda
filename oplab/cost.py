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
  itself, unfused. Slices and gathers move only what they touch; updates happen in place. Literals, Refs and
  tokens are 0 bytes. A loop moves what its body's operators move, a Pallas kernel its operands and results.
- Not known is None, never 0. A sum holds what is known, and its `notes` say what is missing: "at least".

The file reads from the whole to the parts: a function, an equation, how often a loop runs, and at the foot
one table with the rule of each primitive.
"""

from __future__ import annotations

import math
import operator
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from . import _jax


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of operations and bytes; `notes` say what they leave out or how they were guessed."""

    flops: int | None = 0
    transcendentals: int | None = 0
    bytes: int | None = 0
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.notes

    @property
    def note(self) -> str:
        return "; ".join(self.notes)

    def __add__(self, other: Cost) -> Cost:
        notes = tuple(dict.fromkeys(self.notes + other.notes)) if self.notes or other.notes else ()
        return Cost(
            _plus(self.flops, other.flops),
            _plus(self.transcendentals, other.transcendentals),
            _plus(self.bytes, other.bytes),
            notes,
        )

    def __mul__(self, times: int) -> Cost:
        if times == 0:
            return Cost()
        counts = (None if n is None else n * times for n in (self.flops, self.transcendentals, self.bytes))
        return Cost(*counts, self.notes)

    __rmul__ = __mul__


def _plus(a: int | None, b: int | None) -> int | None:
    """Unknown and something is at least something; unknown and nothing stays unknown."""
    return (a or 0) + (b or 0) or (None if a is None or b is None else 0)


# A whole program --------------------------------------------------------------------------------------------

NOTHING: Mapping[Any, int] = {}  # no variable's value is known


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
                inner, given = trips(eqn, path, known), _arguments(eqn, path, body, known)
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
    if name == "cond" and _taken_branch(eqn, known) is None:
        return _dearest([jaxpr_cost(body, _arguments(eqn, path, body, known)) for path, body in bodies])
    for path, body in bodies:
        runs = trips(eqn, path, known)
        if runs is None:
            runs, total = 1, total + Cost(notes=(f"one trip of a `{name}` that stops on the data",))
        if runs:
            total += jaxpr_cost(body, _arguments(eqn, path, body, known)) * runs
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


# How often the jaxprs in an equation run --------------------------------------------------------------------

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
            taken = _taken_branch(eqn, known)
            return 1 if taken is None else int(path == f"branches.{taken}")
        case "shard_map":
            return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
        case "pallas_call":
            grid = params["grid_mapping"].grid
            return math.prod(grid) if all(isinstance(n, (int, np.integer)) for n in grid) else None
        case "custom_linear_solve":
            return int(path == "jaxprs.solve")
        case "reduce":
            return max(0, _in(eqn) - _out(eqn))
        case "reduce_window":
            return _out(eqn) * (math.prod(params["window_dimensions"]) - 1)
        case "select_and_scatter":  # operand, source, start
            return _in(eqn, 1) * (math.prod(params["window_dimensions"]) - 1 if path == "select_jaxpr" else 1)
        case name if name in COMBINERS:  # a scatter: operand, indices, updates
            return _in(eqn, 2)
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


def _taken_branch(eqn: Any, known: Mapping[Any, int]) -> int | None:
    index = _value(eqn.invars[0], known)
    return None if index is None else min(max(index, 0), len(eqn.params["branches"]) - 1)  # it is clamped


def _arguments(eqn: Any, path: str, body: Any, known: Mapping[Any, int]) -> tuple[int | None, ...]:
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
    in_cond = known_integers(cond, _arguments(eqn, "cond_jaxpr", cond, known))
    in_body = known_integers(body, _arguments(eqn, "body_jaxpr", body, known))
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


# Sizes ------------------------------------------------------------------------------------------------------


def _size(aval: Any) -> int:
    return math.prod(map(int, aval.shape))  # int() refuses a symbolic dimension


def _in(eqn: Any, index: int = 0) -> int:
    return _size(eqn.invars[index].aval)


def _out(eqn: Any) -> int:
    return _size(eqn.outvars[0].aval)


@lru_cache(maxsize=256)
def _bits(dtype: Any) -> int:
    if dtype == jax.dtypes.float0 or jax.dtypes.issubdtype(dtype, jax.dtypes.extended):  # PRNG keys
        return 8 * getattr(dtype, "itemsize", 0)
    return jax.dtypes.itemsize_bits(dtype)


def _nbytes(aval: Any) -> int:
    """Bytes of an array, int4 packed two to a byte. What is no array, and what is only a reference, is 0."""
    if hasattr(aval, "inner_aval") or not hasattr(aval, "dtype"):
        return 0
    return -(-_size(aval) * _bits(aval.dtype) // 8)


def _bytes_moved(eqn: Any) -> int:
    name, inputs = eqn.primitive.name, [_nbytes(v.aval) for v in eqn.invars]
    results = sum(_nbytes(v.aval) for v in eqn.outvars)
    if name in ANNOTATIONS:
        return 0
    if name in ("slice", "dynamic_slice", "gather"):  # reads what it returns; reads the indices
        return 2 * results + sum(inputs[1:])
    if name == "dynamic_update_slice":
        return 2 * inputs[1] + sum(inputs[2:])
    if name.startswith("scatter"):  # reads and writes the places it touches; reads updates and indices
        return 3 * inputs[2] + inputs[1]
    distinct = {id(v): n for v, n in zip(eqn.invars, inputs) if not hasattr(v, "val")}
    return sum(distinct.values()) + results


# Rules: an equation without a jaxpr inside -> FLOPs, or a Cost where there is more to say -------------------


def _complex(eqn: Any) -> bool:
    return getattr(eqn.invars[0].aval.dtype, "kind", "") == "c"


def _each(real: int, of_complex: int) -> Callable:
    return lambda eqn: _out(eqn) * (of_complex if _complex(eqn) else real)


def _operand(index: int) -> Callable:
    return lambda eqn: _in(eqn, index)


def _transcendental(eqn: Any) -> Cost:
    return Cost(0, _out(eqn))


def _series(eqn: Any) -> Cost:
    return Cost(0, _out(eqn), notes=(f"`{eqn.primitive.name}`: a series, counted as one operation",))


def _magnitude(eqn: Any) -> Cost:
    return Cost(3 * _out(eqn), _out(eqn)) if _complex(eqn) else Cost(_out(eqn))  # sqrt(re^2 + im^2)


def _integer_pow(eqn: Any) -> int:
    """By repeated squaring; a negative power divides once more."""
    y = abs(eqn.params["y"])
    products = max(0, y.bit_length() - 1 + y.bit_count() - 1)
    return products * _each(1, 6)(eqn) + (_each(1, 11)(eqn) if eqn.params["y"] < 0 else 0)


def _polynomial(eqn: Any) -> int:
    """Horner's rule; the operands are x and the coefficients."""
    return (len(eqn.invars) - 2) * _each(2, 8)(eqn)


def _reduction(real: int, of_complex: int) -> Callable:
    return lambda eqn: max(0, _in(eqn) - _out(eqn)) * (of_complex if _complex(eqn) else real)


def _cumulative(real: int, of_complex: int) -> Callable:
    """One element after the other; a parallel scan does more."""

    def rule(eqn: Any) -> int:
        joins = _in(eqn) - _in(eqn) // max(1, eqn.invars[0].aval.shape[eqn.params["axis"]])
        return joins * (of_complex if _complex(eqn) else real)

    return rule


def _cumlogsumexp(eqn: Any) -> Cost:
    joins = _cumulative(1, 1)(eqn)
    return Cost(4 * joins, 2 * joins)  # max(a, b) + log1p(exp(-|a - b|))


def _window(eqn: Any) -> int:
    return (math.prod(eqn.params["window_dimensions"]) - 1) * _each(1, 2)(eqn)


def _select_and_scatter_add(eqn: Any) -> int:
    """For each source element: all but one comparison in its window, and one addition."""
    return _in(eqn) * math.prod(eqn.params["window_dimensions"])


def _collective(eqn: Any) -> int:
    """Joining over a named axis: one operation an element of the operand, on every shard (XLA: the same)."""
    return sum(_size(v.aval) for v in eqn.invars)


def _psum(eqn: Any) -> int:
    """The same; where `vmap` made the named axis a dimension of the array, a plain reduction."""
    named = any(isinstance(axis, str) for axis in eqn.params["axes"])
    return sum(_size(a.aval) - (0 if named else _size(b.aval)) for a, b in zip(eqn.invars, eqn.outvars))


def _multiply_add(eqn: Any) -> int:
    return 8 if _complex(eqn) else 2


def _dot(eqn: Any) -> int:
    """2 * elements of the result * length of what is contracted. Batch dimensions are in the result."""
    (contract, _), _ = eqn.params["dimension_numbers"]
    return _multiply_add(eqn) * _out(eqn) * math.prod(eqn.invars[0].aval.shape[d] for d in contract)


def _ragged_dot(eqn: Any) -> int:
    """As if the groups filled their dimension; when it is contracted, each group contracts its own part."""
    dims, lhs, groups = eqn.params["ragged_dot_dimension_numbers"], eqn.invars[0].aval, eqn.invars[2].aval
    (contract, _), _ = dims.dot_dimension_numbers
    work = _multiply_add(eqn) * _out(eqn) * math.prod(lhs.shape[d] for d in contract)
    return work // max(1, groups.shape[-1]) if set(dims.lhs_ragged_dimensions) <= set(contract) else work


def _bcoo_dot(eqn: Any) -> int:
    """A multiply-add for each stored element and each free column of the dense side."""
    (_, contract), (_, batch) = eqn.params["dimension_numbers"]
    free = (n for d, n in enumerate(eqn.invars[-1].aval.shape) if d not in (*contract, *batch))
    return _multiply_add(eqn) * _in(eqn) * math.prod(free)


def _convolution(eqn: Any) -> int:
    """2 * elements of the result * elements of the kernel * input channels of a group, padding and all.

    Zeros that dilate the input (a transposed convolution) are no work, as XLA sees it too.
    """
    kernel, out, p = eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape, eqn.params
    _, in_channels, *kernel_dims = p["dimension_numbers"].rhs_spec
    batch, out_channels, *out_dims = p["dimension_numbers"].out_spec
    taps = map(
        _taps,
        (out[d] for d in out_dims),
        (kernel[d] for d in kernel_dims),
        p["window_strides"],
        (low for low, _ in p["padding"]),
        p["lhs_dilation"],
        p["rhs_dilation"],
    )
    return _multiply_add(eqn) * out[batch] * out[out_channels] * kernel[in_channels] * math.prod(taps)


def _taps(out: int, kernel: int, stride: int, low: int, input_dilation: int, kernel_dilation: int) -> int:
    """Pairs of an output and a kernel element, along one dimension, that meet an element of the input."""
    if input_dilation == 1:
        return out * kernel
    starts = np.bincount((np.arange(out) * stride - low) % input_dilation, minlength=input_dilation)
    needed = np.bincount(-np.arange(kernel) * kernel_dilation % input_dilation, minlength=input_dilation)
    return int(starts @ needed)


def _sort(eqn: Any) -> int:
    """n log2 n comparisons for each line of n."""
    return math.ceil(_in(eqn) * math.log2(max(1, eqn.invars[0].aval.shape[eqn.params["dimension"]])))


def _top_k(eqn: Any) -> int:
    """n log2 k comparisons, with a heap of the k best; at least n."""
    return math.ceil(_in(eqn) * max(1.0, math.log2(max(1, eqn.params["k"]))))


def _fft(eqn: Any) -> int:
    """5 n log2 n for n complex points, half of it when one side is real: the convention of fftw.org/speed."""
    points = max(_in(eqn), _out(eqn)) * math.log2(max(1, math.prod(eqn.params["fft_lengths"])))
    return round((2.5 if int(eqn.params["fft_type"]) >= 2 else 5) * points)


# Dense matrices: leading terms, from Golub and Van Loan, "Matrix Computations", and LAPACK Working Note 41.


def _matrix(formula: Callable[[int, int, dict], float]) -> Callable:
    """A rule from a formula in rows, columns and params; for a batch, and four times that when complex."""

    def rule(eqn: Any) -> Cost:
        *batch, rows, columns = eqn.invars[0].aval.shape
        work = math.prod(batch) * formula(rows, columns, eqn.params) * (4 if _complex(eqn) else 1)
        return Cost(round(work), notes=(f"`{eqn.primitive.name}`: leading terms only",))

    return rule


def _lu(m: int, n: int, params: dict) -> float:
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 / 3 * k**3


def _reflect(m: int, n: int, params: dict) -> float:
    """To find the Householder reflectors that make a matrix triangular."""
    return 2 * max(m, n) * min(m, n) ** 2 - 2 / 3 * min(m, n) ** 3


def _unroll(m: int, n: int, k: int) -> float:
    """To form an m by n matrix from k reflectors."""
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 / 3 * k**3


def _qr(m: int, n: int, params: dict) -> float:
    k = min(m, n)
    return _reflect(m, n, params) + _unroll(m, m if params["full_matrices"] else k, k)


def _svd(m: int, n: int, params: dict) -> float:
    m, n = max(m, n), min(m, n)
    if not params["compute_uv"]:
        return 4 * m * n**2 - 4 / 3 * n**3
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3 if params["full_matrices"] else 14 * m * n**2 + 8 * n**3


def _eig(m: int, n: int, params: dict) -> float:
    return (25 if any(value is True for key, value in params.items() if "vectors" in key) else 10) * n**3


def _householder_product(eqn: Any) -> Cost:
    return _matrix(lambda m, n, params: _unroll(m, n, eqn.invars[1].aval.shape[-1]))(eqn)


def _ormqr(eqn: Any) -> Cost:
    """Product of Q, kept as k reflectors, and another matrix."""
    m, n = eqn.invars[2].aval.shape[-2:]
    k, other = eqn.invars[1].aval.shape[-1], n if eqn.params["left"] else m
    return _matrix(lambda *_: 4 * m * n * k - 2 * other * k**2)(eqn)


def _triangular_solve(eqn: Any) -> int:
    """n^2 for each right-hand side (XLA: twice that)."""
    return _multiply_add(eqn) // 2 * _in(eqn, 1) * eqn.invars[0].aval.shape[-1]


def _tridiagonal_solve(eqn: Any) -> int:
    """Thomas' algorithm: 8 for each unknown."""
    return _multiply_add(eqn) * 4 * _in(eqn, 3)


# Random bits are integer operations. A block of Threefry-2x32 with 20 rounds makes two 32-bit words from 117:
# add, rotate (3) and xor in each round, and keys at the start and every fourth round (2 + 5 * 3). Philox with
# 10 rounds makes a word from 25. (XLA: one transcendental a word.)


def _block(operations: int) -> Callable:
    return lambda eqn: operations * _out(eqn)


def _words(aval: Any) -> int:
    return -(-_nbytes(aval) // 4)


def _threefry(words: int) -> int:
    return -(-117 * words // 2)


def _random_bits(eqn: Any) -> int:
    """JAX's threefry spends a block on each number and joins its two words; others use every word."""
    threefry = "fry" in str(eqn.invars[0].aval.dtype)
    return 118 * _out(eqn) if threefry else 25 * _words(eqn.outvars[0].aval)


def _new_keys(eqn: Any) -> int:
    return _threefry(_words(eqn.outvars[0].aval))


def _rng_bit_generator(eqn: Any) -> int:
    words = _words(eqn.outvars[1].aval)
    return _threefry(words) if "THREE_FRY" in str(eqn.params["algorithm"]) else 25 * words


# The table --------------------------------------------------------------------------------------------------

# Remarks to the compiler: nothing is computed and nothing moves.
ANNOTATIONS = frozenset(
    """
    stop_gradient optimization_barrier name sharding_constraint layout_constraint with_memory_space_constraint
    pvary pcast preduced vary_unreduced_cast vary_unreduced_cast_p reduced_vary_cast reduced_vary_cast_p
    create_token after_all add_dependency tie create_linear xla_metadata_value inspect_sharding mesh_cast
    multiple_of has_memory_space remove_memory_space shape_assertion pin unpin freeze free_ref unreachable
    delay dce_sink trace_value
    """.split()
)

# Data is moved or made: bytes, no FLOPs.
MOVES = """
    reshape squeeze expand_dims transpose rev broadcast_in_dim broadcast_to concatenate stack unstack split
    pad tile roll slice dynamic_slice dynamic_update_slice gather scatter iota iota_2x32_shape empty empty2
    zeros_like copy copy_p device_put reshard convert_element_type bitcast_convert_type bitcast real imag
    complex to_edtype from_edtype pack_dtype unpack_dtype pack_elementwise unpack_elementwise einshape_lo
    relayout dim_as_value dimension_size platform_index lu_pivots_to_permutation random_wrap random_unwrap
    random_clone all_gather all_gather_start all_gather_done all_gather_invariant all_gather_reduced psend
    all_gather_reduced_start all_to_all all_to_all_start all_to_all_done ragged_all_to_all pbroadcast pgather
    ppermute ppermute_start ppermute_done psum_done reduce_scatter_done precv axis_index
    get swap new_ref empty_ref get_global masked_load masked_swap program_id num_programs dma_start dma_wait
    semaphore_read semaphore_signal semaphore_wait get_barrier_semaphore
    debug_callback debug_print check bcoo_fromdense bcoo_extract bcoo_transpose bcsr_fromdense bcsr_extract
    """.split()

TRANSCENDENTALS = """
    exp exp2 expm1 log log1p log2 logistic sqrt rsqrt cbrt pow sin cos tan asin acos atan atan2 sinh cosh tanh
    asinh acosh atanh erf erfc erf_inv lgamma digamma polygamma zeta bessel_i0e bessel_i1e
    """.split()

SERIES = "igamma igammac igamma_grad_a random_gamma_grad regularized_incomplete_beta".split()

# Operations for each element of the result: of a real one, of a complex one.
ARITHMETIC = {
    **dict.fromkeys("add sub add_any neg".split(), (1, 2)),
    "mul": (1, 6),
    "square": (1, 6),
    "div": (1, 11),
    "reciprocal": (1, 11),
    "one_minus_square": (2, 8),
    "eq": (1, 3),
    "ne": (1, 3),
    "sign": (1, 6),
    "conj": (0, 1),
    "clamp": (2, 2),  # a minimum and a maximum (XLA: 1)
    **dict.fromkeys(
        """
        max min rem lt le gt ge lt_to le_to eq_to select_n and or xor not shift_left shift_right_logical
        shift_right_arithmetic mulhi population_count clz floor ceil round is_finite nextafter
        reduce_precision stochastic_round
        """.split(),
        (1, 1),
    ),
}

RULES: dict[str, Callable[[Any], int | Cost]] = {
    **dict.fromkeys((*ANNOTATIONS, *MOVES), lambda eqn: 0),
    **{name: _each(*operations) for name, operations in ARITHMETIC.items()},
    **dict.fromkeys(TRANSCENDENTALS, _transcendental),
    **dict.fromkeys(SERIES, _series),
    "abs": _magnitude,
    "integer_pow": _integer_pow,
    "polynomial": _polynomial,
    # elements joined
    **dict.fromkeys("reduce_sum reduce_and reduce_or reduce_xor".split(), _reduction(1, 2)),
    **dict.fromkeys("reduce_max reduce_min argmax argmin".split(), _reduction(1, 1)),
    "reduce_prod": _reduction(1, 6),
    "cumsum": _cumulative(1, 2),
    "cumprod": _cumulative(1, 6),
    "cummax": _cumulative(1, 1),
    "cummin": _cumulative(1, 1),
    "cumlogsumexp": _cumlogsumexp,
    **dict.fromkeys("reduce_window_sum reduce_window_max reduce_window_min".split(), _window),
    "select_and_gather_add": _window,
    "select_and_scatter_add": _select_and_scatter_add,
    **dict.fromkeys("scatter-add scatter-sub scatter-mul scatter-min scatter-max".split(), _operand(2)),
    "addupdate": _operand(1),
    "accum_grad_in_ref": _operand(1),
    "bcoo_todense": _operand(0),
    "sort": _sort,
    "top_k": _top_k,
    "approx_top_k": _top_k,
    **dict.fromkeys("psum psum_invariant pmax pmin".split(), _psum),
    **dict.fromkeys(
        """
        reduce_scatter reduce_scatter_start psum_start psum_invariant_start unreduced_psum unreduced_pmax
        unreduced_pmin unreduced_reduce_scatter
        """.split(),
        _collective,
    ),
    # products
    "dot_general": _dot,
    "scaled_dot": _dot,
    "ragged_dot_general": _ragged_dot,
    "bcoo_dot_general": _bcoo_dot,
    "conv_general_dilated": _convolution,
    "fft": _fft,
    # dense matrices
    "cholesky": _matrix(lambda m, n, params: n**3 / 3),
    "lu": _matrix(_lu),
    "qr": _matrix(_qr),
    "geqrf": _matrix(_reflect),
    "geqp3": _matrix(_reflect),
    "householder_product": _householder_product,
    "ormqr": _ormqr,
    "svd": _matrix(_svd),
    "eig": _matrix(_eig),
    "schur": _matrix(_eig),
    "eigh": _matrix(lambda m, n, params: 9 * n**3),
    "hessenberg": _matrix(lambda m, n, params: 10 / 3 * n**3),
    "tridiagonal": _matrix(lambda m, n, params: 4 / 3 * n**3),
    "cholesky_update": _matrix(lambda m, n, params: 3 * n**2),
    "symmetric_product": _matrix(lambda m, n, params: 2 * m**2 * n),
    "triangular_solve": _triangular_solve,
    "tridiagonal_solve": _tridiagonal_solve,
    # random bits
    "threefry2x32": _block(117),
    "threefry4x32": _block(229),
    "philox2x32": _block(50),
    "philox4x32": _block(100),
    "random_bits": _random_bits,
    "random_split": _new_keys,
    "random_fold_in": _new_keys,
    "random_seed": _block(2),
    "rng_bit_generator": _rng_bit_generator,
    "rng_uniform": _block(25),
}
