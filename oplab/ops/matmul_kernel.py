"""matmul as a Pallas kernel for TPU, and the way to the one for NVIDIA's Hopper (matmul_hopper.py).

Each group of axes becomes one: a (batch, m, k), b (batch, k, n). The grid is (batch, m, n, k), in blocks; the
last axis runs fastest, so all the programs of one block of c follow each other and add to one accumulator,
which stays in the chip's own memory. Where k does not fill its last block, what is read beyond the edge is
undefined and would enter every sum, so it is replaced by 0 in both operands (0 times NaN is NaN). Beyond m
and n no mask is needed: what is written there is dropped.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .operator import TPU_TYPES, Unsupported
from .sums import sum_dtype

BLOCK = 512  # along m, n and k: (512, 512) of float32 are 1 MiB; a, b and c twice, and the accumulator, 7 MiB


def matmul_kernel(a_ref, b_ref, c_ref, sum_ref, *, k):
    step = pl.program_id(3)

    @pl.when(step == 0)
    def _():
        sum_ref[...] = jnp.zeros_like(sum_ref)

    a, b = a_ref[0], b_ref[0]
    depth = a.shape[1]
    if k % depth:
        left = k - step * depth
        a = jnp.where(lax.broadcasted_iota(jnp.int32, a.shape, 1) < left, a, jnp.zeros_like(a))
        b = jnp.where(lax.broadcasted_iota(jnp.int32, b.shape, 0) < left, b, jnp.zeros_like(b))
    sum_ref[...] += jnp.dot(a, b, preferred_element_type=sum_ref.dtype)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        c_ref[...] = sum_ref[...].astype(c_ref.dtype)[None]


def matmul_pallas(a, b, *, batch, inner, dtype, sharding, interpret=False):
    if not jnp.issubdtype(a.dtype, jnp.floating):
        raise Unsupported(
            f"matmul's Pallas kernel multiplies floating-point numbers, not {a.dtype}: "
            "use implementation='xla'."
        )
    if interpret is False and str(dtype) not in TPU_TYPES:
        raise Unsupported(f"matmul's Pallas kernel gives no {dtype} on a TPU: use implementation='xla'.")
    a, b, shape = as_matrices(a, b, batch, inner)
    (groups, m, k), n = a.shape, b.shape[2]
    if 0 in (groups, m, k, n):
        return jnp.zeros(shape, dtype)
    height, width, depth = min(BLOCK, m), min(BLOCK, n), min(BLOCK, k)
    c = pl.pallas_call(
        partial(matmul_kernel, k=k),
        grid=(groups, pl.cdiv(m, height), pl.cdiv(n, width), pl.cdiv(k, depth)),
        in_specs=[
            pl.BlockSpec((1, height, depth), lambda g, i, j, step: (g, i, step)),
            pl.BlockSpec((1, depth, width), lambda g, i, j, step: (g, step, j)),
        ],
        out_specs=pl.BlockSpec((1, height, width), lambda g, i, j, step: (g, i, j)),
        out_shape=jax.ShapeDtypeStruct((groups, m, n), dtype),
        scratch_shapes=[pltpu.VMEM((height, width), sum_dtype(a.dtype, dtype))],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3 + ("arbitrary",)),
        interpret=interpret,
        name="matmul",
    )(a, b)
    return c.reshape(shape)


def matmul_on_hopper(a, b, *, batch, inner, dtype, sharding):
    from .matmul_hopper import matmul_hopper  # imports Mosaic GPU, which only this needs

    a, b, shape = as_matrices(a, b, batch, inner)
    if 0 in (*a.shape, *b.shape):
        return jnp.zeros(shape, dtype)
    return matmul_hopper(a, b, out_dtype=dtype).reshape(shape)


def as_matrices(a, b, batch, inner):
    """a as (batch, m, k), b as (batch, k, n), and the shape of their product (*batch, *rows, *columns)."""
    shared, rows, depth = a.shape[:batch], a.shape[batch : a.ndim - inner], a.shape[a.ndim - inner :]
    columns = b.shape[batch + inner :]
    groups, m, k, n = map(math.prod, (shared, rows, depth, columns))
    return a.reshape(groups, m, k), b.reshape(groups, k, n), (*shared, *rows, *columns)
