"""A Hypothesis strategy for the programs of `program_rules`: `@given(programs())`.

Types are tracked while drawing, so every program that comes out is valid. A step that would make values too
large or too inexact is simply left out. Choices come simplest first, so Hypothesis shrinks well.
"""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from program_rules import FAMILIES, RULES, Block, Program, Step, TooWild, Type, infer

KINDS = {"f": ("float32", "float16", "bfloat16"), "i": ("int32",), "b": ("bool",), "c": ("complex64",)}
KIND = {dtype: kind for kind, dtypes in KINDS.items() for dtype in dtypes}
CASTS = ["float32", "int32", "bfloat16", "float16", "complex64"]
BLOCKS = {op: 1 for op in FAMILIES["control"]} | {"cond": 2, "switch": 3}  # bodies each has
OPS = {kind: {family: [op for op, rule in rules.items() if kind in rule.kinds]
              for family, rules in FAMILIES.items()} for kind in KINDS}
INNER = {kind: {family: ops for family, ops in families.items() if family != "control"}
         for kind, families in OPS.items()}
COUNT = Type((), "int32", 5.0)
FREE = {"map", "vmap", "jit", "checkpoint"}  # whose body may return anything
DEPTH = 2  # loops in loops in the program, no deeper
TRIES = 3  # a step that does not fit is drawn again, this often
shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@st.composite
def programs(draw, max_steps=14):
    """Programs of one to three inputs and up to `max_steps` steps (and those inside loops and branches)."""
    dtypes = draw(st.lists(st.sampled_from(CASTS + ["bool"]), min_size=1, max_size=3))
    inputs = (COUNT, Type((), "bool", 1.0))  # for loops and branches that depend on data
    inputs += tuple(Type(draw(shapes), dtype, 5.0 if dtype == "int32" else 3.0) for dtype in dtypes)
    steps, types = [], list(inputs)
    for _ in range(draw(st.integers(2, max_steps))):
        add_step(draw, steps, types, DEPTH)
    assume(steps)
    made = range(len(inputs), len(types))
    outputs = (made[-1], draw(st.sampled_from(made)))
    return Program(inputs, tuple(steps), outputs, draw(st.integers(0, 99)))


def add_step(draw, steps, types, depth):
    """Draw one step and append it and its Type; nothing, when no try fits."""
    for _ in range(TRIES):
        if try_step(draw, steps, types, depth):
            return


def try_step(draw, steps, types, depth):
    chosen = len(types) - 1 - draw(st.integers(0, len(types) - 3))  # the newest value is the simplest choice
    x = types[chosen]
    families = (OPS if depth else INNER)[KIND[x.dtype]]
    op = draw(st.sampled_from(draw(st.sampled_from([ops for ops in families.values() if ops]))))
    new_steps, new_types = [], list(types)

    def emit(step):
        new_types.append(infer([step], new_types)[-1])
        new_steps.append(step)
        return len(new_types) - 1

    try:
        choice = CHOICES[RULES[op].draw](draw, x, new_types, emit)
        if choice is None:
            return False
        others, params = choice
        blocks = tuple(draw_block(draw, op, x, new_types, depth - 1) for _ in range(BLOCKS.get(op, 0)))
        emit(Step(op, (chosen, *others), params, blocks))
    except TooWild:
        return False
    steps += new_steps
    types += new_types[len(types):]
    return True


def draw_block(draw, op, x, types, depth):
    """The body of a loop or a branch; where the operation needs it, with the type of its first input."""
    item = x._replace(shape=x.shape[1:])
    inputs = {"scan": [item, item], "map": [item], "vmap": [item], "fori": [x, COUNT]}.get(op, [x])
    steps, inside = [], [*types, *inputs]
    for _ in range(draw(st.integers(1, 3))):
        add_step(draw, steps, inside, depth)
    like = [i for i in range(len(types), len(inside)) if inside[i][:2] == inputs[0][:2]]
    return Block(tuple(steps), len(inside) - 1 if op in FREE else like[-1])


# How each operation's other operands and parameters are drawn: -> (numbers of values, parameters), or None

