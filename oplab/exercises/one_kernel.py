"""Work with the compiler: one kernel instead of three."""

import inspect
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from ..walk import walk
from .exercise import Exercise

STARTER = '''\
def f(x):
    """tanh(2 x + 1), for x of (512, 512)."""
    doubled = jax.lax.map(lambda row: 2 * row, x)
    shifted = jax.lax.map(lambda row: row + 1, doubled)
    return jax.lax.map(jnp.tanh, shifted)'''


def f(x):
    return jnp.tanh(2 * x + 1)


def faults(f: Callable) -> Iterator[str]:
    x = jnp.linspace(-2, 2, 512 * 512).reshape(512, 512)
    got, right = np.asarray(f(x)), np.tanh(2 * np.asarray(x, np.float64) + 1)
    if got.shape != right.shape or np.abs(got - right).max() > 1e-5:
        yield "its numbers are not those of tanh(2 x + 1)."
    kernels = walk(f, x).summary()
    if len(kernels) > 1:
        of = "; ".join(f"{row.instruction} ({', '.join(row.equations) or 'made by the compiler'})"
                       for row in kernels.itertuples())
        yield f"it runs in {len(kernels)} kernels: {of}."


EXERCISE = Exercise(
    name="one_kernel", level=3, solution="f", starter=STARTER, size="two lines less", faults=faults,
    task=("Somebody wrote three loops over the rows, as one would in C. Write it so that one kernel "
          "does it all."),
    hints=(
        "oplab.walk(f, x).summary() has one row for each kernel. Which equations keep apart what "
        "could be one?",
        "XLA does not fuse across loops. An operator on the whole array is a loop that the compiler writes.",
        "jnp.tanh(2 * x + 1): three operators, each number by number, one loop.",
    ),
    notice="Operators on whole arrays fuse into one loop; loops of your own stand as you wrote them.",
    code=inspect.getsource(f),
)
