"""relu: y = max(x, 0), element by element. Read this file first: it holds a whole operator.

The rectified linear unit keeps what is positive. NaN goes in and comes out: `max` in StableHLO and in Pallas
hands NaN on, where `where(x > 0, x, 0)` would hide it. The derivative is 1 where x > 0 and 0 elsewhere, also
at 0, where mathematics leaves the choice (Glorot, Bordes and Bengio, 2011, take 0 too).

Cost for n elements: n FLOPs (one comparison each), 2 n itemsize bytes (read x, write y). There is next to no
arithmetic, so alone it is as slow as a copy: its best implementation is to be fused into its neighbour.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import Primitive

from .._jax import (
    ad,  # JAX's tables of derivative rules, one entry a primitive
    batching,  # the same for vmap
    eager,  # runs a primitive outside of jit: compiles it alone
    full,  # a StableHLO constant of a given shape
    hlo,  # the StableHLO ops, one Python function each
    is_zero,  # is this tangent known to be zero? JAX then makes no array of it
    zero_like,  # such a zero
)
from .operator import (
    Operator,  # a line of the catalogue
    by_pallas,  # the kernel as entries for TPU (compiled) and CPU (interpreted)
    check_implementation,  # refuses a name that is none
    lower,  # enters implementations into the map that JAX asks when it writes StableHLO
)

# The operator: a primitive, which is a name that a jaxpr (JAX's record of a function) prints --------------
#   It does nothing by itself. The rules below tell JAX what to do with the name: its shape, its derivative,
#   what vmap makes of it, and the code it becomes. `bind` writes it into the record, or runs it.

relu_p = Primitive("relu")


def relu(x, *, implementation=None):
    """max(x, 0) of every element.

    x: real numbers of any shape. Returns an array of the same shape and dtype; NaN stays NaN.
    implementation: "xla", "pallas", or None for the best one on the platform.
    Raises TypeError for complex numbers and booleans, which have no such order.
    """
    x = jnp.asarray(x)
    check_implementation("relu", implementation)
    if x.dtype == bool or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"relu expects real numbers, but x is {x.dtype}{list(x.shape)}.")
    return relu_p.bind(x, implementation=implementation)


# What it means, in jax.numpy: every implementation is tested against this ---------------------------------


def relu_reference(x):
    return jnp.maximum(x, 0)


# What shape it has: x is here its shape and dtype, without a value, and so is y ---------------------------


def relu_shape(x, *, implementation):
    return x


# How it differentiates ------------------------------------------------------------------------------------
#   y  = max(x, 0)
#   dy = dx where x > 0, else 0
# This is forward mode (a JVP): the tangent dx, a small change of x, gives dy, that of y. dy is linear in dx,
# so reverse mode needs no rule of its own: JAX runs the `where` backwards ("transposes" it).


def relu_jvp(primals, tangents, *, implementation):
    (x,), (dx,) = primals, tangents
    y = relu_p.bind(x, implementation=implementation)
    return y, zero_like(y) if is_zero(dx) else jnp.where(x > 0, dx, jnp.zeros_like(dx))


# How it batches: elements do not know each other, so an axis that vmap adds is an axis like all others ----
#   dims tells, for each operand, which axis that is; the rule returns y and where the axis is in y.


def relu_batch(operands, dims, *, implementation):
    return relu_p.bind(*operands, implementation=implementation), dims[0]


# How it becomes StableHLO, the language that XLA compiles: one op, written by hand ------------------------
#   ctx knows the shapes and dtypes (avals, for abstract values) of what goes in and out.


def relu_stablehlo(ctx, x):
    (aval,) = ctx.avals_in
    return [hlo.maximum(x, full(ctx, 0, aval))]


# How it runs on the chip, as a Pallas kernel --------------------------------------------------------------
#   The array is laid out as rows of 128 numbers, the width of a TPU's vector register. The kernel runs once
#   for each block of rows (a run is a "program", all runs are the grid), and sees the block as x_ref and
#   y_ref. The last block may reach over the edge: what it reads there is undefined, what it writes there is
#   dropped, and since elements do not know each other, no mask is needed.

LANES = 128
ROWS = 512  # in a block: 256 KiB of float32; x and y, each twice (one copied, one in use), are 1 MiB


def relu_kernel(x_ref, y_ref):
    x = x_ref[...]
    y_ref[...] = jnp.maximum(x, jnp.zeros_like(x))


def relu_pallas(x, *, interpret=False):
    size = math.prod(x.shape)
    if size == 0:
        return x
    padded = pl.cdiv(size, LANES) * LANES  # cdiv divides and rounds up
    rows = jnp.pad(x.reshape(-1), (0, padded - size)).reshape(-1, LANES)
    block = pl.BlockSpec((min(ROWS, len(rows)), LANES), lambda i: (i, 0))  # program i takes block i
    y = pl.pallas_call(
        relu_kernel,
        grid=(pl.cdiv(len(rows), ROWS),),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(rows.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
        name="relu",
    )(rows)
    return y.reshape(-1)[:size].reshape(x.shape)


# The table of contents: which rule answers which question -------------------------------------------------

relu_p.def_impl(eager(relu_p))
relu_p.def_abstract_eval(relu_shape)
ad.primitive_jvps[relu_p] = relu_jvp
batching.primitive_batchers[relu_p] = relu_batch
lower(relu_p, xla=relu_stablehlo, pallas=by_pallas(relu_pallas))

OPERATOR = Operator(
    "relu", relu, relu_reference, relu_p, {"x": {"batch": 8, "features": 32}}, "y = max(x, 0)"
)
