"""layer_norm: y = (x - mu) / sqrt(var + eps) * scale + bias, with each row's own mean mu and variance var.

A row is what lies along the normalised axes. Its result no longer depends on the row's offset or size, which
keeps the layers of a deep network in range (Ba, Kiros and Hinton, 2016, arXiv 1607.06450).

The variance is the mean of (x - mu)^2, in a second pass. E[x^2] - E[x]^2 needs one pass only, but is a small
difference of large numbers for rows far from zero: in float32 a row near 1449 loses its variance wholly, and
where rounding makes it negative the root is NaN.

The mean itself is taken of x - m, where m is the row's largest element. A sum of n equal numbers, divided by
n, is not always that number; the error is tiny beside mu, but not beside a variance of 0. With m gone a
constant row is a row of exact zeros, and gives exactly the bias. Any element of the row would do: no
difference within a row exceeds sqrt(2 n var), so what x - m is rounded by stays small beside sqrt(var). The
largest can be found where a row is cut over several devices, too.

float16 and bfloat16 are computed in float32 and rounded once, in the gradient too.

Cost for r rows of n: 9 r n FLOPs (4 for m, x - m, its mean and x - mu, 2 for the variance, 1 to divide by the
root, 2 for scale and bias); 2 r n itemsize bytes if x is read once and y written once. There is little
arithmetic, so what counts is that all the passes are one kernel.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive

from .._jax import ad, batching, eager, in_front, is_zero, mlir, same_axes, zero_like
from .operator import (
    Operator,
    Unsupported,
    by_pallas,
    check_floating,
    check_implementation,
    lower,
    normal_axes,
)
from .sums import wide

# The operator ---------------------------------------------------------------------------------------------
#   Operands: x, then scale and bias if there are any. `batch_dims` leading axes of x lead scale and bias too;
#   the public function has none, `vmap` makes them.

layer_norm_p = Primitive("layer_norm")


def layer_norm(x, scale=None, bias=None, *, axis=-1, eps=1e-5, implementation=None):
    """(x - mean) / sqrt(variance + eps) * scale + bias, with mean and variance taken along `axis`.

    x: floating-point numbers of any shape. axis: an integer, or several that make one row together.
    scale, bias: floating-point numbers in the shape of the normalised axes, in x's order.
    eps: a number of at least 0, added to the variance.
    implementation: "xla", "pallas", or None for the best one on the platform.
    Returns an array of x's shape and dtype, whatever the dtypes of scale and bias.
    Raises TypeError for integers and complex numbers, ValueError for an axis that is not there, for another
    shape of scale or bias, and for a negative eps.
    """
    x = jnp.asarray(x)
    scale, bias = (None if a is None else jnp.asarray(a) for a in (scale, bias))
    check_implementation("layer_norm", implementation)
    check_floating("layer_norm", x=x, scale=scale, bias=bias)
    axes = normal_axes("layer_norm", axis, x.ndim)
    shape = tuple(x.shape[a] for a in axes)
    for name, operand in (("scale", scale), ("bias", bias)):
        if operand is not None and operand.shape != shape:
            raise ValueError(
                f"layer_norm expects {name} of shape {list(shape)}, the normalised axes of "
                f"x {x.dtype}[{','.join(map(str, x.shape))}], got {list(operand.shape)}."
            )
    eps = float(eps)
    if not 0 <= eps < math.inf:
        raise ValueError(f"layer_norm expects an eps of at least 0, which keeps the root real, got {eps}.")
    operands = [a for a in (x, scale, bias) if a is not None]
    return layer_norm_p.bind(
        *same_axes(*operands),
        has_scale=scale is not None,
        has_bias=bias is not None,
        axes=axes,
        eps=eps,
        batch_dims=0,
        implementation=implementation,
    )


def with_gaps(operands, has_scale, has_bias):
    """(x, scale, bias) of the primitive's operands, or of their tangents; None where there is none."""
    x, *rest = operands
    return x, rest[0] if has_scale else None, rest[-1] if has_bias else None


# What it means --------------------------------------------------------------------------------------------


