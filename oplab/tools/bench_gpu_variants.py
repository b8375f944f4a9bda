"""The GPU benchmark's shapes, its variants of attention, and the float32 answer that each must give.

Fused is one kernel that never writes the table of scores (Mosaic GPU, cuDNN); `xla` is what the compiler
makes of the formula; unfused is every operator a program of its own, as in the baseline of FlashAttention's
papers. All take q, k, v and do, the gradient that arrives at o, each (batch, time, heads, features), and
return [o], or [dq, dk, dv] after a forward and a backward pass.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from oplab import ops
from oplab.tools.bench_attention_problem import Missing, Shape

TOKENS, HIDDEN = 16384, 2048
SEQ = [512 << i for i in range(6)]
BLOCK = 64  # rows of time whose error is judged together
AGREE = {"float16": 1e-2, "bfloat16": 5e-2}  # of a block's size: above this a variant is not timed
SCORES_HELD = (3, 4)  # tables of scores in float32 that `unfused` has at once: forward, and with the backward

Variant = Callable[..., list[jax.Array]]


def shapes(dry: bool) -> list[Shape]:
    """All shapes; dry, two tiny ones that between them have everything that a variant can differ by."""
    if dry:
        return [Shape(64, 1, 128, False, False, "float16"), Shape(64, 2, 64, True, True, "bfloat16")]
    return [Shape(seq, HIDDEN // dim, dim, causal, backward, dtype, TOKENS // seq)
            for backward, dtype, dim, causal, seq in itertools.product(
                (False, True), ("bfloat16", "float16"), (64, 128), (False, True), SEQ)]


def inputs(shape: Shape) -> list[jax.Array]:
    """q, k, v and do, made on the device: unit-normal numbers, the same for every variant."""
    size = (shape.batch, shape.seq, shape.heads, shape.dim)
    return [jax.random.normal(key, size, shape.dtype) for key in jax.random.split(jax.random.key(0), 4)]


# Fused, and XLA's own ---------------------------------------------------------------------------------------


def ours(implementation: str, shape: Shape) -> Variant:
    def attention(q, k, v):
        return ops.attention(q, k, v, causal=shape.causal, implementation=implementation)

    return jitted(attention, shape)


def cudnn(shape: Shape) -> Variant:
    if jax.default_backend() != "gpu":
        raise Missing("cuDNN's kernels are for NVIDIA GPUs")
    attention = partial(jax.nn.dot_product_attention, is_causal=shape.causal, implementation="cudnn")
    return jitted(attention, shape)


def jitted(attention: Callable, shape: Shape) -> Variant:
    """One program: compiled here, so that what has no rule raises before anything is timed."""
    def forward(q, k, v, do):
        return [attention(q, k, v)]

    def both(q, k, v, do):
        return list(jax.vjp(attention, q, k, v)[1](do))

    given = [jax.ShapeDtypeStruct((shape.batch, shape.seq, shape.heads, shape.dim), shape.dtype)] * 4
    return jax.jit(both if shape.backward else forward).lower(*given).compile()


# Unfused ----------------------------------------------------------------------------------------------------


@jax.jit
def scores(q, k):
    return jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=jnp.float32)


@jax.jit
def scaled(s, scale):
    return s * scale


@jax.jit
def masked(s):
    return jnp.where(jnp.tri(s.shape[-1], dtype=bool), s, -jnp.inf)


@partial(jax.jit, static_argnums=1)
def softmax(s, dtype):
    return jax.nn.softmax(s).astype(dtype)


@jax.jit
def weighted(p, v):
    return jnp.einsum("bhts,bshd->bthd", p, v)


@jax.jit
def values_gradient(p, do):
    return jnp.einsum("bhts,bthd->bshd", p, do)


@jax.jit
def softmax_gradient(p, dp, scale):
    p = p.astype(jnp.float32)
    return scale * p * (dp - jnp.sum(dp * p, -1, keepdims=True))


@partial(jax.jit, static_argnums=1)
def rounded(ds, dtype):
    return ds.astype(dtype)


def unfused(shape: Shape) -> Variant:
    """Every line below is a program of its own: its operands are read from memory, its result goes there."""
    scale = shape.dim**-0.5

    def weights(q, k):
        s = scaled(scores(q, k), scale)
        return softmax(masked(s) if shape.causal else s, q.dtype)

    def forward(q, k, v, do):
        return [weighted(weights(q, k), v)]

    def both(q, k, v, do):
        p = weights(q, k)
        weighted(p, v)  # the value, which whoever trains needs too
        dv = values_gradient(p, do)
        ds = rounded(softmax_gradient(p, scores(do, v), scale), q.dtype)
        return [weighted(ds, k), values_gradient(ds, q), dv]

    return both if shape.backward else forward


VARIANTS: dict[str, Callable[[Shape], Variant]] = {
    "pallas": partial(ours, "pallas"),
    "cudnn": cudnn,
    "xla": partial(ours, "xla"),
    "unfused": unfused,
}
FUSED = ("pallas", "cudnn")


# The answer -------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("causal", "backward"))
def reference(q, k, v, do, causal: bool, backward: bool) -> list[jax.Array]:
    """The formula in float32, one head at a time, so that one table of scores is all that is ever there."""
    def head(q, k, v):
        s = q @ k.T * q.shape[-1] ** -0.5
        return jax.nn.softmax(jnp.where(jnp.tri(len(q), dtype=bool), s, -jnp.inf) if causal else s) @ v

    def one(given):
        q, k, v, do = given
        return list(jax.vjp(head, q, k, v)[1](do)) if backward else [head(q, k, v)]

    batch, _, heads, _ = q.shape
    with jax.default_matmul_precision("highest"):
        apart = [x.astype(jnp.float32).swapaxes(1, 2).reshape(-1, *x.shape[1::2]) for x in (q, k, v, do)]
        found = lax.map(one, apart)
    return [x.reshape(batch, heads, *x.shape[1:]).swapaxes(1, 2) for x in found]


@jax.jit
def distance(found: list[jax.Array], wanted: list[jax.Array]) -> jax.Array:
    """The largest error of a block of rows, as a share of the block's size or, if larger, of the mean one."""
    def blocks(x):
        batch, time, heads, features = x.shape
        rows = x.astype(jnp.float32).reshape(batch, time // min(BLOCK, time), -1, heads, features)
        return jnp.sqrt(jnp.sum(rows * rows, (2, 4)))

    def apart(f, w):
        size = blocks(w)
        return jnp.max(blocks(f.astype(jnp.float32) - w) / jnp.maximum(size, size.mean()))

    return jnp.stack([apart(f, w) for f, w in zip(found, wanted, strict=True)]).max()


def check(found: list[jax.Array], wanted: list[jax.Array], dtype: str) -> float:
    """The error of a variant. Raises Missing when that is no rounding: a wrong answer is worth no time."""
    error = float(np.asarray(distance(found, wanted)))
    if not error <= AGREE[dtype]:  # NaN is not
        share = f"{error:.1e} of their size"
        raise Missing(f"its numbers differ from float32's by {share}, and it was not timed")
    return error


def words(error: Exception) -> str:
    """The first line of an error, without the paths of whoever ran this."""
    line = (str(error).splitlines() or [""])[0]
    return re.sub(r"(?:[A-Za-z]:)?(?:[/\\][\w.\-]+){2,}", "(path)", line)[:300].rstrip(".")
