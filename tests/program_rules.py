"""Small programs as plain data, and what their steps mean: to JAX, to NumPy, and to an error analysis.

A program is a tuple of steps; a step names an operation and the values it reads by number (the inputs come
first, then the results of the steps so far). `program_machines` has the two that run them: JAX, the oracle.

How far the two may lie apart is not guessed: `infer` carries a bound on every value and on its rounding error
through the program. Where the error is 0 (integers, inputs, whatever only moved) the results must be equal,
and only there may a program compare, round or take an argmax, because a jump magnifies any error.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from program_machines import EPS, JAX, NUMPY

LIMIT = 64  # no floating value grows beyond it: float16 is far from overflow, sin and cos keep their digits


class Step(NamedTuple):
    op: str
    operands: tuple = ()  # numbers of values
    params: tuple = ()
    blocks: tuple = ()  # bodies of loops and branches


class Block(NamedTuple):
    """Steps that see every value made before them, and then the block's own inputs."""
    steps: tuple
    output: int


class Program(NamedTuple):
    inputs: tuple  # of Type
    steps: tuple
    outputs: tuple  # numbers of values
    seed: int = 0


class Type(NamedTuple):
    """What is known of a value before it is computed."""
    shape: tuple
    dtype: str
    bound: float  # no element is larger
    error: float = 0.0  # no element lies further from the oracle's


class TooWild(Exception):
    """A step would make a value too large, or too inexact to judge."""


def evaluate(machine, steps, values):
    """All values of a program: the given ones and one more per step."""
    values = list(values)
    for step in steps:
        bodies = [block_function(machine, block, tuple(values)) for block in step.blocks]
        operands = [values[i] for i in step.operands]
        values.append(RULES[step.op].run(machine, *operands, *step.params, *bodies))
    return values


def block_function(machine, block, outer):
    return lambda *inputs: evaluate(machine, block.steps, (*outer, *inputs))[block.output]


def jax_function(program):
    """The program as a function that `jax.jit` and `oplab.walk` take."""
    def run(*args):
        values = evaluate(JAX, program.steps, args)
        return tuple(values[i] for i in program.outputs)
    return run


def arguments(program):
    """Quarters between -2 and 2 (and small integers, and truth values): exact in every type."""
    grid = np.random.default_rng(program.seed)
    for t in program.inputs:
        x = grid.integers(-8, 9, t.shape) / 4
        if t.dtype == "complex64":
            x = x + 1j * grid.integers(-8, 9, t.shape) / 4
        yield x > 0 if t.dtype == "bool" else np.rint(x * 2) if t.dtype == "int32" else x


def jax_arguments(program):
    return [jnp.asarray(x, t.dtype) for x, t in zip(arguments(program), program.inputs)]


def oracle(program):
    """The outputs in float64, complex128, int32 and bool."""
    args = [np.asarray(x, NUMPY.types[t.dtype]) for x, t in zip(arguments(program), program.inputs)]
    with np.errstate(over="ignore"):  # int32 wraps around, as in XLA
        values = evaluate(NUMPY, program.steps, args)
    return [np.asarray(values[i]) for i in program.outputs]


# The error analysis: the third way to run the same steps

def infer(steps, types):
    """The Type of every value; TooWild where a step goes too far."""
    types = list(types)
    for step in steps:
        rule, operands = RULES[step.op], [types[i] for i in step.operands]
        if step.blocks:
            result = rule.size(*operands, *step.params, *(infer_block(b, tuple(types)) for b in step.blocks))
        else:
            zeros = [np.zeros(t.shape, NUMPY.types[t.dtype]) for t in operands]
            shape = np.shape(rule.run(NUMPY, *zeros, *step.params))  # NumPy knows every shape rule
            result = Type(shape, *rule.size(*operands, *step.params))
        types.append(tamed(result))
    return types


def infer_block(block, outer):
    return lambda *inputs: infer(block.steps, (*outer, *inputs))[block.output]


def tamed(t):
    if not EPS[t.dtype]:
        return t._replace(bound=min(t.bound, 2**31))
    if t.bound > LIMIT or t.error > 0.1 * max(t.bound, 1) or np.prod(t.shape) > 400:
        raise TooWild
    return t


def inexact(dtype, bound, error, roundings=4):
    """A result that was rounded: `roundings` units in the last place of the largest value it can have."""
    return dtype, bound, error + roundings * EPS[dtype] * bound


def smooth(bound, slope):
    return lambda x, *_: inexact(x.dtype, bound(x.bound), slope(x.bound) * x.error)


