"""How the kernels of attention cut their arrays into blocks, and in which order a grid visits them.

A grid step works on one block of the scores of one batch entry and query head, block (i, j) of them: on block
i of the queries (Q, O, dO, ...) and on block j of the keys and values. Which (b, n, i, j) that is, a function
`place` of the numbers of the step says for each kernel; `block_spec` does the rest for every operand.

Query t sees the keys before `limit(t)`, of which a mask may hide some. Blocks beyond the limit are stepped
over, and not fetched either: `place` then names the block that the step before had.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .sums import wide


class Tiling(NamedTuple):
    """How the scores of one head, time x source, are cut into blocks, and which of them are seen."""

    time: int
    source: int
    block_q: int
    block_k: int
    offset: int | None  # query t sees key s only if s <= t + offset; None: not causal

    @property
    def blocks(self) -> tuple[int, int]:
        """How many blocks of queries and of keys; the last ones may stick out over the edge."""
        return pl.cdiv(self.time, self.block_q), pl.cdiv(self.source, self.block_k)

    def limit(self, t: Any, kv_len: Any) -> Any:
        """Query t sees the keys before this one; none if it is 0 or less."""
        end = jnp.minimum(kv_len, self.source)
        return end if self.offset is None else jnp.minimum(end, t + (self.offset + 1))

    def end(self, i: Any, kv_len: Any) -> Any:
        """The queries of block i see the keys before this one: the last of them sees most."""
        return self.limit(jnp.minimum((i + 1) * self.block_q, self.time) - 1, kv_len)

    def seen(self, i: Any, j: Any, kv_len: Any) -> Any:
        """Whether any query of block i sees any key of block j, as far as positions tell."""
        return j * self.block_k < self.end(i, kv_len)

    def last_key_block(self, i: Any, kv_len: Any) -> Any:
        """The last block of keys that the queries of block i see; the first one if they see none."""
        return quotient(jnp.maximum(self.end(i, kv_len) - 1, 0), self.block_k)

    def first_query_block(self, j: Any, kv_len: Any) -> Any:
        """The first block of queries that sees keys of block j; the last one if none does."""
        last = self.blocks[0] - 1
        start = 0 if self.offset is None else jnp.maximum(j * self.block_k - self.offset, 0)
        return jnp.where(self.seen(last, j, kv_len), quotient(start, self.block_q), last)

    def along_keys(self, b: Any, n: Any, i: Any, j: Any, kv_len: Any) -> tuple:
        """`place` for a grid of (batch, heads, query blocks, key blocks)."""
        return b, n, i, jnp.minimum(j, self.last_key_block(i, kv_len[b]))


def tiling(q, k, v, causal: str | None, block_q: int | None, block_k: int | None) -> Tiling:
    """The tiling for q (batch, time, heads, features), k (batch, source, kv_heads, features) and v.

    A grid step costs some tenths of a microsecond on a TPU whatever it does, so blocks are large; but S, P
    and two copies of every input block must fit the 16 MiB of VMEM that a kernel gets, in the gradient too.
    Multiples of 128, since positions are rows and lanes of (8, 128) registers. What is shorter than its block
    is taken whole, which a TPU allows for any length.
    """
    time, source = q.shape[1], k.shape[1]
    width = max(q.shape[-1], v.shape[-1])
    sizes = (256, 512) if width <= 128 else (256, 256) if width <= 256 else (128, 128)
    offset = {None: None, "top_left": 0, "bottom_right": source - time}[causal]
    return Tiling(time, source, min(block_q or sizes[0], time), min(block_k or sizes[1], source), offset)


def quotient(n: Any, by: int) -> Any:
    """n // by, where n is not negative. `//` would ask for the sign of n as well, at each grid step."""
    return n if by == 1 or isinstance(n, int) and n == 0 else lax.div(n, np.int32(by))


def wide_dtype(*arrays: jax.Array) -> jnp.dtype:
    """The dtype of softmax and of sums: float32, or float64 if there is any."""
    return wide(jnp.result_type(*arrays))


