"""The gradient of attention, by Pallas kernels that compute P again rather than have it kept.

    S = scale Q K^T + bias      P = exp(S - L)      O = P V          L = log-sum-exp of each row of S

With dO and dL, the cotangents of O and L, with t for a query, s and u for keys:

    O = P V                    dV = P^T dO,  dP = dO V^T
    P = softmax(S)             dS_ts = P_ts (dP_ts - sum_u P_tu dP_tu), by way of O alone
    dP_tu = dO_t . V_u         sum_u P_tu dP_tu = dO_t . O_t:  a sum over features, not over all keys
    dL_t / dS_ts = P_ts        dS_ts = P_ts (dP_ts - D_t)  with  D_t = dO_t . O_t - dL_t
    S = scale Q K^T + bias     dQ = scale dS K,  dK = scale dS^T Q,  dbias = dS

L is what the forward kernel left, D one number a query, computed before the kernels. So far algorithm 2 of
FlashAttention-2 (Dao, arXiv 2307.08691; there dL = 0). Its loop over blocks of keys adds to dQ in slow
memory, but a TPU kernel must not return to an output block that it has left. So each sum has a kernel of its
own, in which that sum is innermost:

    dK, dV    for a block of keys, over the query heads that share it and over the blocks of queries
    dQ        for a block of queries, over the blocks of keys
    dbias     for a block of the bias, over all that it was broadcast to; only where there is a bias

Work: 7 products of 2 time source features FLOPs a head, where algorithm 2 has 5 (and the forward kernel 2): S
and dP are computed in both of the first two kernels. dbias's computes them once more.

A query that sees no key has P = 0 and passes nothing on. Like a hidden key it may hold anything.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .attention_kernel import key_is_seen, product, query_is_seen, rounded_like, scores
from .attention_tiling import (
    KEYS,
    QUERIES,
    SCORES,
    Operands,
    Tiling,
    heads_first,
    heads_last,
    launch,
    operands,
    tiling,
    wide_dtype,
)


def backward(
    q, k, v, mask, bias, kv_len, o, lse, do, dlse,
    *, causal, scale, interpret, block_q=None, block_k=None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:  # fmt: skip
    """dq, dk, dv and dbias, in the shapes and dtypes of q, k, v and bias; dbias is None where bias is.

    o (batch, time, heads, value_features) and lse (batch, heads, time) are what `attention_kernel.forward`
    returned, do and dlse the cotangents of these two; all else is as it was given to `forward`.
    """
    wide = wide_dtype(q, k, v)
    if 0 in (*q.shape[:3], k.shape[1]):
        return *map(jnp.zeros_like, (q, k, v)), None if bias is None else jnp.zeros_like(bias)
    D = jnp.swapaxes(jnp.sum(o.astype(wide) * do.astype(wide), axis=-1), 1, 2) - dlse
    given = operands(q, k, v, mask, bias)._replace(
        do=heads_first(do), lse=lse[..., None], delta=D.astype(wide)[..., None]
    )
    common = {"tiling": tiling(q, k, v, causal, block_q, block_k), "scale": scale, "interpret": interpret}
    dq, dk, dv = *_queries_gradient(kv_len, given, **common), *_keys_gradient(kv_len, given, **common)
    dbias = None if bias is None else _bias_gradient(kv_len, given, **common)
    return *(heads_last(dx, x.shape[-1]) for x, dx in ((q, dq), (k, dk), (v, dv))), dbias


def _terms(given: Operands, i, j, kv_len, tiling: Tiling, scale: float) -> tuple[jax.Array, ...]:
    """S, P and dS of block (i, j), each (block_q, block_k)."""
    S = scores(given, i, j, kv_len, tiling, scale)
    # S <= L, but S was rounded anew: where scores are huge the difference may be too, and its exp infinite.
    P = jnp.where(S == -jnp.inf, 0, jnp.exp(jnp.minimum(S - given.lse[...], 0)))
    dP = product(given.do[...], given.v[...], (1, 1))
    dS = jnp.where(S == -jnp.inf, 0, P * (dP - given.delta[...]))
    return S, P, dS


# dK and dV --------------------------------------------------------------------------------------------------


def _keys_gradient(kv_len, given: Operands, *, tiling: Tiling, **common) -> list[jax.Array]:
    (batch, heads, *_), kv_heads = given.q.shape, given.k.shape[1]
    group, (query_blocks, key_blocks) = heads // kv_heads, tiling.blocks

    def place(b, n, j, g, i, kv_len_ref):
        return b, n * group + g, jnp.maximum(i, tiling.first_query_block(j, kv_len_ref[b])), j

    return launch(
        _keys_kernel,
        "attention_gradient_of_keys_and_values",
        kv_len,
        given,
        [(jax.ShapeDtypeStruct(x.shape, x.dtype), KEYS) for x in (given.k, given.v)],
        grid=(batch, kv_heads, key_blocks, group, query_blocks),
        summed=2,
        place=place,
        scratch=[pltpu.VMEM((tiling.block_k, x.shape[-1]), wide_dtype(x)) for x in (given.k, given.v)],
        tiling=tiling,
        **common,
    )


def _keys_kernel(kv_len_ref, given, dk_ref, dv_ref, dk_sum, dv_sum, *, tiling: Tiling, scale: float) -> None:
    b, _, j, g, i = map(pl.program_id, range(5))
    kv_len = kv_len_ref[b]

    @pl.when((g == 0) & (i == 0))
    def _start():
        dk_sum[...] = jnp.zeros_like(dk_sum)
        dv_sum[...] = jnp.zeros_like(dv_sum)

    @pl.when(tiling.seen(i, j, kv_len))
    def _one_block():
        S, P, dS = _terms(given, i, j, kv_len, tiling, scale)
        Q = jnp.where(query_is_seen(S), given.q[...], 0)
        dO = jnp.where(query_is_seen(S), given.do[...], 0)
        dk_sum[...] += product(rounded_like(Q, dS), Q, (0, 0))
        dv_sum[...] += product(rounded_like(dO, P), dO, (0, 0))

    @pl.when((g == pl.num_programs(3) - 1) & (i == pl.num_programs(4) - 1))
    def _finish():
        dk_ref[...] = (scale * dk_sum[...]).astype(dk_ref.dtype)
        dv_ref[...] = dv_sum[...].astype(dv_ref.dtype)


# dQ ---------------------------------------------------------------------------------------------------------


def _queries_gradient(kv_len, given: Operands, *, tiling: Tiling, **common) -> list[jax.Array]:
    batch, heads, _, features = given.q.shape
    return launch(
        _queries_kernel,
        "attention_gradient_of_queries",
        kv_len,
        given,
        [(jax.ShapeDtypeStruct(given.q.shape, given.q.dtype), QUERIES)],
        grid=(batch, heads, *tiling.blocks),
        summed=1,
        place=tiling.along_keys,
        scratch=[pltpu.VMEM((tiling.block_q, features), wide_dtype(given.q))],
        tiling=tiling,
        **common,
    )


def _queries_kernel(kv_len_ref, given, dq_ref, dq_sum, *, tiling: Tiling, scale: float) -> None:
    b, _, i, j = map(pl.program_id, range(4))
    kv_len = kv_len_ref[b]

    @pl.when(j == 0)
    def _start():
        dq_sum[...] = jnp.zeros_like(dq_sum)

    @pl.when(tiling.seen(i, j, kv_len))
    def _one_block():
        S, _, dS = _terms(given, i, j, kv_len, tiling, scale)
        K = jnp.where(key_is_seen(S), given.k[...], 0)
        dq_sum[...] += product(rounded_like(K, dS), K, (1, 0))

    @pl.when(j == pl.num_programs(3) - 1)
    def _finish():
        dq_ref[...] = (scale * dq_sum[...]).astype(dq_ref.dtype)


# dbias ------------------------------------------------------------------------------------------------------


def _bias_gradient(kv_len, given: Operands, *, tiling: Tiling, **common) -> jax.Array:
    shape, (batch, heads, *_) = given.bias.shape, given.q.shape
    axes = (batch, heads, *tiling.blocks)  # of b, n, i, j
    order = sorted(range(4), key=lambda axis: shape[axis] == 1)  # innermost what was broadcast, and is summed

    def place(*step):  # every block of dbias is to be written, so no step stands in for another
        return tuple(step[order.index(axis)] for axis in range(4))

    block = min(tiling.block_q, shape[2]), min(tiling.block_k, shape[3])
    (dbias,) = launch(
        functools.partial(_bias_kernel, order=order, summed=shape.count(1)),
        "attention_gradient_of_bias",
        kv_len,
        given,
        [(jax.ShapeDtypeStruct(shape, given.bias.dtype), SCORES)],
        grid=tuple(axes[axis] for axis in order),
        summed=shape.count(1),
        place=place,
        scratch=[pltpu.VMEM(block, wide_dtype(given.q, given.bias))],
        tiling=tiling,
        **common,
    )
    return dbias


def _bias_kernel(
    kv_len_ref, given, dbias_ref, dbias_sum, *, tiling: Tiling, scale: float, order: list[int], summed: int
) -> None:
    b, _, i, j = (pl.program_id(order.index(axis)) for axis in range(4))
    kv_len = kv_len_ref[b]
    inner = range(4 - summed, 4)

    @pl.when(_all(pl.program_id(axis) == 0 for axis in inner))
    def _start():
        dbias_sum[...] = jnp.zeros_like(dbias_sum)

    @pl.when(tiling.seen(i, j, kv_len))
    def _one_block():
        _, _, dS = _terms(given, i, j, kv_len, tiling, scale)
        broadcast = [axis for axis in (0, 1) if dbias_sum.shape[axis] == 1]
        dbias_sum[...] += jnp.sum(dS, axis=broadcast, keepdims=True)

    ends = [pl.program_id(axis) == pl.num_programs(axis) - 1 for axis in inner]

    @pl.when(_all(ends))
    def _finish():
        dbias_ref[...] = dbias_sum[...].astype(dbias_ref.dtype)


def _all(conditions: Iterable[jax.Array]) -> jax.Array | bool:
    return functools.reduce(jnp.logical_and, conditions, True)
