"""Attention as one Pallas kernel for TPU, which the Pallas interpreter runs on any machine.

    S = scale Q K^T + bias      P = softmax(S)      O = P V          for each batch entry and query head

S and P have time x source elements and never exist as a whole: a block of queries stays in fast memory while
the blocks of keys and values pass by, and the softmax is corrected as they arrive. The letters are those of
the papers: FlashAttention (Dao and others, arXiv 2205.14135) for the idea, FlashAttention-2 (Dao, arXiv
2307.08691, algorithm 1) for the order of the loops and for dividing by l once, at the end:

    m, l, O = -inf, 0, 0                        # for each block of queries
    for each block of keys:
        m' = max(m, rowmax(S))                  # the largest score so far
        P  = exp(S - m')
        a  = exp(m - m')                        # what has been summed was relative to the old maximum
        l, O, m = a l + rowsum(P), a O + P V, m'
    O, L = O / l, m + log(l)                    # L, the log-sum-exp of the scores: the gradient needs it

Work: 2 time source (features + value_features) FLOPs a head, about half of it if causal. Traffic: Q, O and L
once, K and V once for each block of queries, the scores never.

A score is -inf where the query does not see the key, so that P is 0 there. A query that sees no key has l = 0
and gets O = 0 and L = -inf. A bias of -inf hides a key as the mask does, unless the product is NaN.
What a hidden key holds does not matter if it is hidden from every query: its rows of K and V are never read,
or taken as 0, since 0 times NaN is NaN. If some queries see it and it holds a NaN in V, then the others in
their block may get the NaN too, as they do in a plain product P V.

The blocks and the grid are explained in `attention_tiling.py`, the gradient in `attention_backward.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .attention_tiling import QUERIES, Operands, Tiling, heads_last, launch, operands, tiling, wide_dtype

WIDEST = 1024  # features; from there on what compiles depends on the chip


def forward(
    q, k, v, mask, bias, kv_len, *, causal, scale, interpret, block_q=None, block_k=None
) -> tuple[jax.Array, jax.Array]:
    """O and L of queries, keys and values.

    q is (batch, time, heads, features), k (batch, source, kv_heads, features), v (batch, source, kv_heads,
    value_features); heads is a multiple of kv_heads, and query head n uses kv head n // (heads // kv_heads).
    mask (bool) and bias are (batch, heads, time, source), each dimension full or 1; kv_len (batch,) counts
    the keys that are no padding; each of the three may be None. causal: None, "top_left" (query t sees key s
    iff s <= t) or "bottom_right" (iff s <= t + source - time). interpret: False, True or InterpretParams.
    On a TPU the two blocks are multiples of 128.

    Returns o (batch, time, heads, value_features) in q's dtype and the log-sum-exp of the scores, lse
    (batch, heads, time) in float32, or float64 for float64. A query that sees no key: o = 0, lse = -inf.
    """
    (batch, time, heads, _), value_features = q.shape, v.shape[-1]
    wide = wide_dtype(q, k, v)
    if 0 in (*q.shape[:3], k.shape[1]):  # nothing to step over
        o = jnp.zeros((batch, time, heads, value_features), q.dtype)
        return o, jnp.full((batch, heads, time), -jnp.inf, wide)
    tiles = tiling(q, k, v, causal, block_q, block_k)
    given, column = operands(q, k, v, mask, bias), pltpu.VMEM((tiles.block_q, 1), wide)
    o, lse = launch(
        _forward_kernel,
        "attention_forward",
        kv_len,
        given,
        [
            (jax.ShapeDtypeStruct((batch, heads, time, given.v.shape[-1]), q.dtype), QUERIES),
            (jax.ShapeDtypeStruct((batch, heads, time, 1), wide), QUERIES),  # a column, as rows are summed up
        ],
        grid=(batch, heads, *tiles.blocks),  # blocks of keys innermost: m, l and the sum live through them
        summed=1,
        place=tiles.along_keys,
        scratch=[column, column, pltpu.VMEM((tiles.block_q, given.v.shape[-1]), wide)],
        tiling=tiles,
        scale=scale,
        interpret=interpret,
    )
    return heads_last(o, value_features), lse[..., 0]


def refusal(q: Any, k: Any, v: Any) -> str | None:
    """Why these kernels, compiled for a TPU, cannot take q, k and v (arrays or avals); None if they can.

    It is what the compiler of Mosaic, Pallas' language for TPUs, says on TPU v4 and newer.
    """
    for x in (q, k, v):
        if x.dtype not in (jnp.float32, jnp.bfloat16):
            return (
                f"The attention kernel takes float32 and bfloat16 on a TPU, got {x.dtype}: convert q, k and "
                "v, or use implementation='xla'."
            )
    if (width := max(q.shape[-1], v.shape[-1])) > WIDEST:
        return (
            f"The attention kernel takes up to {WIDEST} features on a TPU, for whole rows must fit its fast "
            f"memory, got {width}: split them into heads, or use implementation='xla'."
        )
    return None


def _forward_kernel(
    kv_len_ref, given: Operands, o_ref, lse_ref, m_ref, l_ref, o_sum, *, tiling: Tiling, scale: float
) -> None:  # the last three are scratch, which outlives a step
    b, _, i, j = map(pl.program_id, range(4))
    kv_len = kv_len_ref[b]

    @pl.when(j == 0)
    def _start():
        m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
        l_ref[...] = jnp.zeros_like(l_ref)
        o_sum[...] = jnp.zeros_like(o_sum)

    @pl.when(tiling.seen(i, j, kv_len))
    def _one_block():
        S = scores(given, i, j, kv_len, tiling, scale)
        V = jnp.where(key_is_seen(S), given.v[...], 0)
        m = jnp.maximum(m_ref[...], jnp.max(S, axis=1, keepdims=True))
        finite = jnp.where(m == -jnp.inf, 0, m)  # no key so far: exp(-inf - 0) is 0, exp(-inf + inf) is NaN
        P = jnp.exp(S - finite)
        a = jnp.exp(m_ref[...] - finite)
        m_ref[...] = m
        l_ref[...] = a * l_ref[...] + jnp.sum(P, axis=1, keepdims=True)
        o_sum[...] = a * o_sum[...] + product(rounded_like(V, P), V, (1, 0))

    @pl.when(j == pl.num_programs(3) - 1)
    def _finish():
        l = jnp.where(l_ref[...] == 0, 1, l_ref[...])
        o_ref[...] = (o_sum[...] / l).astype(o_ref.dtype)
        lse_ref[...] = m_ref[...] + jnp.log(l)


# Parts of a step, which the gradient has too ----------------------------------------------------------------


def scores(given: Operands, i, j, kv_len, tiling: Tiling, scale: float) -> jax.Array:
    """S of block (i, j): (block_q, block_k), -inf where a query does not see a key or one of them is no more.

    scale is multiplied into Q, not into the product. From a product with scale and the subtraction of m a
    compiler may make one fused operation: S would be rounded in one place and not in another, and from scores
    of 1e8 on the exp of the difference would be anything. Only bfloat16 has to stay as it is, for the matrix
    unit, so there the danger remains on machines that fuse (TPUs do not).
    """
    Q, K = given.q[...], given.k[...]
    if Q.dtype == K.dtype == jnp.bfloat16:
        S = product(Q, K, (1, 1)) * scale
    else:
        S = product(Q.astype(wide_dtype(Q, K)) * scale, K, (1, 1))
    if given.bias is not None:
        S += given.bias[...].astype(S.dtype)
    t = i * tiling.block_q + lax.broadcasted_iota(jnp.int32, (S.shape[0], 1), 0)
    s = j * tiling.block_k + lax.broadcasted_iota(jnp.int32, S.shape, 1)
    visible = s < jnp.where(t < tiling.time, tiling.limit(t, kv_len), 0)
    if given.mask is not None:
        visible &= given.mask[...].astype(jnp.int32) != 0
    return jnp.where(visible, S, -jnp.inf)


def query_is_seen(S: jax.Array) -> jax.Array:
    """(block_q, 1): whether a query sees any key of the block. If not, its row of a Ref may hold anything:
    beyond the edge of the array what a Ref holds is not defined, and NaN in the interpreter.
    """
    return jnp.max((S != -jnp.inf).astype(jnp.float32), axis=1, keepdims=True) > 0


def key_is_seen(S: jax.Array) -> jax.Array:
    """(block_k, 1): whether any query of the block sees a key. As above."""
    return jnp.max((S != -jnp.inf).astype(jnp.float32), axis=0, keepdims=True).T > 0


def product(A: jax.Array, B: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """A times B over one axis of each, summed up in float32, or in float64 if there is any.

    Two bfloat16 matrices are what the matrix unit of a TPU is made for. All else is widened and asked for in
    full precision: unless told so, that unit rounds float32 to bfloat16.
    """
    narrow = A.dtype == B.dtype == jnp.bfloat16
    wide = wide_dtype(A, B)
    return lax.dot_general(
        A if narrow else A.astype(wide),
        B if narrow else B.astype(wide),
        (((axes[0],), (axes[1],)), ((), ())),
        precision=lax.Precision.DEFAULT if narrow else lax.Precision.HIGHEST,
        preferred_element_type=wide,
    )


def rounded_like(B: jax.Array, A: jax.Array) -> jax.Array:
    """A as the other factor of B: in bfloat16 if B is, which costs half an eps of bfloat16.

    Not so in float16, whose range is too small: of a long row every P could vanish, and dS overflow.
    """
    return A.astype(B.dtype) if B.dtype == jnp.bfloat16 else A
