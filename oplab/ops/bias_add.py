"""bias_add: y[..., features] = x[..., features] + b[features].

The same numbers are added to every row. The gradient turns that around: whoever was copied to many places
gets the sum of what comes back from them, so db is a sum over all rows. In float16 and bfloat16 that sum runs
in float32 and is rounded once, since a float16 sum of ones is stuck at 2048.

Cost for r rows of n features: r n FLOPs; (2 r n + n) itemsize bytes (read x and b, write y). Like relu, it
costs a trip to memory when alone and next to nothing when fused into the operator before it.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive

from .._jax import ad, batching, broadcast, eager, hlo, in_front, is_zero, same_axes, zero_like
from .operator import Operator, Unsupported, by_pallas, check_implementation, lower
from .sums import wide

# The operator -----------------------------------------------------------------------------------------------
#   The primitive has a parameter that the function has not: the first `batch_dims` axes of x are axes of b
#   too. The function passes 0; vmap, which may give every example a bias of its own, counts up.

bias_add_p = Primitive("bias_add")


def bias_add(x, b, *, implementation=None):
    """x + b, with b added to every row of x.

    x: (..., features). b: (features,), or a scalar, which is added to every feature.
    implementation: "xla", "pallas", or None for the best one on the platform.
    Returns (..., features) in the dtype that jnp.add gives; booleans are or-ed, as there.
    Raises ValueError for shapes that do not fit.
    """
    x, b = jnp.asarray(x), jnp.asarray(b)
    check_implementation("bias_add", implementation)
    if x.ndim == 0 or b.ndim > 1 or b.shape not in ((), x.shape[-1:]):
        raise ValueError(
            f"bias_add expects x (..., features) and b (features,) or a scalar, "
            f"got x {x.dtype}{list(x.shape)} and b {b.dtype}{list(b.shape)}."
        )
    dtype = jnp.result_type(x, b)
    x, b = (operand if operand.dtype == dtype else operand.astype(dtype) for operand in (x, b))
    return bias_add_p.bind(*same_axes(x, b), batch_dims=0, implementation=implementation)


# What it means ----------------------------------------------------------------------------------------------


def bias_add_reference(x, b):
    return x + b


# What shape it has: that of x; JAX's own rules say how a sum is sharded, and whether it is weakly typed -----


def axes_of_bias(x, b, batch_dims):
    """The axes of x that b's axes are: the batch, then the features unless b holds one number."""
    return (*range(batch_dims), x.ndim - 1)[: b.ndim]


def spread(b, x, batch_dims):
    return lax.broadcast_in_dim(b, x.shape, axes_of_bias(x, b, batch_dims))


def bias_add_shape(x, b, *, batch_dims, implementation):
    (y,) = jax.make_jaxpr(lambda x, b: x + spread(b, x, batch_dims))(x, b).out_avals
    return y


# How it differentiates --------------------------------------------------------------------------------------
#   y  = x + b
#   dy = dx + db          linear in x and b together: the operator itself acts on the tangents
# Transposed, with the cotangent ct of y:
#   for x:  ct
#   for b:  sum of ct over the axes that b does not have


def bias_add_jvp(primals, tangents, *, batch_dims, implementation):
    (x, b), (dx, db) = primals, tangents
    y = bias_add_p.bind(x, b, batch_dims=batch_dims, implementation=implementation)
    if is_zero(dx) and is_zero(db):
        return y, zero_like(y)
    if is_zero(db):
        return y, dx
    if is_zero(dx):
        # Widened, so that JAX's transpose of the broadcast sums in float32 as well.
        return y, spread(db.astype(wide(db.dtype)), x, batch_dims).astype(db.dtype)
    return y, bias_add_p.bind(dx, db, batch_dims=batch_dims, implementation=implementation)


