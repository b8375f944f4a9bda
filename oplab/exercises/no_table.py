"""Work with the compiler: attention whose memory never holds S x S scores."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ..walk import walk
from .exercise import Exercise

STARTER = '''\
def attention(q, k, v):
    """softmax(q k^T) v for q, k, v of (S, 16); no array of S x S numbers. S is a multiple of 128."""
    return jax.nn.softmax(q @ k.T) @ v'''


def attention(q, k, v):
    rows = q.reshape(-1, 128, q.shape[1])  # 128 queries at a time: each needs only its own row of scores
    return jax.lax.map(lambda some: jax.nn.softmax(some @ k.T) @ v, rows).reshape(q.shape)


def faults(attention: Callable) -> Iterator[str]:
    q, k, v = (np.random.default_rng(n).normal(size=(256, 16)).astype(np.float32) for n in range(3))
    scores = q.astype(np.float64) @ k.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    right = weights / weights.sum(-1, keepdims=True) @ v
    got = np.asarray(attention(*map(jnp.asarray, (q, k, v))))
    if got.shape != right.shape or not np.abs(got - right).max() < 1e-4:
        yield "its numbers are not those of softmax(q k^T) v."
    needed = {}
    for S in (1024, 2048):
        w = walk(attention, *[jax.ShapeDtypeStruct((S, 16), jnp.float32)] * 3)
        needed[S] = w.compiled.memory_analysis().temp_size_in_bytes
        if needed[S] >= 4 * S * S:
            yield (f"at S = {S} it needs {needed[S]:,} bytes on the way, no less than S x S numbers take"
                   f"{_largest(w, S * S)}.")
    if needed[2048] > 3 * needed[1024]:
        yield (f"twice the length takes {needed[2048] / needed[1024]:.1f} times the memory "
               f"({needed[2048]:,} bytes at S = 2048): something still grows with S x S.")


def _largest(w, numbers: int) -> str:
    """Which line made the array that is too large."""
    table = w.jaxpr.table
    for row in table.itertuples():
        for shape in str(row.outputs).split("["):
            sizes = [int(n) for n in shape.split("]")[0].split(",") if n.strip().isdigit()]
            if "]" in shape and np.prod(sizes, dtype=float) >= numbers:
                return f": `{row.primitive}` makes {', '.join(row.outputs)}"
    return ""


EXERCISE = Exercise(
    name="no_table", level=3, solution="attention", starter=STARTER, size="two or three lines", faults=faults,
    task="Compute attention without ever holding the whole table of scores. The check asks the compiler.",
    hints=(
        "How many rows of scores does one query need? And how many queries must be looked at together?",
        "Take a few queries at a time: jax.lax.map runs a function on one piece after the other.",
        "q.reshape(-1, 128, 16), then jax.lax.map(lambda some: softmax(some @ k.T) @ v, ...), then "
        "reshape back.",
    ),
    notice="Only one piece's scores are alive at a time. FlashAttention does this to the keys as well.",
    code=inspect.getsource(attention),
)
