"""Write an operator: a softmax that large scores and small dtypes do not break."""

import inspect
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from .exercise import Exercise

STARTER = '''\
def softmax(x):
    """exp(x) / sum(exp(x)) over the last axis, in the dtype of x."""
    e = jnp.exp(x)
    return e / e.sum(-1, keepdims=True)'''


def softmax(x):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))  # a sum of halves loses its small terms
    e = jnp.exp(wide - wide.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


def exact(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def faults(softmax: Callable) -> Iterator[str]:
    numbers = np.random.default_rng(0)
    for what, x, within in [
        ("unit-normal scores", numbers.normal(size=(4, 7)), 1e-6),
        ("scores around 1000", numbers.normal(size=(2, 5)) + 1000, 1e-4),
        ("scores around -1000", numbers.normal(size=(2, 5)) - 1000, 1e-4),
        ("one hidden score, -inf", np.array([[0.0, -np.inf, 1.0]]), 1e-6),
    ]:
        x = x.astype(np.float32)
        got, right = np.asarray(softmax(jnp.asarray(x))), exact(x)
        if got.shape != right.shape:
            yield f"for {what} its shape is {got.shape}, expected {right.shape}."
        elif not np.all(np.isfinite(got)):
            yield f"for {what} it gives {got.ravel()[:3]}: exp overflowed, or 0 was divided by 0."
        elif np.abs(got - right).max() > within:
            yield f"for {what} it is off by {np.abs(got - right).max():.1e}."
    for dtype in (jnp.float16, jnp.bfloat16):
        x = jnp.zeros((1, 100_000), dtype)  # the sum is beyond the largest float16, which is 65504
        got = softmax(x)
        right = exact(np.asarray(x, np.float64))[0, 0]
        if got.dtype != dtype:
            yield f"for {jnp.dtype(dtype).name} the result is {got.dtype}: it must have the dtype of x."
        elif not abs(float(got[0, 0]) - right) < 0.02 * right:
            yield (f"for a long row of {jnp.dtype(dtype).name} the first weight is {float(got[0, 0]):.1e}, "
                   f"expected {right:.1e}: the sum was kept in a dtype that cannot hold it.")


EXERCISE = Exercise(
    name="safe_softmax", level=2, solution="softmax",
    starter=STARTER, size="two lines changed", faults=faults,
    task="This softmax is right on paper. Make it right on a machine, for every size of score and row.",
    hints=(
        "exp(1000) is infinity in float32. Which number may be taken from every score without "
        "changing the result?",
        "Subtract the row's maximum. And in which dtype is the sum of 100,000 small numbers taken?",
        "Convert to float32 first, subtract the maximum, divide, and convert back to x.dtype in the end.",
    ),
    notice="oplab.ops.softmax does the same, in its gradient too: read oplab/ops/softmax.py.",
    code=inspect.getsource(softmax),
)