def bias_add_transpose(ct, x, b, *, batch_dims, implementation):
    linear_x, linear_b = ad.is_undefined_primal(x), ad.is_undefined_primal(b)
    if is_zero(ct):
        return ad.Zero(x.aval) if linear_x else None, ad.Zero(b.aval) if linear_b else None
    return ct if linear_x else None, summed(ct, b.aval, batch_dims) if linear_b else None


def summed(ct, b, batch_dims):
    lacking = tuple(axis for axis in range(ct.ndim) if axis not in axes_of_bias(ct, b, batch_dims))
    return jnp.sum(ct, lacking, dtype=wide(ct.dtype)).astype(b.dtype)


# How it batches ---------------------------------------------------------------------------------------------


def bias_add_batch(operands, dims, *, batch_dims, implementation):
    (x, b), (x_dim, b_dim) = operands, dims
    if b_dim is None:  # more rows for the same bias, behind the axes that b has too
        x = jnp.moveaxis(x, x_dim, batch_dims)
        return bias_add_p.bind(x, b, batch_dims=batch_dims, implementation=implementation), batch_dims
    x, b = in_front(operands, dims)
    return bias_add_p.bind(x, b, batch_dims=batch_dims + 1, implementation=implementation), 0


# How it becomes StableHLO: two ops, written by hand ---------------------------------------------------------


def bias_add_stablehlo(ctx, x, b, *, batch_dims):
    x_aval, b_aval = ctx.avals_in
    return [hlo.add(x, broadcast(ctx, b, x_aval, axes_of_bias(x_aval, b_aval, batch_dims)))]


# How it runs on the chip ------------------------------------------------------------------------------------
#   x is seen as (groups, rows, features), where the rows of a group share their bias; without vmap there is
#   one group. One program takes a block of rows by features and the piece of b that belongs to those
#   features. A block may reach over the edge; elements do not know each other, so no mask is needed.

ROWS, FEATURES = 256, 1024  # 1 MiB of float32 in a block: x and y of it, twice, are 4 MiB


def bias_add_kernel(x_ref, b_ref, y_ref):
    y_ref[...] = x_ref[...] + b_ref[...]


def bias_add_pallas(x, b, *, batch_dims, interpret=False):
    if jnp.iscomplexobj(x):
        raise Unsupported(f"bias_add's Pallas kernel takes no {x.dtype}: use implementation='xla'.")
    if math.prod(x.shape) == 0:
        return x
    groups, rows, features = math.prod(x.shape[:batch_dims]), math.prod(x.shape[batch_dims:-1]), x.shape[-1]
    b = jnp.broadcast_to(b[..., None] if b.ndim == batch_dims else b, (*x.shape[:batch_dims], features))
    height, width = min(ROWS, rows), min(FEATURES, features)
    block = pl.BlockSpec((1, height, width), lambda g, i, j: (g, i, j))
    bias = pl.BlockSpec((1, 1, width), lambda g, i, j: (g, 0, j))
    y = pl.pallas_call(
        bias_add_kernel,
        grid=(groups, pl.cdiv(rows, height), pl.cdiv(features, width)),
        in_specs=[block, bias],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((groups, rows, features), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3),
        interpret=interpret,
        name="bias_add",
    )(x.reshape(groups, rows, features), b.reshape(groups, 1, features))
    return y.reshape(x.shape)


# The table of contents --------------------------------------------------------------------------------------

bias_add_p.def_impl(eager(bias_add_p))
bias_add_p.def_abstract_eval(bias_add_shape)
ad.primitive_jvps[bias_add_p] = bias_add_jvp
ad.primitive_transposes[bias_add_p] = bias_add_transpose
batching.primitive_batchers[bias_add_p] = bias_add_batch
lower(bias_add_p, xla=bias_add_stablehlo, pallas=by_pallas(bias_add_pallas))

OPERATOR = Operator(
    "bias_add",
    bias_add,
    bias_add_reference,
    bias_add_p,
    {"x": {"batch": 8, "features": 32}, "b": {"features": 32}},
    "y = x + b",
)
