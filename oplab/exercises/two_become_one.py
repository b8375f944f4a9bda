"""Read: an operator in the graph that no machine ever executes."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from ..walk import walk
from .exercise import Exercise

STARTER = '''\
def f(x):
    """Two `exp` in the jaxpr, one in the optimised HLO; x is (1000,)."""
    return jnp.exp(x)'''


def f(x):
    return jnp.exp(x) / (1 + jnp.exp(x))


def faults(f: Callable) -> Iterator[str]:
    w = walk(f, jax.ShapeDtypeStruct((1000,), jnp.float32))
    written = int((w.jaxpr.table.primitive == "exp").sum())
    if written != 2:
        yield f"its jaxpr has {written} equation{'s' * (written != 1)} `exp`, expected two."
    left = int((w.hlo.table.opcode == "exponential").sum())
    if left > 1:
        yield f"its optimised HLO still has {left} `exponential`: the two compute different things."
    if left < 1:
        exps = w.fates[w.fates.primitive == "exp"]
        ends = ", ".join(f"{row.equation} {row.fate}" for row in exps.itertuples())
        yield f"no `exponential` is left at all ({ends}): the result must need one of them."


EXERCISE = Exercise(
    name="two_become_one", level=1, solution="f", starter=STARTER, size="one line", faults=faults,
    task="Write a function in which tracing keeps two exponentials and the compiler keeps one of them.",
    hints=(
        "Look at oplab.walk(f, x).fates: which word says that an equation became part of another?",
        "Tracing writes down what it is told, even twice. The compiler looks for equal work on equal "
        "numbers.",
        "Use jnp.exp(x) twice, on the same x, and combine the two: a / (1 + a) will do.",
    ),
    notice="Common subexpression elimination: the graph says what you wrote, the HLO what will be done.",
    code=inspect.getsource(f),
)
