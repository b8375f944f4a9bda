"""The mathematics of attention in jax.numpy: its value, its tangent, its gradients. No primitive, no kernel.

    S = scale q k^T + bias          scores, (batch, heads, time, source)
    P = exp(S - lse)                lse = log sum exp(S) over the keys that a query sees; P = 0 elsewhere
    O = P v

Everything is computed in float32 (float64 for float64) and rounded once. These functions are the reference,
the "xla" implementation, and, by `jax.jvp`, the derivatives of second order.
"""

from __future__ import annotations

import jax.numpy as jnp

from .sums import wide


def seen(q, k, mask, kv_len, causal):
    """Which query sees which key: booleans that broadcast to (batch, heads, time, source); None for all."""
    time, source = q.shape[1], k.shape[1]
    parts = [] if mask is None else [mask]
    if kv_len is not None:
        parts.append((jnp.arange(source) < kv_len[:, None])[:, None, None, :])
    if causal:
        last = jnp.arange(time) + (
            source - time if causal == "bottom_right" else 0
        )  # the last key of each query
        parts.append((jnp.arange(source) <= last[:, None])[None, None])
    whole = None
    for part in parts:
        whole = part if whole is None else whole & part
    return whole


def hide(x, who, heads):
    """Keys or values (batch, source, kv_heads, features), 0 where no query at all sees them.

    Padding may hold anything, and 0 * NaN is NaN: a weight of 0 is not enough to keep it out.
    """
    if who is None:
        return x
    batch, source, kv_heads, _ = x.shape
    some = jnp.broadcast_to(who.any(2), (batch, heads, source))  # by some query, for each of its heads
    some = some.reshape(batch, kv_heads, heads // kv_heads, source).any(2)
    return jnp.where(some.swapaxes(1, 2)[..., None], x, 0)


def grouped(x, kv_heads):
    """(batch, time, heads, features) as (batch, time, kv_heads, group, features): head n uses n // group."""
    batch, time, heads, features = x.shape
    return x.reshape(batch, time, kv_heads, heads // kv_heads, features)


def over_features(a, b):
    """Products of every query with every key: (batch, time, heads, f), (batch, source, kv_heads, f)."""
    s = jnp.einsum("btkgf,bskf->bkgts", grouped(a, b.shape[2]), b, preferred_element_type=wide(a.dtype))
    return s.reshape(a.shape[0], a.shape[2], a.shape[1], b.shape[1])


def over_keys(p, b):
    """Sums over keys: weights (batch, heads, time, source), b (batch, source, kv_heads, f)."""
    batch, heads, time, source = p.shape
    p = p.reshape(batch, b.shape[2], heads // b.shape[2], time, source)
    return jnp.einsum("bkgts,bskf->btkgf", p, b.astype(p.dtype)).reshape(batch, time, heads, b.shape[-1])


def over_queries(p, a, kv_heads):
    """Sums over queries, and over the heads of a group: weights as above, a (batch, time, heads, f)."""
    batch, heads, time, source = p.shape
    p = p.reshape(batch, kv_heads, heads // kv_heads, time, source)
    return jnp.einsum("bkgts,btkgf->bskf", p, grouped(a, kv_heads).astype(p.dtype))


def scores(q, k, bias, scale):
    # Into q where that costs no bits: then no product stands before s - lse (softmax.py says why).
    s = over_features(q * scale, k) if wide(q.dtype) == q.dtype else over_features(q, k) * scale
    return s if bias is None else s + bias.astype(s.dtype)


def forward(q, k, v, mask, bias, kv_len, *, causal, scale):
    """O (batch, time, heads, value features) in q's dtype, and lse (batch, heads, time)."""
    who = seen(q, k, mask, kv_len, causal)
    k, v = hide(k, who, q.shape[2]), hide(v, who, q.shape[2])
    s = scores(q, k, bias, scale)
    s = s if who is None else jnp.where(who, s, -jnp.inf)

    def largest(s):  # a query that sees no key has no largest score, and nothing to subtract
        m = s.max(-1, keepdims=True, initial=-jnp.inf)
        return jnp.where(m == -jnp.inf, 0, m)

    m = largest(s)
    s = s - m
    if wide(q.dtype) != q.dtype or q.shape[-1] < 2:  # then a product stands right before s - m, and the
        again = largest(s)  # maximum is subtracted twice, for the reason given in softmax.py
        s, m = s - again, m + again
    p = jnp.exp(s)
    total = p.sum(-1, keepdims=True)
    each = jnp.where(total == 0, 1, total)[..., 0].swapaxes(1, 2)[..., None]  # no key: 0, not 0 / 0
    o = over_keys(p, v) / each  # after the product: features are fewer than keys, so fewer divisions
    return o.astype(q.dtype), (m + jnp.log(total))[..., 0]


def weights(s, who, lse):
    """P = exp(S - lse), and 0 where lse is that of no key at all."""
    p = jnp.exp(s - jnp.where(lse == -jnp.inf, 0, lse)[..., None])
    return p if who is None else jnp.where(who, p, 0)


def tangent(q, k, v, mask, bias, kv_len, o, lse, dq, dk, dv, dbias, *, causal, scale):
    """(dO, dlse), linear in the tangents, of which any may be None.

    dS   = scale (dq k^T + q dk^T) + dbias
    dlse = sum_s P dS
    dP   = P (dS - dlse)
    dO   = dP v + P dv

    O is not used: it was rounded, and P is at hand.
    """
    who = seen(q, k, mask, kv_len, causal)
    k, v = hide(k, who, q.shape[2]), hide(v, who, q.shape[2])
    p = weights(scores(q, k, bias, scale), who, lse)
    do, dlse = jnp.zeros(o.shape, p.dtype), jnp.zeros(lse.shape, p.dtype)
    parts = [] if dq is None else [over_features(dq, k) * scale]
    parts += [] if dk is None else [over_features(q, hide(dk, who, q.shape[2])) * scale]
    parts += [] if dbias is None else [jnp.broadcast_to(dbias, p.shape).astype(p.dtype)]
    if parts:
        ds = sum(parts) if who is None else jnp.where(who, sum(parts), 0)
        dlse = (p * ds).sum(-1)
        do = over_keys(p * (ds - dlse[..., None]), v)
    if dv is not None:
        do = do + over_keys(p, hide(dv, who, q.shape[2]))
    return do.astype(o.dtype), dlse


def backward(q, k, v, mask, bias, kv_len, o, lse, do, dlse, *, causal, scale):
    """(dq, dk, dv, dbias) from the cotangents of O and lse; dbias is None without a bias.

    dv = P^T dO
    dP = dO v^T
    D  = sum_s P dP
    dS = P (dP - D + dlse)
    dq = scale dS k,  dk = scale dS^T q,  dbias = dS

    D is also sum_features dO O, which needs no scores: a kernel that holds a block of them computes it so.
    But O was rounded, and here P and dP are at hand.
    """
    who = seen(q, k, mask, kv_len, causal)
    k, v = hide(k, who, q.shape[2]), hide(v, who, q.shape[2])
    p = weights(scores(q, k, bias, scale), who, lse)
    do = do.astype(p.dtype)
    dp = over_features(do, v.astype(p.dtype))
    d = (p * dp).sum(-1)
    ds = p * (dp - (d - dlse)[..., None])
    kv_heads = k.shape[2]
    dbias = None if bias is None else to_shape(ds, bias.shape).astype(bias.dtype)
    return (
        (over_keys(ds, k) * scale).astype(q.dtype),
        (over_queries(ds, q, kv_heads) * scale).astype(k.dtype),
        over_queries(p, do, kv_heads).astype(v.dtype),
        dbias,
    )


def to_shape(x, shape):
    """Sums over the dimensions along which an array of `shape` was repeated."""
    return x.sum(tuple(i for i, (n, m) in enumerate(zip(x.shape, shape)) if n != m), keepdims=True)