def layer_norm_reference(x, scale=None, bias=None, *, axis=-1, eps=1e-5, batch_dims=0):
    axes = normal_axes("layer_norm", axis, x.ndim)
    d, r = deviation(x.astype(wide(x.dtype)), axes, eps)
    y = d * r
    y = y if scale is None else y * beside(x, scale, axes, batch_dims)
    y = y if bias is None else y + beside(x, bias, axes, batch_dims)
    return y.astype(x.dtype)


def deviation(x, axes, eps):
    """x - mu, and r = 1 / sqrt(var + eps) with the normalised axes kept as ones."""
    # mu moves with m, so m cancels in x - mu, and so does its derivative: it is left out.
    d = x - jax.lax.stop_gradient(x.max(axes, keepdims=True, initial=-jnp.inf))
    d = d - d.mean(axes, keepdims=True)
    return d, jax.lax.rsqrt((d * d).mean(axes, keepdims=True) + eps)


def beside(x, a, axes, batch_dims):
    """scale or bias `a` with the rank of x, to be multiplied with it or added to it, in the wide dtype."""
    return jnp.expand_dims(a, [i for i in range(batch_dims, x.ndim) if i not in axes]).astype(wide(x.dtype))


# What shape it has ----------------------------------------------------------------------------------------


def layer_norm_shape(x, *operands, has_scale, has_bias, axes, eps, batch_dims, implementation):
    return x.update(weak_type=False)


# How it differentiates ------------------------------------------------------------------------------------
#   xhat  = d r                  d = x - mu,  r = (var + eps)^(-1/2),  var = mean(d^2)
#   dd    = dx - mean(dx)
#   dvar  = 2 mean(d dd) = 2 mean(d dx)                          since mean(d) = 0
#   dr    = -1/2 (var + eps)^(-3/2) dvar = -r^3 mean(d dx) = -r^2 mean(xhat dx)
#   dxhat = dd r + d dr = r (dx - mean(dx) - xhat mean(xhat dx))
#   y     = xhat scale + bias
#   dy    = dxhat scale + xhat dscale + dbias
# Linear in every tangent, so JAX transposes it. xhat is the operator itself without scale and bias, so that
# the next derivative comes here again.


def layer_norm_jvp(primals, tangents, *, has_scale, has_bias, axes, eps, batch_dims, implementation):
    x, scale, bias = with_gaps(primals, has_scale, has_bias)
    dx, dscale, dbias = with_gaps(tangents, has_scale, has_bias)
    xhat = layer_norm_p.bind(
        x.astype(wide(x.dtype)),
        has_scale=False,
        has_bias=False,
        axes=axes,
        eps=eps,
        batch_dims=batch_dims,
        implementation=implementation,
    )
    # 1 and 0 stand for no scale and no bias: as Python numbers they make no array.
    scale = 1 if scale is None else beside(x, scale, axes, batch_dims)
    y = (xhat * scale + (0 if bias is None else beside(x, bias, axes, batch_dims))).astype(x.dtype)
    terms = []
    if not is_zero(dx):
        _, r = deviation(x.astype(wide(x.dtype)), axes, eps)
        dx = dx.astype(wide(x.dtype))
        mean = lambda a: a.mean(axes, keepdims=True)
        terms.append(r * (dx - mean(dx) - xhat * mean(xhat * dx)) * scale)
    if has_scale and not is_zero(dscale):
        terms.append(xhat * beside(x, dscale, axes, batch_dims))
    if has_bias and not is_zero(dbias):
        terms.append(jnp.broadcast_to(beside(x, dbias, axes, batch_dims), x.shape))
    return y, sum(terms[1:], terms[0]).astype(x.dtype) if terms else zero_like(y)


# How it batches ---------------------------------------------------------------------------------------------
#   Mapped rows are more rows: x's mapped axis goes behind the batch dims, scale and bias stay as they are.
#   If scale or bias is mapped too, each row of the map has its own: the axis becomes a batch dim of all.


def layer_norm_batch(operands, dims, *, axes, batch_dims, **params):
    if all(d is None for d in dims[1:]):
        operands = [jnp.moveaxis(operands[0], dims[0], batch_dims), *operands[1:]]
        out = batch_dims
    else:
        operands, out = in_front(operands, dims), 0
        batch_dims += 1
    return layer_norm_p.bind(*operands, axes=tuple(a + 1 for a in axes), batch_dims=batch_dims, **params), out


