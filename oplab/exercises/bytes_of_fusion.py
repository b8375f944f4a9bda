"""Read: what fusion saves, in bytes."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from ..walk import walk
from .exercise import Exercise

STARTER = '''\
def moved(n):
    """Bytes read and written for relu(x + 1) * 2, with x of n float32: (in three kernels, in one)."""
    return ..., ...'''

STEPS = (lambda x: x + 1, lambda x: jnp.maximum(x, 0), lambda x: x * 2)


def moved(n):
    array = 4 * n
    return 3 * (array + array), array + array  # each kernel reads one array and writes one


def faults(guess: Callable) -> Iterator[str]:
    for n in (1000, 12_345):
        x = jax.ShapeDtypeStruct((n,), jnp.float32)
        apart = sum(int(walk(step, x).summary()["bytes"].sum()) for step in STEPS)
        fused = int(walk(lambda x: STEPS[2](STEPS[1](STEPS[0](x))), x).summary()["bytes"].sum())
        said = guess(n)
        if not isinstance(said, tuple) or len(said) != 2 or None in said or ... in said:
            yield f"it returns {said!r}, expected two numbers: the bytes in three kernels, and in one."
        elif (4 * said[0], 4 * said[1]) == (apart, fused):
            yield f"at n={n} it says {said}: those are numbers, not bytes; a float32 has four."
        elif said[0] != apart:
            hint = " Each kernel reads as much as it writes." if 2 * said[0] == apart else ""
            yield f"at n={n} it says {said[0]} for three kernels, and the walk counts {apart}.{hint}"
        elif said[1] != fused:
            yield f"at n={n} it says {said[1]} for one kernel, and the walk counts {fused}."


EXERCISE = Exercise(
    name="bytes_of_fusion", level=1, solution="moved", starter=STARTER, size="one line", faults=faults,
    task="Three operators in three kernels, or in one: how many bytes cross between processor and memory?",
    hints=(
        "A kernel reads its operands from memory and writes its result there. Count arrays first, "
        "bytes later.",
        "Three kernels: three times in and out. One kernel: what stands between two operators never "
        "leaves it.",
        "An array has 4 · n bytes; three kernels move six arrays, one moves two.",
    ),
    notice="The same FLOPs with a third of the traffic: that is all that fusion does, and it is a lot.",
    code=inspect.getsource(moved),
)