def pick(draw, types, fits):
    """The number of a value whose Type fits, newest first."""
    fitting = [i for i in reversed(range(len(types))) if fits(types[i])]
    return draw(st.sampled_from(fitting)) if fitting else None


def broadcasts(a, b):
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b)))


def draw_number(draw, x, types, emit):
    numbers = [2, 1, 0, -1, 3] if x.dtype == "int32" else [0.5, 2.0, 1.0, 0.0, -1.0]
    return (), (draw(st.sampled_from(numbers)),)


def draw_partner(draw, x, types, emit):
    return (pick(draw, types, lambda t: t.dtype == x.dtype and broadcasts(t.shape, x.shape)),), ()


def draw_mask(draw, x, types, emit):
    (other,), _ = draw_partner(draw, x, types, emit)
    shape = np.broadcast_shapes(x.shape, types[other].shape)
    mask = pick(draw, types, lambda t: t.dtype == "bool" and broadcasts(t.shape, shape))
    return None if mask is None else ((other, mask), ())


def draw_axis(draw, x, types, emit):
    return ((), (draw(st.integers(0, len(x.shape) - 1)),)) if x.shape else None


def draw_permutation(draw, x, types, emit):
    return (), (tuple(draw(st.permutations(range(len(x.shape))))),)


def draw_shape(draw, x, types, emit):
    size = int(np.prod(x.shape))
    first = draw(st.sampled_from([n for n in (size, 1, 2, 3, 4, 5) if size % n == 0]))
    return (), ((first, size // first),)


def draw_index(draw, x, types, emit):
    return ((), (draw(st.integers(0, x.shape[0] - 1)),)) if x.shape else None


def draw_positions(draw, x, types, emit):
    positions = pick(draw, types, lambda t: t.dtype == "int32")
    return ((positions,), ()) if x.shape and positions is not None else None


def draw_twin(draw, x, types, emit):
    fits = lambda t: t.dtype == x.dtype and len(t.shape) == len(x.shape) and t.shape[1:] == x.shape[1:]
    return ((pick(draw, types, fits),), ()) if x.shape else None


def draw_factor(draw, x, types, emit):
    fits = lambda t: t.dtype == x.dtype and len(t.shape) in (1, 2) and t.shape[:1] == x.shape[-1:]
    factor = pick(draw, types, fits)
    return ((factor,), ()) if x.shape and factor is not None else None


def scalar(draw, types, emit, dtype, reduction):
    """A scalar of that type; made from an array where there is no scalar."""
    number = pick(draw, types, lambda t: t.dtype == dtype)
    return emit(Step(reduction, (number,), (None,))) if number is not None and types[number].shape else number


def draw_predicate(draw, x, types, emit):
    number = scalar(draw, types, emit, "bool", "any")
    return None if number is None else ((number,), ())


def draw_count(draw, x, types, emit):
    number = scalar(draw, types, emit, "int32", "max")
    return None if number is None else ((number,), ())


CHOICES = {
    "": lambda draw, x, types, emit: ((), ()),
    "dtype": lambda draw, x, types, emit: ((), (draw(st.sampled_from(CASTS)),)),
    "number": draw_number,
    "divisor": lambda draw, x, types, emit: ((), (draw(st.integers(1, 3)),)),
    "partner": draw_partner,
    "mask": draw_mask,
    "axis": draw_axis,
    "matrix": lambda draw, x, types, emit: ((), ()) if len(x.shape) > 1 else None,
    "permutation": draw_permutation,
    "shape": draw_shape,
    "length": lambda draw, x, types, emit: ((), (draw(st.integers(1, 4)),)) if len(x.shape) < 3 else None,
    "index": draw_index,
    "positions": draw_positions,
    "twin": draw_twin,
    "factor": draw_factor,
    "predicate": draw_predicate,
    "number of branch": draw_count,
    "trips from data": draw_count,
    "trips": lambda draw, x, types, emit: ((), (draw(st.integers(0, 3)),)),
    "rows": lambda draw, x, types, emit: ((), ()) if x.shape else None,
    "body": lambda draw, x, types, emit: ((), ()),
}