class Operands(NamedTuple):
    """What the kernels read, heads before positions: TPUs cut blocks from the last two dimensions only.

    Inside a kernel the same names hold the Refs of one block each.
    """

    q: jax.Array  # (batch, heads, time, features)
    k: jax.Array  # (batch, kv_heads, source, features)
    v: jax.Array  # (batch, kv_heads, source, value_features)
    mask: jax.Array | None  # int8, as Pallas would make an int32 of a bool
    bias: jax.Array | None
    do: jax.Array | None = None  # for the gradient only: (batch, heads, time, value_features)
    lse: jax.Array | None = None  # (batch, heads, time, 1)
    delta: jax.Array | None = None  # likewise


# The dimensions of each operand; `block_spec` says what the letters mean.
QUERIES, KEYS, SCORES = "bntf", "bnsf", "bnts"
LETTERS = Operands(QUERIES, KEYS, KEYS, SCORES, SCORES, QUERIES, QUERIES, QUERIES)


def operands(q, k, v, mask, bias) -> Operands:
    """What `attention_kernel.forward` is given, as its kernel reads it."""
    mask = None if mask is None else mask.astype(jnp.int8)
    if bias is not None and bias.dtype == jnp.float64:
        bias = bias.astype(wide_dtype(q, k))
    return Operands(*map(heads_first, (q, k, v)), mask, bias)


def heads_first(x: jax.Array) -> jax.Array:
    """(batch, positions, heads, features) to (batch, heads, positions, features), at least one of them."""
    x = jnp.swapaxes(x, 1, 2)
    return x if x.shape[-1] else jnp.zeros((*x.shape[:-1], 1), x.dtype)  # no block is empty; a 0 adds nothing


def heads_last(x: jax.Array, features: int) -> jax.Array:
    """The way back."""
    return jnp.swapaxes(x[..., :features], 1, 2)


def block_spec(x: Any, letters: str, tiling: Tiling, heads: int, place: Callable) -> pl.BlockSpec | None:
    """Which block of x a grid step works on; `letters` names the four dimensions of x, which may be None.

    b, n   batch entry and head, one at a time. Where x has fewer heads than there are query heads, neighbours
           share one: a kv head serves its group, the only head of a mask all heads. No copy is made.
    t, s   queries and keys, a block at a time
    f      features, whole: a row of Q meets whole rows of K, and TPUs take any width if it is the whole

    Of a dimension of size 1 there is but block 0, whatever the step: that is broadcasting.
    """
    if x is None:
        return None
    longest = {"t": tiling.block_q, "s": tiling.block_k}
    named = list(zip(letters, x.shape))

    def index(*step):
        b, n, i, j = place(*step)
        number = {"b": b, "n": quotient(n, heads // x.shape[1]), "t": i, "s": j, "f": 0}
        return tuple(0 if size == 1 else number[letter] for letter, size in named)

    block = [None if letter in "bn" else min(size, longest.get(letter, size)) for letter, size in named]
    return pl.BlockSpec(block, index)


def launch(
    kernel: Callable, name: str, kv_len: jax.Array | None, given: Operands,
    outputs: list[tuple[jax.ShapeDtypeStruct, str]],
    *, grid: tuple[int, ...], summed: int, place: Callable, scratch: list[pltpu.VMEM],
    tiling: Tiling, scale: float, interpret: Any,
) -> list[jax.Array]:  # fmt: skip
    """Runs a kernel at every point of a grid. An output is a shape with its letters.

    The last `summed` axes of the grid add to an output block before it is left; the others are independent
    of one another, so that the cores of a chip can share them. kv_len (batch,) is not cut into blocks: it is
    in scalar memory before the first step, for the index maps need it.
    """
    if kv_len is None:
        kv_len = jnp.full(given.q.shape[:1], tiling.source)
    spec = functools.partial(block_spec, tiling=tiling, heads=given.q.shape[1], place=place)
    return pl.pallas_call(
        functools.partial(kernel, tiling=tiling, scale=float(scale)),
        name=name,
        out_shape=[shape for shape, _ in outputs],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=[Operands(*map(spec, given, LETTERS))],
            out_specs=[spec(*output) for output in outputs],
            scratch_shapes=scratch,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) * (len(grid) - summed) + ("arbitrary",) * summed
        ),
        interpret=interpret,
    )(kv_len.astype(jnp.int32), given)
