"""What attention takes: checks of its operands, and their order.

A primitive has no optional operands, so those that are given come one after the other, and the parameter
`extras` names them: q, k, v, then some of mask, bias and kv_len.
"""

from __future__ import annotations

import jax.numpy as jnp

from .operator import check_floating


def check_operands(q, k, v):
    check_floating("attention", q=q, k=k, v=v)
    shapes = ", ".join(f"{name} {x.dtype}{list(x.shape)}" for name, x in zip("qkv", (q, k, v)))
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (3, 4):
        raise ValueError(
            f"attention expects q (batch, time, heads, features), k (batch, source, kv_heads, features) and "
            f"v (batch, source, kv_heads, value features), got {shapes}."
        )
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention expects q, k and v of one dtype, got {shapes}.")
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"attention expects q, k and v of one batch, k and v of one source and kv_heads, q and k of as "
            f"many features, got {shapes}."
        )
    if k.shape[-2] == 0 or q.shape[-2] % k.shape[-2]:
        raise ValueError(
            f"attention expects q's heads to be a multiple of k's kv_heads, got {q.shape[-2]} and "
            f"{k.shape[-2]} ({shapes})."
        )


def broadcasting(name, x, shape):
    """A mask or bias with four dimensions, each full or 1."""
    if x is None:
        return None
    x = jnp.asarray(x)
    if (name == "mask") != (x.dtype == bool) or name == "bias" and not jnp.issubdtype(x.dtype, jnp.floating):
        kind = "booleans" if name == "mask" else "floating-point numbers"
        raise TypeError(f"attention expects {kind} as {name}, got {x.dtype}{list(x.shape)}.")
    given, x = x.shape, x.reshape((1,) * (4 - x.ndim) + x.shape) if x.ndim < 4 else x
    if x.ndim > 4 or any(n not in (1, m) for n, m in zip(x.shape, shape)):
        raise ValueError(
            f"attention expects a {name} that broadcasts to (batch, heads, time, source) "
            f"{list(shape)}, got {list(given)}."
        )
    return x


def lengths(kv_len, batch):
    if kv_len is None:
        return None
    kv_len = jnp.asarray(kv_len)
    if not jnp.issubdtype(kv_len.dtype, jnp.integer) or kv_len.shape not in ((), (batch,)):
        raise ValueError(
            f"attention expects kv_len to be integers of shape [{batch}], one for each batch, got "
            f"{kv_len.dtype}{list(kv_len.shape)}."
        )
    return jnp.broadcast_to(kv_len, (batch,)).astype(jnp.int32)


def spread(f):
    """`f` with mask, bias and kv_len in their places, from operands of which `extras` says what they are.

    Of its results, those that are None (the gradient of a bias that is not there) are left out.
    """

    def spread_f(q, k, v, *rest, extras, **params):
        given = dict(zip(extras, rest))
        more = rest[len(extras) :]
        results = f(q, k, v, *(given.get(name) for name in ("mask", "bias", "kv_len")), *more, **params)
        return [y for y in results if y is not None]

    return spread_f
