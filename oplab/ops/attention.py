"""attention: O = softmax(scale q k^T + bias) v, for every head of every batch.

    S = scale q k^T + bias     (batch, heads, time, source)
    P = softmax(S)             over the keys that a query may see
    O = P v                    (batch, time, heads, value features)

Scaled dot-product attention (Vaswani et al., 2017, arXiv 1706.03762). Written as three operators, S and P go
to memory and come back: 2 time * source numbers a head, where q, k, v and O hold only time * features. The
fused kernel (FlashAttention: Dao et al., 2022, arXiv 2205.14135) never stores them; it keeps, for each query,
a running maximum and a running sum. So this operator has one more result, lse = log sum exp(S): with it the
backward pass computes P again instead of reading it.

Cost for b batches, n heads, t queries, s keys, h features: 4 b n t s h FLOPs in two products (half of it with
a causal mask, in a kernel that skips), 5 b n t s for the softmax, b n t s transcendentals; bytes: q, k, v and
O once each. The backward pass has five products, 10 b n t s h FLOPs.

The formulas are in attention_formula.py, the kernels in attention_kernel.py and attention_backward.py (TPU),
attention_hopper.py (NVIDIA), and oplab/native (C++ for the CPU, called by attention_native.py).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from .._jax import ad, batching, derived, eager, in_front, instantiated, is_zero, mlir, same_axes, zero_like
from . import attention_backward, attention_formula, attention_kernel, attention_native
from .attention_operands import broadcasting, check_operands, lengths, spread
from .operator import Operator, Unsupported, by_pallas, check_implementation, lower
from .sums import wide

# The operator: one primitive for the value, and two for its derivatives -------------------------------------

attention_p = Primitive("attention")
attention_tangent_p = Primitive("attention_tangent")
attention_backward_p = Primitive("attention_backward")
for _p in (attention_p, attention_tangent_p, attention_backward_p):
    _p.multiple_results = True


def attention(q, k, v, *, causal=False, mask=None, bias=None, kv_len=None, scale=None, implementation=None):
    """softmax(scale q k^T + bias) v: every query's mean of the values, weighted by how well their keys fit.

    q: (batch, time, heads, features). k: (batch, source, kv_heads, features). v: (batch, source, kv_heads,
    value features). All three of one floating dtype; without a batch, all three have one dimension less.
    heads must be a multiple of kv_heads: query head n uses key head n // (heads / kv_heads).
    causal: False; True or "top_left", where query t sees keys 0 to t (as in JAX and torch); or
    "bottom_right", where it sees keys 0 to t + source - time (decoding with a cache).
    mask: booleans that broadcast to (batch, heads, time, source), True where a query may see a key.
    bias: numbers that broadcast to the same, added to the scaled scores.
    kv_len: integers (batch,); keys from there on are padding.
    scale: a Python number, 1 / sqrt(features) unless given.
    implementation: "xla", "pallas", "native" (the C++ kernel, on the CPU), or None for the best one on the
        platform.

    Returns (batch, time, heads, value features) in q's dtype. A query that sees no key gives 0. A key that no
    query sees never leaks, whatever it holds. Raises ValueError or TypeError for operands that do not fit.
    """
    check_implementation("attention", implementation)
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    check_operands(q, k, v)
    alone = q.ndim == 3
    if alone:
        q, k, v = q[None], k[None], v[None]
    (batch, time, heads, features), source = q.shape, k.shape[1]
    extras = {
        "mask": broadcasting("mask", mask, (batch, heads, time, source)),
        "bias": broadcasting("bias", bias, (batch, heads, time, source)),
        "kv_len": lengths(kv_len, batch),
    }
    if causal not in (False, None, True, "top_left", "bottom_right"):
        raise ValueError(
            f"attention expects causal to be False, True, 'top_left' or 'bottom_right', got {causal!r}."
        )
    if isinstance(scale, jax.core.Tracer):
        raise TypeError(
            "attention expects scale to be a Python number, got a traced value: multiply q by it instead."
        )
    given = {name: x for name, x in extras.items() if x is not None}
    o, _ = attention_p.bind(
        *same_axes(q, k, v, *given.values()),
        extras=tuple(given),
        causal={True: "top_left", False: None}.get(causal, causal),
        scale=float(scale) if scale is not None else max(features, 1) ** -0.5,
        implementation=implementation,
    )
    return o[0] if alone else o


# What it means --------------------------------------------------------------------------------------------


def attention_reference(q, k, v, *, causal=False, mask=None, bias=None, kv_len=None, scale=None):
    causal = {True: "top_left", False: None}.get(causal, causal)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return attention_formula.forward(q, k, v, mask, bias, kv_len, causal=causal, scale=scale)[0]


@spread
def tangent_xla(q, k, v, mask, bias, kv_len, o, lse, *tangents, moving, backward, **params):
    given = dict(zip(moving, tangents))
    dx = [given.get(name) for name in ("q", "k", "v", "bias")]
    return attention_formula.tangent(q, k, v, mask, bias, kv_len, o, lse, *dx, **params)


# What shape it has: shapes of the value, of its tangent, and of the gradients -------------------------------


def attention_shape(q, k, v, *rest, **params):
    (batch, time, heads, _), wide_dtype = q.shape, wide(q.dtype)
    o = derived(q, (batch, time, heads, v.shape[-1]), q.dtype, (0, 1, 2, None))
    return [o, derived(q, (batch, heads, time), wide_dtype, (0, 2, 1))]


def attention_backward_shape(q, k, v, *rest, extras, **params):
    bias = [x for name, x in zip(extras, rest) if name == "bias"]
    return [x.update(weak_type=False) for x in (q, k, v, *bias)]


# How it differentiates. The tangent of attention is linear in dq, dk, dv and dbias; it is a primitive of its
# own so that reverse mode meets it whole, and its transpose is the fused backward kernel. The formulas, step
# by step, are those of `tangent` and `backward` in attention_formula.py.


def attention_jvp(primals, tangents, *, extras, implementation, **params):
    o, lse = attention_p.bind(*primals, extras=extras, implementation=implementation, **params)
    names = ("q", "k", "v", *extras)
    moving = {
        name: dx for name, dx in zip(names, tangents) if name not in ("mask", "kv_len") and not is_zero(dx)
    }
    if not moving:
        return (o, lse), (zero_like(o), zero_like(lse))
    return (o, lse), attention_tangent_p.bind(
        *same_axes(*primals, o, lse, *moving.values()),
        extras=extras,
        moving=tuple(moving),
        implementation=None,
        backward=implementation,
        **params,
    )


def attention_tangent_transpose(
    cotangents, q, k, v, *rest, extras, moving, implementation, backward, **params
):
    known, (o, lse) = rest[: len(extras)], rest[len(extras) : len(extras) + 2]
    wanted = rest[len(extras) + 2 :]
    if all(map(is_zero, cotangents)):
        return [None] * (5 + len(extras)) + [
            ad.Zero(dx.aval) if ad.is_undefined_primal(dx) else None for dx in wanted
        ]
    gradients = attention_backward_p.bind(
        *same_axes(q, k, v, *known, o, lse, *map(instantiated, cotangents)),
        extras=extras,
        implementation=backward,
        **params,
    )
    gradients = dict(zip(("q", "k", "v", "bias"), gradients))
    found = [gradients[name] if ad.is_undefined_primal(dx) else None for name, dx in zip(moving, wanted)]
    return [None] * (5 + len(extras)) + found


def by_formula(formula, primitive):
    """The JVP rule of a derivative: JAX differentiates its formula. Nothing of second order has a kernel."""

    def rule(primals, tangents, **params):
        moving = [i for i, dx in enumerate(tangents) if not is_zero(dx)]

        def moved(*xs):
            operands = list(primals)
            for i, x in zip(moving, xs):
                operands[i] = x
            return list(formula(*operands, **{k: p for k, p in params.items() if k != "implementation"}))

        out = primitive.bind(*primals, **params)
        if not moving:
            return out, [zero_like(y) for y in out]
        _, dout = jax.jvp(moved, [primals[i] for i in moving], [tangents[i] for i in moving])
        return out, dout

    return rule


# How it batches: a mapped axis joins the batch --------------------------------------------------------------


def merging(primitive):
    def rule(operands, dims, *, extras, **params):
        operands = in_front(operands, dims)
        size, batch = operands[0].shape[:2]

        def merged(x):  # a mask or bias may have a batch of 1
            x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
            return x.reshape(size * batch, *x.shape[2:])

        shared = [name for name, x in zip(extras, operands[3:]) if name == "bias" and x.shape[1] < batch]
        out = primitive.bind(*map(merged, operands), extras=extras, **params)
        out = [y.reshape(size, batch, *y.shape[1:]) for y in out]
        if shared and primitive is attention_backward_p:  # then its gradient is the sum over the batch
            out[3] = out[3].sum(1, keepdims=True)
        return out, [0] * len(out)

    return rule


# How it runs: XLA from the formulas, the kernels from their own files ---------------------------------------


@spread
def forward_pallas(q, k, v, *rest, interpret, **params):
    refuse_on_tpu(q, k, v, interpret)
    return attention_kernel.forward(q, k, v, *rest, interpret=interpret, **params)


@spread
def backward_pallas(q, k, v, *rest, interpret, **params):
    refuse_on_tpu(q, k, v, interpret)
    return attention_backward.backward(q, k, v, *rest, interpret=interpret, **params)


def refuse_on_tpu(q, k, v, interpret):
    reason = attention_kernel.refusal(q, k, v) if interpret is False else None
    if reason:
        raise Unsupported(reason)


@spread
def forward_hopper(q, k, v, mask, bias, kv_len, *, causal, scale):
    from .attention_hopper import attention_hopper  # imports Mosaic GPU, which only this needs

    given = [name for name, x in (("mask", mask), ("bias", bias), ("kv_len", kv_len)) if x is not None]
    if given:
        raise Unsupported(
            f"attention's kernel for NVIDIA GPUs takes no {' or '.join(given)}: use implementation='xla'."
        )
    return attention_hopper(q, k, v, causal=causal, scale=scale)


def attention_best(platform, avals, params):
    """The fused kernel where there is one that can do it, XLA elsewhere."""
    if platform == "cpu":
        return "native" if attention_native.ready(*avals[:3]) else "xla"
    return "pallas" if platform == "tpu" and attention_kernel.refusal(*avals[:3]) is None else "xla"


# The table of contents --------------------------------------------------------------------------------------

attention_p.def_impl(eager(attention_p))
attention_tangent_p.def_impl(eager(attention_tangent_p))
attention_backward_p.def_impl(eager(attention_backward_p))
attention_p.def_abstract_eval(attention_shape)
attention_tangent_p.def_abstract_eval(attention_shape)
attention_backward_p.def_abstract_eval(attention_backward_shape)
ad.primitive_jvps[attention_p] = attention_jvp
ad.primitive_jvps[attention_tangent_p] = by_formula(tangent_xla, attention_tangent_p)
ad.primitive_jvps[attention_backward_p] = by_formula(spread(attention_formula.backward), attention_backward_p)
ad.primitive_transposes[attention_tangent_p] = attention_tangent_transpose
for _p in (attention_p, attention_tangent_p, attention_backward_p):
    batching.primitive_batchers[_p] = merging(_p)
lower(
    attention_p,
    attention_best,
    xla=mlir.lower_fun(spread(attention_formula.forward)),
    pallas=by_pallas(forward_pallas, multiple_results=True, cuda=forward_hopper),
    native={"cpu": mlir.lower_fun(spread(attention_native.forward))},
)
lower(attention_tangent_p, xla=mlir.lower_fun(tangent_xla))
lower(
    attention_backward_p,
    attention_best,
    xla=mlir.lower_fun(spread(attention_formula.backward)),
    pallas=by_pallas(backward_pallas, multiple_results=True),
    native={"cpu": mlir.lower_fun(spread(attention_native.backward))},
)

OPERATOR = Operator(
    "attention",
    attention,
    attention_reference,
    attention_p,
    {
        "q": {"batch": 2, "time": 16, "heads": 2, "features": 64},
        "k": {"batch": 2, "source": 16, "kv_heads": 1, "features": 64},
        "v": {"batch": 2, "source": 16, "kv_heads": 1, "features": 64},
    },
    "O = softmax(scale q k^T + bias) v",
)
