"""Work with the compiler: one program for every length of the loop."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .exercise import Exercise

STARTER = '''\
def power(x, n):
    """x multiplied by itself n times: x ** n for n of 0, 1, 2, ... It is jitted, and n is an array."""
    result = jnp.ones_like(x)
    for _ in range(n):
        result = result * x
    return result'''


def power(x, n):
    return jax.lax.fori_loop(0, n, lambda _, result: result * x, jnp.ones_like(x))


def faults(power: Callable) -> Iterator[str]:
    traces = []

    def watched(x, n):
        traces.append(n)
        return power(x, n)

    jitted, x = jax.jit(watched), jnp.array([1.5, -2.0, 0.5])
    for n in (0, 1, 5, 12):
        try:
            got = np.asarray(jitted(x, jnp.int32(n)))
        except jax.errors.TracerIntegerConversionError:
            yield "`range(n)` needs a number now, and under jit n is only known when the program runs."
            return
        if not np.allclose(got, np.asarray(x) ** n):
            yield f"x ** {n} of {x} is {got}, expected {np.asarray(x) ** n}."
    if len(traces) > 1:
        yield f"it was traced {len(traces)} times for four values of n."
    if "while" not in str(jax.make_jaxpr(power)(x, jnp.int32(3))):
        yield "its jaxpr has no loop: the number of products must be decided when it runs."


EXERCISE = Exercise(
    name="compiled_once", level=3, solution="power", starter=STARTER, size="one line", faults=faults,
    task=("Python's loop runs while tracing. Let the loop run in the program, so that one program "
          "fits every n."),
    hints=(
        "What does tracing know of n? Its shape and dtype, not its value.",
        "A loop whose length is data is an operator of its own: `while`, in the jaxpr.",
        "jax.lax.fori_loop(0, n, lambda i, result: result * x, jnp.ones_like(x)).",
    ),
    notice="One equation `while` holds the body once. Unrolled loops make programs long, and compile anew.",
    code=inspect.getsource(power),
)
