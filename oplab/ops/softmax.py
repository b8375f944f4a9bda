"""softmax: y_i = exp(x_i - m) / sum_j exp(x_j - m), with m = max_j x_j, over the given axes.

Mathematically m cancels. It is there because exp overflows float32 above 88: with m the largest term is
exp(0) = 1, so nothing overflows and the sum is at least 1. A row is what one sum runs over. One that is all
-inf has no largest term and gives NaN, in every implementation. Elements left out by `where` count as absent:
they are 0 in the result, whatever they hold, and a row of which nothing is left is all 0.

float16 and bfloat16 are computed in float32 and rounded once, in the gradient too: a float16 sum is stuck at
2048, and the square of a row's sum, which a textbook gradient divides by, overflows from a sum of 256 on.

Cost for r rows of n: 4 r n FLOPs (max, subtract, sum, divide) and r n transcendentals (exp);
2 r n itemsize bytes if x is read once and y written once. Unfused, each step is a trip to memory of its own.
The online form that attention needs is in Milakov and Gimelshein, 2018 (arXiv 1805.02867).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive

from .._jax import (
    ad,  # JAX's tables of derivative rules
    batching,  # the same for vmap
    broadcast,  # a StableHLO value repeated along new axes
    convert,  # a StableHLO value in another dtype, with its aval (shape and dtype)
    eager,  # runs a primitive outside of jit
    full,  # a StableHLO constant
    hlo,  # the StableHLO ops, one Python function each
    in_front,  # operands with the axis that vmap adds moved to the front
    ir,  # MLIR, in which StableHLO is written: its types and blocks
    is_zero,  # is this tangent known to be zero?
    mlir,  # from JAX's shapes and dtypes to MLIR's
    same_axes,  # inside shard_map: operands marked as varying alike
    zero_like,  # a zero of which no array is made
)
from .operator import (
    Operator,
    Unsupported,
    by_pallas,  # the kernel as entries for TPU (compiled) and CPU (interpreted)
    check_floating,
    check_implementation,
    lower,  # enters implementations into the map that JAX asks when it writes StableHLO
    normal_axes,  # axes counted from the front, sorted
)
from .sums import wide  # the dtype to compute in: at least float32

# The operator ---------------------------------------------------------------------------------------------

softmax_p = Primitive("softmax")


def softmax(x, *, axis=-1, where=None, implementation=None):
    """exp(x) / sum(exp(x)) along `axis`, without overflow.

    x: floating-point numbers of any shape. axis: an integer, several, or None for all of them.
    where: booleans that broadcast to x's shape; elements that are False are left out and give 0.
    implementation: "xla", "pallas", or None for the best one on the platform.
    Returns an array of x's shape and dtype. Raises TypeError for integers and complex numbers, ValueError for
    an axis that is not there or a `where` that does not fit.
    """
    x = jnp.asarray(x)
    check_implementation("softmax", implementation)
    check_floating("softmax", x=x)
    axes = normal_axes("softmax", tuple(range(x.ndim)) if axis is None else axis, x.ndim)
    if where is None:
        return softmax_p.bind(x, axes=axes, implementation=implementation)
    where = jnp.asarray(where)
    if where.dtype != bool:
        raise TypeError(f"softmax expects booleans as where, got {where.dtype}{list(where.shape)}.")
    try:
        where = jnp.broadcast_to(where, x.shape)
    except ValueError:
        raise ValueError(
            f"softmax expects a where that broadcasts to the shape of x {list(x.shape)}, "
            f"got {list(where.shape)}."
        ) from None
    return softmax_p.bind(*same_axes(x, where), axes=axes, implementation=implementation)


# What it means --------------------------------------------------------------------------------------------


def softmax_reference(x, *, axis=-1, where=None):
    x, dtype = x.astype(wide(x.dtype)), x.dtype
    x = x if where is None else jnp.where(where, x, -jnp.inf)
    e = jnp.exp(x - x.max(axis, keepdims=True, initial=-jnp.inf))
    e = e if where is None else jnp.where(where, e, 0)
    y = e / e.sum(axis, keepdims=True)
    return (y if where is None else jnp.where(where, y, 0)).astype(dtype)


# What shape it has ----------------------------------------------------------------------------------------


def softmax_shape(x, *where, axes, implementation):
    return x.update(weak_type=False)


# How it differentiates ------------------------------------------------------------------------------------
#   y_i      = e_i / s                        with e_i = exp(x_i - m), s = sum_j e_j
#   dy_i     = de_i / s - e_i ds / s^2        m cancels, so its derivative is left out
#   de_i     = e_i dx_i,   ds = sum_j e_j dx_j
#   dy_i     = y_i (dx_i - sum_j y_j dx_j)
# No square of s is left. Linear in dx; the transpose that reverse mode needs has the same form.


def softmax_jvp(primals, tangents, *, axes, implementation):
    (x, *where), dx = primals, tangents[0]
    dtype = wide(x.dtype)
    y = softmax_p.bind(x.astype(dtype), *where, axes=axes, implementation=implementation)
    if is_zero(dx):
        y = y.astype(x.dtype)
        return y, zero_like(y)
    dx = jnp.where(where[0], dx, 0).astype(dtype) if where else dx.astype(dtype)
    dy = y * (dx - (y * dx).sum(axes, keepdims=True))
    return y.astype(x.dtype), dy.astype(x.dtype)


# How it batches: a mapped axis moves to the front, and the axes count one further -------------------------


def softmax_batch(operands, dims, *, axes, implementation):
    axes = tuple(a + 1 for a in axes)
    return softmax_p.bind(*in_front(operands, dims), axes=axes, implementation=implementation), 0


# How it becomes StableHLO ---------------------------------------------------------------------------------
#   There is no op for it: it is written as the formula, with a reduction for the maximum and for the sum. A
#   reduction is an op with a little function of its own inside, here `join`, which makes one number of two.


def softmax_stablehlo(ctx, x, *where, axes):
    narrow, *_ = ctx.avals_in  # the aval (shape and dtype) of x as given
    x, aval = convert(ctx, x, narrow, wide(narrow.dtype))
    kept = tuple(d for d in range(aval.ndim) if d not in axes)
    row = aval.update(shape=tuple(aval.shape[d] for d in kept))

    def over_rows(join, x, start):  # the maximum or the sum of each row, repeated along the row
        reduction = hlo.ReduceOp(
            [mlir.aval_to_ir_type(ctx.module_context, row)],
            [x],
            [full(ctx, start, aval.update(shape=()))],
            mlir.dense_int_array(axes),
        )
        scalar = ir.RankedTensorType.get([], mlir.dtype_to_ir_type(aval.dtype))
        body = reduction.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(body):
            hlo.return_([join(*body.arguments)])
        return broadcast(ctx, reduction.result, aval, kept)

    def left_out(x, value):  # x, with `value` where `where` is False
        return hlo.select(where[0], x, full(ctx, value, aval)) if where else x

    x = left_out(x, -np.inf)
    # The maximum is subtracted twice. XLA may compute x anew in each fusion that reads it, and where x ends
    # in a product, x - m becomes one fused multiply-add, which does not round the product as the x in m was
    # rounded: the difference is then not 0 at the maximum but a rounding error, enormous for enormous x. The
    # second maximum is taken of those very differences.
    x = hlo.subtract(x, over_rows(hlo.maximum, x, -np.inf))
    x = hlo.subtract(x, over_rows(hlo.maximum, x, -np.inf))
    e = left_out(hlo.exponential(x), 0)
    y = left_out(hlo.divide(e, over_rows(hlo.add, e, 0)), 0)
    return [convert(ctx, y, aval, narrow.dtype)[0]]


# How it runs on the chip ----------------------------------------------------------------------------------
#   The axes become one, the last. One program (one run of the kernel) takes a block of whole rows, so it
#   needs no other's result: read once, write once. The last block may reach over the edge; rows do not know
#   each other, and what is written beyond the array is dropped, so no mask is needed.

BLOCK_BYTES = 1 << 20  # of float32 in a block: x, e and y of it, twice, fit into a TPU core's 16 MiB
LONGEST_ROW = 1 << 17  # elements; then eight rows, the fewest a TPU takes, are 4 MiB


def softmax_kernel(x_ref, y_ref):
    masked_softmax_kernel(x_ref, None, y_ref)


def masked_softmax_kernel(x_ref, where_ref, y_ref):
    x = x_ref[...].astype(wide(x_ref.dtype))
    where = None if where_ref is None else where_ref[...] != 0
    x = x if where is None else jnp.where(where, x, -jnp.inf)
    x = x - x.max(-1, keepdims=True)
    e = jnp.exp(x - x.max(-1, keepdims=True))  # twice, as above: the interpreter's steps are fused by XLA too
    e = e if where is None else jnp.where(where, e, 0)
    y = e / e.sum(-1, keepdims=True)
    y_ref[...] = (y if where is None else jnp.where(where, y, 0)).astype(y_ref.dtype)


def softmax_pallas(x, *where, axes, interpret=False):
    if math.prod(x.shape) == 0:
        return x
    last = tuple(range(x.ndim - len(axes), x.ndim))
    moved = jnp.moveaxis(x, axes, last)
    n = math.prod(moved.shape[d] for d in last)
    if n > LONGEST_ROW and interpret is False:
        raise Unsupported(
            f"softmax's Pallas kernel keeps whole rows of at most {LONGEST_ROW} elements in a TPU's "
            f"memory, and these have {n}: use implementation='xla'."
        )
    rows = [moved.reshape(-1, n)]
    # As int32, since a block of booleans is not laid out as one of numbers is.
    rows += [jnp.moveaxis(w, axes, last).reshape(-1, n).astype(jnp.int32) for w in where]
    height = min(len(rows[0]), max(8, BLOCK_BYTES // (4 * n) // 8 * 8))
    block = pl.BlockSpec((height, n), lambda i: (i, 0))
    y = pl.pallas_call(
        masked_softmax_kernel if where else softmax_kernel,
        grid=(pl.cdiv(len(rows[0]), height),),
        in_specs=[block] * len(rows),
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(rows[0].shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
        name="softmax",
    )(*rows)
    return jnp.moveaxis(y.reshape(moved.shape), last, axes)


# The table of contents ------------------------------------------------------------------------------------

softmax_p.def_impl(eager(softmax_p))
softmax_p.def_abstract_eval(softmax_shape)
ad.primitive_jvps[softmax_p] = softmax_jvp
batching.primitive_batchers[softmax_p] = softmax_batch
lower(softmax_p, xla=softmax_stablehlo, pallas=by_pallas(softmax_pallas))

OPERATOR = Operator(
    "softmax",
    softmax,
    softmax_reference,
    softmax_p,
    {"x": {"batch": 8, "features": 32}},
    "y = exp(x - max x) / sum exp(x - max x)",
)
