"""Write a kernel: two halves of a softmax become one, the step that FlashAttention is made of."""

import inspect
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from .exercise import Exercise

STARTER = '''\
def merge(a, b):
    """a and b: (m, l, o) of two sets of keys, with m the largest score, l = sum(exp(score - m)), and
    o = sum(exp(score - m) * value). Returns the (m, l, o) of both sets together.
    """
    (m1, l1, o1), (m2, l2, o2) = a, b
    return jnp.maximum(m1, m2), l1 + l2, o1 + o2'''


def merge(a, b):
    (m1, l1, o1), (m2, l2, o2) = a, b
    m = jnp.maximum(m1, m2)
    top = jnp.where(m == -jnp.inf, 0, m)  # no key at all: there is nothing to subtract
    shrink1, shrink2 = jnp.exp(m1 - top), jnp.exp(m2 - top)
    return m, shrink1 * l1 + shrink2 * l2, shrink1 * o1 + shrink2 * o2


def part(scores: np.ndarray, values: np.ndarray) -> tuple:
    """(m, l, o) of a set of keys; (-inf, 0, 0) of none."""
    m = scores.max(initial=-np.inf)
    weights = np.exp(scores - (m if np.isfinite(m) else 0))
    return tuple(jnp.float32(x) for x in (m, weights.sum(), (weights * values).sum()))


def faults(merge: Callable) -> Iterator[str]:
    numbers = np.random.default_rng(0)
    scores, values = numbers.normal(size=8), numbers.normal(size=8)
    for what, s, cut in [
        ("equal maxima", np.zeros(8), 4),
        ("the larger score in the second half", np.sort(scores), 4),
        ("the larger score in the first half", -np.sort(-scores), 4),
        ("scores around 1000", scores + 1000, 3),
        ("an empty first half", scores, 0),
        ("a first half that is hidden", np.where(np.arange(8) < 4, -np.inf, scores), 4),
        ("two empty halves", np.full(8, -np.inf), 4),
    ]:
        got = merge(part(s[:cut], values[:cut]), part(s[cut:], values[cut:]))
        right = part(s, values)
        for name, x, y in zip("mlo", got, right, strict=True):
            if not np.allclose(x, y, rtol=1e-4, atol=1e-5):
                yield f"with {what}, {name} is {float(x):.4f}, expected {float(y):.4f}."


EXERCISE = Exercise(
    name="merge_softmax", level=4, solution="merge", starter=STARTER, size="three lines", faults=faults,
    task=("Two groups of keys were looked at apart, each measured from its own largest score. Put "
          "them together."),
    hints=(
        "l1 was measured from m1. What must it be multiplied by, to be measured from a larger m?",
        "exp(score - m) = exp(score - m1) * exp(m1 - m). The same factor serves o.",
        "shrink1 = exp(m1 - m), likewise shrink2; and where m is -inf, subtract 0 instead: -inf - "
        "-inf is NaN.",
    ),
    notice="Groups can be merged in any order: that is why one kernel can do all of attention.",
    code=inspect.getsource(merge),
)
