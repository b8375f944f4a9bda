"""attention on the CPU: calls of the C++ kernels in oplab/native, by XLA's foreign function interface.

The kernels compute in float32. float16 and bfloat16 are converted before and after, which costs a pass over
q, k, v and O and none over the scores; a processor with AMX takes bfloat16 as it is in the forward pass.
float64 has no kernel. The backward pass reads O as the forward pass rounded it, as FlashAttention's does.
Nothing here is differentiated or batched: these are lowerings of primitives that have rules for that.
"""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from .. import native
from . import attention_formula
from .operator import Unsupported

CAUSAL = {None: 0, "top_left": 1, "bottom_right": 2}  # as oplab/native/attention.h numbers them
GIVEN = {"mask": 1, "bias": 2, "kv_len": 4}
TYPES = ("float32", "bfloat16", "float16")


def refusal(q, k, v) -> str | None:
    """Why the kernels cannot take these operands (arrays or avals), in one sentence; None if they can."""
    if str(q.dtype) not in TYPES:
        return f"attention's native kernel computes in float32, not {q.dtype}: use implementation='xla'."
    return None


def load(q, k, v) -> native.Library:
    """The library, whose kernels XLA can now call; or Unsupported with the reason."""
    reason = refusal(q, k, v)
    if reason:
        raise Unsupported(reason)
    try:
        return native.load()
    except native.Unavailable as error:
        raise Unsupported(f"attention has no native kernel here: {error}") from error


def ready(q, k, v) -> bool:
    """Can the kernels take these operands, here? Where there are none, a warning says so once."""
    if refusal(q, k, v):
        return False
    try:
        native.load()
    except native.SwitchedOff:
        return False
    except native.Unavailable as error:
        _warn_once(str(error))
        return False
    return True


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"attention runs as XLA compiles it, with no native kernel: {reason}.", stacklevel=2)


def call(target, results, operands, extras, causal, scale):
    """One custom call. extras: name -> array, for those of mask, bias and kv_len that are given."""
    given = {name: x for name, x in extras.items() if x is not None}
    converted = [x if name != "bias" else x.astype(jnp.float32) for name, x in given.items()]
    return jax.ffi.ffi_call(target, results)(
        *operands[:3],
        *converted,
        *operands[3:],
        scale=np.float32(scale),
        causal=np.int64(CAUSAL[causal]),
        extras=np.int64(sum(GIVEN[name] for name in given)),
    )


def forward(q, k, v, mask, bias, kv_len, *, causal, scale):
    """O (batch, time, heads, value features) in q's dtype, and lse (batch, heads, time) in float32."""
    library = load(q, k, v)
    dtype = q.dtype if q.dtype == jnp.bfloat16 and library.takes_bfloat16 else jnp.dtype(jnp.float32)
    batch, time, heads, _ = q.shape
    results = [
        jax.ShapeDtypeStruct((batch, time, heads, v.shape[-1]), dtype),
        jax.ShapeDtypeStruct((batch, heads, time), jnp.float32),
    ]
    operands = [x.astype(dtype) for x in (q, k, v)]
    extras = {"mask": mask, "bias": bias, "kv_len": kv_len}
    o, lse = call("oplab_attention", results, operands, extras, causal, scale)
    return o.astype(q.dtype), lse


def backward(q, k, v, mask, bias, kv_len, o, lse, do, dlse, *, causal, scale):
    """(dq, dk, dv, dbias); dbias is None without a bias.

    The gradient of a bias is a table of scores itself, so it is XLA's to write; where nobody asks for it, XLA
    removes the work again.
    """
    load(q, k, v)
    operands = [x.astype(jnp.float32) for x in (q, k, v, o, lse, do, dlse)]
    results = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (q, k, v)]
    extras = {"mask": mask, "bias": bias, "kv_len": kv_len}
    gradients = call("oplab_attention_backward", results, operands, extras, causal, scale)
    dq, dk, dv = (dx.astype(x.dtype) for dx, x in zip(gradients, (q, k, v)))
    if bias is None:
        return dq, dk, dv, None
    params = {"causal": causal, "scale": scale}
    return dq, dk, dv, attention_formula.backward(q, k, v, mask, bias, kv_len, o, lse, do, dlse, **params)[3]