def same(*types_and_params):
    """Only moves values, or picks among them."""
    types = [t for t in types_and_params if isinstance(t, Type)]
    return types[-1].dtype, max(t.bound for t in types), max(t.error for t in types)


def exact(dtype, bound):
    """Jumps: allowed on exact values only."""
    def size(*types_and_params):
        types = [t for t in types_and_params if isinstance(t, Type)]
        if any(t.error for t in types):
            raise TooWild
        return dtype or types[0].dtype, bound(types[0].bound), 0.0
    return size


def added(x, y):
    return inexact(x.dtype, x.bound + y.bound, x.error + y.error)


def multiplied(x, y, *_, terms=1):
    return inexact(x.dtype, terms * x.bound * y.bound,
                   terms * (x.error * y.bound + y.error * x.bound + x.error * y.error))


def summed(x, axis):
    count = np.prod(x.shape) if axis is None else x.shape[axis]
    return inexact(x.dtype, count * x.bound, count * x.error)


def cast(x, dtype):
    if dtype == "int32" and x.error:
        raise TooWild
    return (dtype, x.bound, 0.0) if not x.error else inexact(dtype, x.bound, x.error)


def worst(*types):
    return types[-1]._replace(bound=max(t.bound for t in types), error=max(t.error for t in types))


def looped(x, trips, body, *more):
    seen = [x]
    for _ in range(trips):
        seen.append(body(seen[-1], *more))
    return worst(*seen)


def rows(x):
    return x._replace(shape=x.shape[1:])


def batched(x, body):
    y = body(rows(x))
    return y._replace(shape=(x.shape[0], *y.shape))


class Rule(NamedTuple):
    kinds: str  # of the first operand: f(loat), i(nt), b(ool), c(omplex)
    draw: str  # how tests/strategies.py chooses the other operands and the parameters
    run: Callable  # (machine, *operands, *params, *bodies)
    size: Callable  # (*types, *params) -> dtype, bound, error; with bodies -> Type


def named(name):
    return lambda m, *operands: getattr(m.np, name)(*operands)