# How it becomes StableHLO: written by JAX from the reference ------------------------------------------------


def layer_norm_xla(*operands, has_scale, has_bias, axes, eps, batch_dims):
    x, scale, bias = with_gaps(operands, has_scale, has_bias)
    return layer_norm_reference(x, scale, bias, axis=axes, eps=eps, batch_dims=batch_dims)


# How it runs on the chip ------------------------------------------------------------------------------------
#   The axes become one, the last: x is (batch, rows, n), scale and bias are (batch, 1, n), where batch is 1
#   outside of vmap. One program takes a block of whole rows, so mean and variance need no other program's
#   result: read once, write once. The last block may reach over the edge: the rows that it reads there hold
#   anything, but rows do not know each other, and what is written there is dropped, so no mask is needed.
#   Within a row nothing is padded: the block is as wide as the array.

BLOCK_BYTES = 1 << 20  # of float32 in a block: x, d and y of it, twice, fit into 16 MiB
LONGEST_ROW = 1 << 17  # then eight rows, the fewest a TPU takes, are 4 MiB


def layer_norm_kernel(x_ref, *refs, has_scale, has_bias, eps):
    *given, y_ref = refs
    x = x_ref[...].astype(wide(x_ref.dtype))
    d = x - x.max(-1, keepdims=True)
    d = d - d.mean(-1, keepdims=True)
    y = d * jax.lax.rsqrt((d * d).mean(-1, keepdims=True) + eps)
    y = y * given[0][...].astype(y.dtype) if has_scale else y
    y = y + given[-1][...].astype(y.dtype) if has_bias else y
    y_ref[...] = y.astype(y_ref.dtype)


def layer_norm_pallas(x, *given, has_scale, has_bias, axes, eps, batch_dims, interpret=False):
    if math.prod(x.shape) == 0:
        return x
    last = tuple(range(x.ndim - len(axes), x.ndim))
    moved = jnp.moveaxis(x, axes, last)
    batch, n = math.prod(x.shape[:batch_dims]), math.prod(x.shape[a] for a in axes)
    if interpret is False and n > LONGEST_ROW:
        raise Unsupported(
            f"layer_norm's Pallas kernel keeps whole rows of at most {LONGEST_ROW} elements in a TPU's "
            f"memory, and these have {n}: use implementation='xla'."
        )
    rows = moved.reshape(batch, -1, n)
    height = min(rows.shape[1], max(8, BLOCK_BYTES // (4 * n) // 8 * 8))
    block = pl.BlockSpec((None, height, n), lambda b, i: (b, i, 0))
    one = pl.BlockSpec((None, 1, n), lambda b, i: (b, 0, 0))  # without i: read once for all rows
    y = pl.pallas_call(
        partial(layer_norm_kernel, has_scale=has_scale, has_bias=has_bias, eps=eps),
        grid=(batch, pl.cdiv(rows.shape[1], height)),
        in_specs=[block] + [one] * len(given),
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(rows.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
        name="layer_norm",
    )(rows, *(a.reshape(batch, 1, n) for a in given))
    return jnp.moveaxis(y.reshape(moved.shape), last, axes)


# The table of contents --------------------------------------------------------------------------------------

layer_norm_p.def_impl(eager(layer_norm_p))
layer_norm_p.def_abstract_eval(layer_norm_shape)
ad.primitive_jvps[layer_norm_p] = layer_norm_jvp
batching.primitive_batchers[layer_norm_p] = layer_norm_batch
lower(
    layer_norm_p,
    xla=mlir.lower_fun(layer_norm_xla, multiple_results=False),
    pallas=by_pallas(layer_norm_pallas),
)

OPERATOR = Operator(
    "layer_norm",
    layer_norm,
    layer_norm_reference,
    layer_norm_p,
    {"x": {"batch": 8, "features": 32}, "scale": {"features": 32}, "bias": {"features": 32}},
    "y = (x - mean) / sqrt(var + eps) * scale + bias",
)
