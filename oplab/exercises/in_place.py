"""Work with the compiler: an update that needs no second copy of the weights."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ..walk import walk
from .exercise import Exercise

STARTER = '''\
@jax.jit
def update(weights, gradients):
    """Gradient descent with step 0.1; both are dicts of arrays."""
    return {name: weights[name] - 0.1 * gradients[name] for name in weights}'''


def update(weights, gradients):
    return {name: weights[name] - 0.1 * gradients[name] for name in weights}


update = jax.jit(update, donate_argnums=0)


def faults(update: Callable) -> Iterator[str]:
    def tree(seed: int) -> dict:
        numbers = np.random.default_rng(seed)
        return {"W": jnp.asarray(numbers.normal(size=(256, 128)).astype(np.float32)), "b": jnp.ones(128)}

    weights, gradients = tree(0), tree(1)
    right = {name: np.asarray(weights[name]) - 0.1 * np.asarray(gradients[name]) for name in weights}
    size = sum(x.nbytes for x in weights.values())
    memory = walk(update, tree(0), gradients).compiled.memory_analysis()
    again = memory.alias_size_in_bytes
    got = update(weights, gradients)
    if set(got) != set(right) or any(np.abs(np.asarray(got[n]) - right[n]).max() > 1e-6 for n in right):
        yield "its numbers are not those of weights - 0.1 · gradients."
    if any(x.is_deleted() for x in gradients.values()):
        yield "it gives away the gradients: the next step's caller may still want them. Donate the weights."
    if again < size:
        yield f"of the weights' {size:,} bytes {again:,} are used again; the rest goes to new memory."


EXERCISE = Exercise(
    name="in_place", level=3, solution="update", starter=STARTER, size="one option", faults=faults,
    task="The old weights are not needed after the update. Let the compiler write the new ones over them.",
    hints=(
        "JAX's arrays never change, unless you promise that you will not look at an argument again.",
        "The promise is called donation: an option of jax.jit that names arguments.",
        "update = jax.jit(update, donate_argnums=0): argument 0 is given away, argument 1 is not.",
    ),
    notice="Input and output are now one buffer. Using the old weights afterwards raises an error.",
    code="def update(weights, gradients):\n"
         "    return {name: weights[name] - 0.1 * gradients[name] for name in weights}\n\n\n"
         "update = jax.jit(update, donate_argnums=0)\n",
)
