"""Write an operator: relu, with the derivative at 0 that one decides on."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from .exercise import Exercise

STARTER = '''\
@jax.custom_jvp
def relu(x):
    return jnp.where(x < 0, 0, x).astype(x.dtype)

@relu.defjvp
def rule(primals, tangents):
    (x,), (dx,) = primals, tangents
    return relu(x), ...  # the derivative: 1 above 0, and 0 at 0 and below'''


@jax.custom_jvp
def relu(x):
    return jnp.where(x < 0, 0, x).astype(x.dtype)


@relu.defjvp
def rule(primals, tangents):
    (x,), (dx,) = primals, tangents
    return relu(x), jnp.where(x > 0, dx, jnp.zeros_like(dx))


def faults(relu: Callable) -> Iterator[str]:
    x = jnp.array([-2.0, -0.0, 0.0, 8.0, jnp.nan])
    wanted, got = np.array([0, 0, 0, 8, np.nan], np.float32), np.asarray(relu(x))
    if not np.array_equal(got, wanted, equal_nan=True):
        yield f"relu of {x} is {got}, expected {wanted} (NaN stays NaN, so that no mistake is hidden)."
    slope = jax.grad(relu)
    for at, right in [(3.0, 1.0), (-2.0, 0.0), (0.0, 0.0)]:
        found = float(slope(at))
        if found != right:
            yield f"the derivative at {at:g} is {found:g}, expected {right:g}."
    pulled = np.asarray(jax.vjp(relu, jnp.array([1.0, -1.0]))[1](jnp.array([5.0, jnp.inf]))[0])
    if not np.array_equal(pulled, [5.0, 0.0]):
        yield (f"with cotangents [5, inf] at x = [1, -1] the gradient is {pulled}, expected [5, 0]: "
               "0 times infinity is NaN, so choose instead of multiplying.")
    half = jax.jvp(relu, (jnp.ones(2, jnp.bfloat16),), (jnp.ones(2, jnp.bfloat16),))[1].dtype
    if half != jnp.bfloat16:
        yield f"for bfloat16 the derivative is {half}: it must have the dtype of x."


EXERCISE = Exercise(
    name="relu_rule", level=2, solution="relu", starter=STARTER, size="one expression", faults=faults,
    task="Complete relu's JVP rule. At 0 the derivative is a matter of convention: here it is 0.",
    hints=(
        "A JVP rule says how a small change dx of x changes the result. Where is the change passed on?",
        "Where x is above 0 the result moves with x, elsewhere not at all. jnp.where chooses number "
        "by number.",
        "jnp.where(x > 0, dx, 0), with a 0 of dx's dtype. What does x >= 0 do at 0?",
    ),
    notice=("JAX derives the reverse rule by itself, from what your rule does with dx: it must be "
            "linear in it."),
    code=inspect.getsource(relu) + "\n\n" + inspect.getsource(rule),
)
