"""conv2d as a Pallas kernel, which is a product of matrices for each tap of the window.

As matrix products that are never laid out in memory (an "implicit" product): for each tap (u, v) of the
window, (width, in) @ (in, out). With stride s a tap sees every s-th pixel, which a chip reads badly. So a
launcher splits the image into s phases, phase p holding the pixels p, p + s, p + 2 s, ...; tap u then
sees phase (u d) % s from pixel (u d) // s on, without gaps ("space to depth").

One program makes one row of y for one image, one group and a block of out features.
x  (batch, group, phase, phase, height, width, in): the block is the whole image of one group. Its index
   is that of batch and group only, so it stays where it is while the rows and the out features go by.
w  (group, height, width, in, out): all taps of one group, for a block of out. It stays for all rows.
y  (batch, group, height, width, out): one row, the whole width, for a block of out.
All but out is whole, and out may end ragged: a column of the product depends on its own column of w only,
and is dropped if there is none, so no mask is needed.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .conv2d_geometry import dilated, positions
from .operator import Unsupported
from .sums import wide

LANES = 128  # out features in a block: the width of a TPU's matrix unit
MEMORY = 12 << 20  # bytes for the blocks, each twice; the last 4 MiB of a TPU's 16 hold the sum and the taps


def conv2d_kernel(x_ref, w_ref, y_ref, *, stride, dilation, dtype):
    (taps_high, taps_wide, *_), width = w_ref.shape, y_ref.shape[0]
    row = pl.program_id(3)

    def add_row_of_taps(u, y):
        down, phase = lax.div(u * dilation[0], stride[0]), lax.rem(u * dilation[0], stride[0])
        # The taps across are written out, so that each slice of the width begins at a place known beforehand.
        for v in range(taps_wide):
            across = v * dilation[1]
            begin = across // stride[1]
            seen = x_ref[phase, across % stride[1], row + down, begin : begin + width, :]
            y += jnp.dot(seen, w_ref[u, v], preferred_element_type=dtype)
        return y

    y = lax.fori_loop(0, taps_high, add_row_of_taps, jnp.zeros(y_ref.shape, dtype))
    y_ref[...] = y.astype(y_ref.dtype)


def conv2d_pallas(
    x, w, *, stride, padding, dilation, input_dilation, groups, preferred_element_type, interpret=False
):
    size = [
        positions(*axis) for axis in zip(x.shape[1:3], w.shape[:2], stride, padding, dilation, input_dilation)
    ]
    out_dtype, features = preferred_element_type or x.dtype, w.shape[3] // groups
    shape = (x.shape[0], groups, *size, features)
    if 0 in (*shape, *x.shape, *w.shape):
        return jnp.zeros((x.shape[0], *size, w.shape[3]), out_dtype)
    if x.dtype != jnp.bfloat16:  # which the matrix unit takes as it is, and sums in float32
        x, w = x.astype(wide(out_dtype)), w.astype(wide(out_dtype))
    phases = split_into_phases(x, w.shape[:2], size, stride, padding, dilation, input_dilation, groups)
    windows = w.reshape(*w.shape[:3], groups, features).transpose(3, 0, 1, 2, 4)
    block = min(features, LANES)
    in_blocks, out_block = (phases.shape[2:], (*windows.shape[1:4], block)), (size[1], block)
    refuse_on_tpu(in_blocks, out_block, x.dtype, wide(out_dtype), interpret)
    y = pl.pallas_call(
        partial(conv2d_kernel, stride=stride, dilation=dilation, dtype=wide(out_dtype)),
        grid=(x.shape[0], groups, pl.cdiv(features, block), size[0]),
        in_specs=[
            pl.BlockSpec((None, None, *in_blocks[0]), lambda b, g, o, i: (b, g, 0, 0, 0, 0, 0)),
            pl.BlockSpec((None, *in_blocks[1]), lambda b, g, o, i: (g, 0, 0, 0, o)),
        ],
        out_specs=pl.BlockSpec((None, None, None, *out_block), lambda b, g, o, i: (b, g, i, 0, o)),
        out_shape=jax.ShapeDtypeStruct(shape, out_dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 4),
        interpret=interpret,
        name="conv2d",
    )(phases, windows)
    return y.transpose(0, 2, 3, 1, 4).reshape(x.shape[0], *size, w.shape[3])


def split_into_phases(x, taps, size, stride, padding, dilation, input_dilation, groups):
    """(batch, height, width, in) as (batch, group, phase, phase, height / stride, width / stride, channels).

    On the way it is padded, cropped and dilated, and cut or filled to the pixels that the windows read.
    """
    lengths = [(k - 1) * d // s + m for k, d, s, m in zip(taps, dilation, stride, size)]
    edges = [
        (lo, n * s - lo - dilated(pixels, a), a - 1)
        for n, s, (lo, _), pixels, a in zip(lengths, stride, padding, x.shape[1:3], input_dilation)
    ]
    x = lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *edges, (0, 0, 0)))
    x = x.reshape(x.shape[0], lengths[0], stride[0], lengths[1], stride[1], groups, x.shape[3] // groups)
    return x.transpose(0, 5, 2, 4, 1, 3, 6)


def refuse_on_tpu(in_blocks, out_block, dtype, sums, interpret):
    if interpret is not False:
        return
    if sums != jnp.float32:
        raise Unsupported(
            f"conv2d's Pallas kernel adds up in float32 on a TPU, and this sum is in {sums}: "
            "use implementation='xla'."
        )
    # Memory holds tiles of 8 by 128, so the last two axes count as what they are rounded up to.
    tiles = [
        math.prod(rest) * -(-rows // 8) * -(-lanes // 128) for *rest, rows, lanes in (*in_blocks, out_block)
    ]
    need = 2 * sum(tiles) * 8 * 128 * dtype.itemsize
    if need > MEMORY:
        raise Unsupported(
            f"conv2d's Pallas kernel keeps a whole image and window in a TPU's memory, and these need "
            f"{need} bytes of {MEMORY}: use implementation='xla'."
        )
