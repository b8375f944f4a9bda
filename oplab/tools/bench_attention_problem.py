"""The problem that every variant of the attention benchmark solves: a shape, its numbers, the exact answer.

Nothing here needs JAX, so that a peer's process can use it from any interpreter that has NumPy.
"""

import math
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Shape(NamedTuple):
    """One case: (batch, seq, heads, dim) for q, k and v alike, all of them unit-normal numbers."""

    seq: int
    heads: int
    dim: int
    causal: bool = False
    backward: bool = False  # forward and backward in one call, rather than forward alone
    dtype: str = "float32"
    batch: int = 1

    @property
    def flops(self) -> int:
        """As FlashAttention's authors count: 4 b s^2 h d, half if causal; the backward is 2.5 forwards."""
        forward = 4 * self.batch * self.heads * self.seq**2 * self.dim // (2 if self.causal else 1)
        return int(forward * (3.5 if self.backward else 1))

    @property
    def fused_bytes(self) -> int:
        """The least that moves: q, k, v and o once; backward also q, k, v, o, do in and dq, dk, dv out."""
        return self.array_bytes * (4 + 8 * self.backward)

    @property
    def array_bytes(self) -> int:
        return self.batch * self.seq * self.heads * self.dim * (4 if self.dtype == "float32" else 2)

    @property
    def scores_bytes(self) -> int:
        """One matrix of scores for all heads, in float32: what a fused kernel never has."""
        return 4 * self.batch * self.heads * self.seq**2

    def __str__(self) -> str:
        work = "forward + backward" if self.backward else "forward"
        keys = "causal" if self.causal else "every key"
        return f"S = {self.seq}, {self.heads} heads, D = {self.dim}, {self.dtype}, {work}, {keys}"


class Prepared(NamedTuple):
    """One form of one variant, ready to be timed."""

    call: Callable[[], object]  # runs once and returns when the result is there
    results: Callable[[], list[np.ndarray]]  # float32, (batch, seq, heads, dim): [o], or [dq, dk, dv]
    flops: int
    bytes: int


class Missing(Exception):
    """This variant cannot run here; the sentence says why."""


def operands(shape: Shape) -> list[np.ndarray]:
    """q, k, v and do, the gradient that arrives at o: float32, (batch, seq, heads, dim), always the same."""
    seed = zlib.crc32(repr((shape.batch, shape.seq, shape.heads, shape.dim)).encode())
    random = np.random.default_rng(seed)
    size = (shape.batch, shape.seq, shape.heads, shape.dim)
    return [random.standard_normal(size, np.float32) for _ in range(4)]


def exact(shape: Shape) -> list[np.ndarray]:
    """What `Prepared.results` should be, in float64, one head at a time: [o], or [dq, dk, dv]."""
    size = (shape.batch, shape.seq, shape.heads, shape.dim)
    out = [np.empty(size) for _ in range(3 if shape.backward else 1)]
    given, scale = operands(shape), shape.dim**-0.5
    for at in np.ndindex(shape.batch, shape.heads):
        q, k, v, do = (x[at[0], :, at[1]].astype(float) for x in given)
        s = scale * q @ k.T
        if shape.causal:
            s[np.triu_indices(shape.seq, 1)] = -math.inf
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        found = [p @ v]
        if shape.backward:
            dp = do @ v.T
            ds = scale * p * (dp - (dp * p).sum(-1, keepdims=True))
            found = [ds @ k, ds.T @ q, p.T @ do]
        for whole, head in zip(out, found):
            whole[at[0], :, at[1]] = head
    return out


def largest_error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    return max(float(np.abs(f - w).max()) for f, w in zip(found, wanted))


def probe(results: list[np.ndarray]) -> list[float]:
    """A few numbers by which two variants are compared: of each result the size, and six places in it."""
    numbers = []
    for x in results:
        flat = x.reshape(-1)
        places = np.linspace(0, flat.size - 1, 6).astype(int)
        numbers += [float(np.abs(flat).mean()), *map(float, flat[places])]
    return numbers
