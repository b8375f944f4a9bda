"""conv2d: a small window w slides over an image x.

    y[b, i, j, o] = sum over u, v, c of x[b, i s + u d, j s + v d, c] w[u, v, c, o]

x is (batch, height, width, in), w is (height, width, in / groups, out); s is the stride, d the dilation, the
distance between the window's taps. What machine learning calls a convolution is a cross-correlation: w is not
flipped. With groups, the features are split into as many parts, and each part of `out` sees its own part of
`in` only. (Dumoulin and Visin, 2016, arXiv 1603.07285, draw it all.)

float16 and bfloat16 products are added up in float32 and rounded once, in the gradient too.

Cost: 2 (batch height_y width_y out) (height_w width_w in / groups) FLOPs, as for the product of two matrices
of these sizes, which is how the hardware computes it; bytes: x, w and y once each.

Where a window falls, and how arguments may be written, is in conv2d_geometry.py; how features, groups and
batch change places in conv2d_axes.py; the kernel for TPUs in conv2d_kernel.py.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec

from .._jax import ad, batching, convert, eager, full, hlo, is_zero, mlir, same_axes, zero_like
from .conv2d_axes import batch_as_features, cut_as, merge, names, split, swap_features
from .conv2d_geometry import check_known, dilated, pads, pair, positions, whole
from .conv2d_kernel import conv2d_pallas
from .operator import Operator, by_pallas, check_implementation, lower
from .sums import preferred_dtype, wide

# The operator ---------------------------------------------------------------------------------------------
#   Beside what the public function offers, the primitive takes an input_dilation a: a - 1 zeros between the
#   pixels of x. With it the gradients of a convolution are convolutions, and the primitive needs no other.

conv2d_p = Primitive("conv2d")


def conv2d(
    x, w, *, stride=1, padding="VALID", dilation=1, groups=1, preferred_element_type=None, implementation=None
):
    """Slide the window w over the image x.

    x: numbers (batch, height, width, in). w: numbers (height, width, in / groups, out).
    stride, dilation: an integer of at least 1, or one for the height and one for the width.
    padding: zeros around x. "VALID" is none, "SAME" as many as give ceil(size / stride) positions, an integer
    the same on all sides, ((top, bottom), (left, right)) any; a negative number crops.
    groups: an integer that divides in and out.
    preferred_element_type: the dtype of the sum and of the result; else that which x and w promote to.
    implementation: "xla", "pallas", or None for the best one on the platform.
    Returns (batch, height_y, width_y, out); empty when the window is larger than the padded image.
    Raises TypeError for complex numbers and booleans, ValueError for what does not fit together.
    """
    x, w = jnp.asarray(x), jnp.asarray(w)
    check_implementation("conv2d", implementation)
    groups = check_operands(x, w, groups)
    stride, dilation = pair("stride", stride), pair("dilation", dilation)
    dtype = jnp.result_type(x, w)
    if preferred_element_type is not None:
        preferred_element_type = preferred_dtype("conv2d", dtype, preferred_element_type)
        if jnp.issubdtype(preferred_element_type, jnp.complexfloating):
            raise TypeError(f"conv2d gives real numbers, and no {preferred_element_type}.")
    return conv2d_p.bind(
        *same_axes(x.astype(dtype), w.astype(dtype)),
        stride=stride,
        padding=pads(padding, x.shape[1:3], w.shape[:2], stride, dilation),
        dilation=dilation,
        input_dilation=(1, 1),
        groups=groups,
        preferred_element_type=preferred_element_type,
        implementation=implementation,
    )


def check_operands(x, w, groups):
    given = f"x {x.dtype}{list(x.shape)} and w {w.dtype}{list(w.shape)}"
    for a in (x, w):
        if a.dtype == bool or jnp.issubdtype(a.dtype, jnp.complexfloating):
            raise TypeError(f"conv2d expects real numbers, got {given}.")
    if x.ndim != 4 or w.ndim != 4:
        raise ValueError(
            f"conv2d expects x (batch, height, width, in) and w (height, width, in/groups, out), got {given}."
        )
    groups = whole("groups", groups)
    if x.shape[3] % groups or w.shape[3] % groups:
        raise ValueError(f"conv2d expects groups that divide in and out, got groups={groups} for {given}.")
    if w.shape[2] != x.shape[3] // groups:
        raise ValueError(
            f"conv2d expects w (height, width, in/groups, out) with in/groups = {x.shape[3] // groups}, "
            f"got {given} with groups={groups}."
        )
    return groups


# What it means: one small matrix product for each tap (u, v) of the window ----------------------------------


def conv2d_reference(x, w, *, stride=1, padding="VALID", dilation=1, groups=1, preferred_element_type=None):
    s, d = pair("stride", stride), pair("dilation", dilation)
    padding = pads(padding, x.shape[1:3], w.shape[:2], s, d)
    dtype = preferred_element_type or jnp.promote_types(x.dtype, w.dtype)
    x, w = x.astype(wide(dtype)), w.astype(wide(dtype))
    h, q = map(positions, x.shape[1:3], w.shape[:2], s, padding, d)
    c, o = w.shape[2], w.shape[3] // groups
    y = jnp.zeros((x.shape[0], h, q, groups, o), x.dtype)
    if h and q:
        x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *((lo, hi, 0) for lo, hi in padding), (0, 0, 0)))
        x, w = x.reshape(*x.shape[:3], groups, c), w.reshape(*w.shape[:3], groups, o)
        for u, v in np.ndindex(w.shape[:2]):
            i, j = u * d[0], v * d[1]
            seen = x[:, i : i + (h - 1) * s[0] + 1 : s[0], j : j + (q - 1) * s[1] + 1 : s[1]]
            y += jnp.einsum("bijgc,cgo->bijgo", seen, w[u, v])
    return y.reshape(*y.shape[:3], groups * o).astype(dtype)


# What shape it has ----------------------------------------------------------------------------------------


def conv2d_shape(
    x, w, *, stride, padding, dilation, input_dilation, groups, preferred_element_type, implementation
):
    check_known(padding, x.shape, w.shape)
    size = [
        positions(*axis) for axis in zip(x.shape[1:3], w.shape[:2], stride, padding, dilation, input_dilation)
    ]
    # On a mesh with explicit axes y is cut as x's batch and w's out are; a sum over cut features ends whole.
    batch, out = x.sharding.spec[0], w.sharding.spec[3]
    spec = PartitionSpec(batch, None, None, None if {*names(out)} & {*names(batch)} else out)
    return x.update(
        shape=(x.shape[0], *size, w.shape[3]),
        dtype=preferred_element_type or x.dtype,
        weak_type=False,
        sharding=x.sharding.update(spec=spec),
    )


# How it differentiates: y is linear in x and in w, so dy = conv2d(dx, w) + conv2d(x, dw) --------------------


def conv2d_jvp(primals, tangents, **params):
    (x, w), (dx, dw) = primals, tangents
    y = conv2d_p.bind(x, w, **params)
    terms = [] if is_zero(dx) else [conv2d_p.bind(dx, w, **params)]
    terms += [] if is_zero(dw) else [conv2d_p.bind(x, dw, **params)]
    return y, sum(terms[1:], terms[0]) if terms else zero_like(y)


# How it transposes ------------------------------------------------------------------------------------------
#   Along one axis, for one feature in and one out, n pixels a apart, k taps d apart, m positions s apart:
#       y[i] = sum over j, u of x[j] w[u]     where  i s + u d = j a + lo                                  (1)
#   and lo is the padding before. Given g, the cotangent of y, (1) says which g belong to which x and w.
#
#   For x:  x'[j] = sum over i, u of g[i] w[u]. With u = k-1-t, (1) is  j a + t d = i s + (k-1) d - lo:
#       the form of (1) again, with g as the image, its pixels s apart, and w flipped as the window, its taps
#       still d apart, on positions a apart, and (k-1) d - lo before. The padding behind is what gives n
#       positions, which need (n-1) a + (k-1) d + 1 pixels.
#
#   For w:  w'[u] = sum over i, j of x[j] g[i], and (1) reads  u d + i s = j a + lo:
#       x is the image still, g is the window, its taps s apart, on positions d apart, with lo before; k
#       positions need (k-1) d + (m-1) s + 1 pixels; pixels that no window reached, where a stride does not
#       divide, are cropped. What was summed over is now the batch, so batch and features change places.


def conv2d_transpose(
    g, x, w, *, stride, padding, dilation, input_dilation, groups, preferred_element_type, implementation
):
    for_x = ad.is_undefined_primal(x)
    aval = x.aval if for_x else w.aval
    if is_zero(g):
        result = ad.Zero(aval)
    elif 0 in g.shape or 0 in aval.shape:
        result = jnp.zeros(aval.shape, aval.dtype)
    else:
        same = {"groups": groups, "preferred_element_type": None, "implementation": implementation}
        geometry = (stride, padding, dilation, input_dilation)
        result = image_of(g, w, aval, *geometry, same) if for_x else window_of(g, x, aval, *geometry, same)
        result = cut_as(aval, result.astype(aval.dtype))
    return (result, None) if for_x else (None, result)


def image_of(g, w, x, stride, padding, dilation, input_dilation, same):
    before = [(k - 1) * d - lo for k, d, (lo, _) in zip(w.shape, dilation, padding)]
    extent = [
        dilated(n, a) + (k - 1) * d for n, a, k, d in zip(x.shape[1:3], input_dilation, w.shape, dilation)
    ]
    behind = [size - lo - dilated(m, s) for size, lo, m, s in zip(extent, before, g.shape[1:3], stride)]
    flipped = swap_features(w[::-1, ::-1], same["groups"]).astype(g.dtype)
    return conv2d_p.bind(
        *same_axes(g, flipped),
        stride=input_dilation,
        padding=tuple(zip(before, behind)),
        dilation=dilation,
        input_dilation=stride,
        **same,
    )


def window_of(g, x, w, stride, padding, dilation, input_dilation, same):
    extent = [(k - 1) * d + dilated(m, s) for k, d, m, s in zip(w.shape, dilation, g.shape[1:3], stride)]
    behind = [
        size - lo - dilated(n, a)
        for size, (lo, _), n, a in zip(extent, padding, x.shape[1:3], input_dilation)
    ]
    image, window = batch_as_features(x, same["groups"]).astype(g.dtype), g.transpose(1, 2, 0, 3)
    y = conv2d_p.bind(
        *same_axes(image, window),
        stride=dilation,
        dilation=stride,
        input_dilation=input_dilation,
        padding=tuple((lo, hi) for (lo, _), hi in zip(padding, behind)),
        **same,
    )
    return y.transpose(1, 2, 0, 3)


# How it batches ---------------------------------------------------------------------------------------------
#   Mapped images are more images. Mapped windows make more features out, in each group. If both are mapped,
#   each image has windows of its own: more groups.


def conv2d_batch(operands, dims, *, groups, **params):
    (x, w), (dx, dw) = operands, dims
    if dw is None:
        x = jnp.moveaxis(x, dx, 0)
        y = conv2d_p.bind(merge(x, 0), w, groups=groups, **params)
        return split(y, 0, *x.shape[:2]), 0
    w = jnp.moveaxis(w, dw, 3)
    size, o = w.shape[3:]
    if dx is None:
        w = split(w, 4, groups, o // groups).swapaxes(3, 4)  # (..., groups, size, out / groups)
        y = conv2d_p.bind(x, merge(merge(w, 4), 3), groups=groups, **params)
        y = split(split(y, 3, groups * size, o // groups), 3, groups, size)
        return merge(y.swapaxes(3, 4), 4), 3
    x = jnp.moveaxis(x, dx, 3)
    if size == 0:  # of nothing there are no groups
        one = [jax.ShapeDtypeStruct(a.shape[:3] + a.shape[4:], a.dtype) for a in (x, w)]
        y = jax.eval_shape(partial(conv2d_p.bind, groups=groups, **params), *one)
        return jnp.zeros((*y.shape[:3], 0, o), y.dtype), 3
    y = conv2d_p.bind(merge(x, 3), merge(w, 3), groups=size * groups, **params)
    return split(y, 3, size, o), 3


# How it becomes StableHLO: the one op there is for it -------------------------------------------------------


def conv2d_stablehlo(ctx, x, w, *, stride, padding, dilation, input_dilation, groups, preferred_element_type):
    (x_aval, w_aval), (out,) = ctx.avals_in, ctx.avals_out
    if 0 in (*out.shape, *x_aval.shape, *w_aval.shape):
        return [full(ctx, 0, out)]  # a sum of nothing, which the op's own rules do not allow
    # The operands are widened too: StableHLO allows a sum wider than they are, but not every backend does.
    total = out.update(dtype=wide(out.dtype))
    (x, _), (w, _) = (convert(ctx, a, aval, total.dtype) for a, aval in ((x, x_aval), (w, w_aval)))
    y = hlo.convolution(
        mlir.aval_to_ir_type(ctx.module_context, total),
        x,
        w,
        dimension_numbers=hlo.ConvDimensionNumbers.get(
            input_batch_dimension=0,
            input_spatial_dimensions=[1, 2],
            input_feature_dimension=3,
            kernel_spatial_dimensions=[0, 1],
            kernel_input_feature_dimension=2,
            kernel_output_feature_dimension=3,
            output_batch_dimension=0,
            output_spatial_dimensions=[1, 2],
            output_feature_dimension=3,
        ),
        feature_group_count=mlir.i64_attr(groups),
        batch_group_count=mlir.i64_attr(1),
        window_strides=mlir.dense_int_array(stride),
        padding=mlir.dense_int_elements(padding),
        lhs_dilation=mlir.dense_int_array(input_dilation),
        rhs_dilation=mlir.dense_int_array(dilation),
    )
    return [convert(ctx, y, total, out.dtype)[0]]


# The table of contents --------------------------------------------------------------------------------------

conv2d_p.def_impl(eager(conv2d_p))
conv2d_p.def_abstract_eval(conv2d_shape)
ad.primitive_jvps[conv2d_p] = conv2d_jvp
ad.primitive_transposes[conv2d_p] = conv2d_transpose
batching.primitive_batchers[conv2d_p] = conv2d_batch
lower(conv2d_p, xla=conv2d_stablehlo, pallas=by_pallas(conv2d_pallas))

OPERATOR = Operator(
    "conv2d",
    conv2d,
    conv2d_reference,
    conv2d_p,
    {"x": {"batch": 2, "height": 8, "width": 8, "in": 4}, "w": {"height": 3, "width": 3, "in": 4, "out": 8}},
    "y[i, j] = sum_uv x[i + u, j + v] w[u, v]",
)