FAMILIES = {
    "unary": {  # elementwise
        "negative": Rule("fic", "", named("negative"), same),
        "abs": Rule("fi", "", named("abs"), same),
        "relu": Rule("fi", "", lambda m, x: m.relu(x), same),
        "tanh": Rule("f", "", named("tanh"), smooth(lambda b: 1, lambda b: 1)),
        "sin": Rule("f", "", named("sin"), smooth(lambda b: 1, lambda b: 1)),
        "cos": Rule("f", "", named("cos"), smooth(lambda b: 1, lambda b: 1)),
        "exp": Rule("f", "", named("exp"), smooth(np.exp, np.exp)),
        "log1p": Rule("f", "", lambda m, x: m.np.log1p(abs(x)), smooth(np.log1p, lambda b: 1)),
        "square": Rule("fic", "", named("square"), smooth(lambda b: b * b, lambda b: 2.2 * b)),
        "clip": Rule("fi", "", lambda m, x: m.np.clip(x, -1, 1), same),
        "floor": Rule("f", "", named("floor"), exact(None, lambda b: b + 1)),
        "sign": Rule("fi", "", named("sign"), exact(None, lambda b: 1)),
        "logical_not": Rule("b", "", named("logical_not"), same),
        "conj": Rule("c", "", named("conj"), same),
        "real": Rule("c", "", named("real"), lambda x: ("float32", *same(x)[1:])),
        "imag": Rule("c", "", named("imag"), lambda x: ("float32", *same(x)[1:])),
        "modulus": Rule("c", "", named("abs"), lambda x: inexact("float32", x.bound, x.error)),
        "astype": Rule("fib", "dtype", lambda m, x, dtype: x.astype(m.types[dtype]), cast),
    },
    "number": {  # some of these the compiler can do without
        "shift": Rule("fic", "number", lambda m, x, c: x + c,
                      lambda x, c: inexact(x.dtype, x.bound + abs(c), x.error)),
        "scale": Rule("fic", "number", lambda m, x, c: x * c,
                      lambda x, c: inexact(x.dtype, x.bound * abs(c), x.error * abs(c))),
        "floor_divide": Rule("i", "divisor", lambda m, x, c: x // c, same),
        "remainder": Rule("i", "divisor", lambda m, x, c: x % c, same),
        "right_shift": Rule("i", "divisor", named("right_shift"), same),
    },
    "binary": {  # elementwise
        "add": Rule("fic", "partner", named("add"), added),
        "subtract": Rule("fic", "partner", named("subtract"), added),
        "multiply": Rule("fic", "partner", named("multiply"), multiplied),
        "maximum": Rule("fi", "partner", named("maximum"), same),
        "minimum": Rule("fi", "partner", named("minimum"), same),
        "less": Rule("fi", "partner", named("less"), exact("bool", lambda b: 1)),
        "equal": Rule("fic", "partner", named("equal"), exact("bool", lambda b: 1)),
        "logical_and": Rule("b", "partner", named("logical_and"), same),
        "logical_xor": Rule("b", "partner", named("logical_xor"), same),
        "bitwise_or": Rule("i", "partner", named("bitwise_or"), exact("int32", lambda b: 2**31)),
        "where": Rule("fibc", "mask", lambda m, x, y, mask: m.np.where(mask, x, y),
                      lambda x, y, mask: same(y, x)),
    },
    "reduce": {  # along an axis
        "sum": Rule("fic", "axis", lambda m, x, axis: m.np.sum(x, axis, dtype=x.dtype), summed),
        "mean": Rule("f", "axis", named("mean"), smooth(lambda b: b, lambda b: 1)),
        "max": Rule("fi", "axis", named("max"), same),
        "min": Rule("fi", "axis", named("min"), same),
        "any": Rule("b", "axis", named("any"), same),
        "all": Rule("b", "axis", named("all"), same),
        "argmax": Rule("fi", "axis", lambda m, x, axis: m.np.argmax(x, axis).astype(m.np.int32),
                       exact("int32", lambda b: 400)),
        "cumsum": Rule("fi", "axis", lambda m, x, axis: m.np.cumsum(x, axis, dtype=x.dtype), summed),
        "softmax": Rule("f", "matrix", lambda m, x: m.softmax(x), smooth(lambda b: 1, lambda b: 2)),
        "sort": Rule("fi", "axis", named("sort"), same),
    },
    "move": {
        "transpose": Rule("fibc", "permutation", named("transpose"), same),
        "reshape": Rule("fibc", "shape", named("reshape"), same),
        "broadcast": Rule("fibc", "length", lambda m, x, n: m.np.broadcast_to(x, (n, *x.shape)), same),
        "flip": Rule("fibc", "axis", named("flip"), same),
        "slice": Rule("fibc", "index", lambda m, x, i: x[i:], same),
        "row": Rule("fibc", "index", lambda m, x, i: x[i], same),
        "put": Rule("fibc", "index", lambda m, x, i: m.put(x, i), same),
        "take": Rule("fibc", "positions", lambda m, x, i: m.np.take(x, i % x.shape[0], axis=0),
                     lambda x, i: same(x)),
        "concatenate": Rule("fibc", "twin", lambda m, x, y: m.np.concatenate([x, y]), same),
    },
    "product": {
        "matmul": Rule("fic", "factor", named("matmul"), lambda x, y: multiplied(x, y, terms=x.shape[-1])),
        "gram": Rule("fic", "matrix", lambda m, x: x @ m.np.swapaxes(x, -1, -2),
                     lambda x: multiplied(x, x, terms=x.shape[-1])),
    },
    "control": {  # programs within programs
        "cond": Rule("fibc", "predicate", lambda m, x, p, yes, no: m.cond(p, yes, no, x),
                     lambda x, p, yes, no: worst(yes(x), no(x))),
        "switch": Rule("fibc", "number of branch", lambda m, x, i, *branches: m.switch(i, branches, x),
                       lambda x, i, *branches: worst(*(b(x) for b in branches))),
        "while": Rule("fibc", "trips from data", lambda m, x, n, body: m.loop(m.np.clip(n, 0, 3), body, x),
                      lambda x, n, body: looped(x, 3, body)),
        "fori": Rule("fibc", "trips", lambda m, x, n, body: m.fori(n, body, x),
                     lambda x, n, body: looped(x, n, body, Type((), "int32", n))),
        "scan": Rule("fibc", "rows", lambda m, x, body: m.scan(body, x[0], x),
                     lambda x, body: looped(rows(x), x.shape[0], body, rows(x))),
        "map": Rule("fibc", "rows", lambda m, x, body: m.map(body)(x), batched),
        "vmap": Rule("fibc", "rows", lambda m, x, body: m.vmap(body)(x), batched),
        "jit": Rule("fibc", "body", lambda m, x, body: m.jit(body)(x), lambda x, body: body(x)),
        "checkpoint": Rule("fibc", "body", lambda m, x, body: m.checkpoint(body)(x), lambda x, body: body(x)),
    },
}
RULES = {op: rule for family in FAMILIES.values() for op, rule in family.items()}
