"""FLOPs of oplab's own operators, each counted as the act that it is, whichever kernel does it.

The formulas are those in the docstrings of `oplab/ops`. A mask or a length that is known only at run time is
counted as if all of it were seen; a causal mask is known from the shapes, so only what is seen is counted, as
FlashAttention's authors count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .quantities import Cost, is_complex, size_in, size_out


def _each(eqn: Any) -> int:
    return size_out(eqn) * (2 if is_complex(eqn) else 1)


def _matmul(eqn: Any) -> int:
    """2 * elements of the result * length of what is contracted, which are a's last axes."""
    shape, inner = eqn.invars[0].aval.shape, eqn.params["inner"]
    return (8 if is_complex(eqn) else 2) * size_out(eqn) * math.prod(shape[len(shape) - inner :])


def _conv2d(eqn: Any) -> int:
    """2 * elements of the result * taps * channels of a group; zeros between dilated inputs are no work."""
    height, width, channels, _ = eqn.invars[1].aval.shape
    dilated = math.prod(eqn.params.get("input_dilation", (1, 1)))
    return 2 * size_out(eqn) * height * width * channels // dilated


def _softmax(eqn: Any) -> Cost:
    """max, subtract, sum, divide; and exp."""
    n = size_in(eqn)
    return Cost(4 * n, n)


def _layer_norm(eqn: Any) -> Cost:
    """Largest, two means (an addition each), subtract twice, square, multiply; scale, bias; a root a row."""
    n, extra = size_in(eqn), eqn.params["has_scale"] + eqn.params["has_bias"]
    length = math.prod(eqn.invars[0].aval.shape[axis] for axis in eqn.params["axes"])
    return Cost((7 + extra) * n, n // max(1, length))


def _pairs(eqn: Any) -> int:
    """Pairs of a query and a key that it sees, over all heads and batches."""
    (batch, time, heads, _), source = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape[1]
    causal = eqn.params["causal"]
    offset = source - time if causal == "bottom_right" else 0
    seen = sum(min(max(t + offset + 1, 0), source) for t in range(time)) if causal else time * source
    return batch * heads * seen


def _attention(eqn: Any) -> Cost:
    """Scores and weighted sum, two FLOPs a feature each; scale and softmax, five a pair; an exp a pair."""
    features, values, pairs = eqn.invars[0].aval.shape[-1], eqn.invars[2].aval.shape[-1], _pairs(eqn)
    return Cost(pairs * (2 * features + 2 * values + 5), pairs)


def _attention_backward(eqn: Any) -> Cost:
    """Five products: scores again, dv, dP, dq, dk; and four FLOPs a pair between them."""
    features, values, pairs = eqn.invars[0].aval.shape[-1], eqn.invars[2].aval.shape[-1], _pairs(eqn)
    return Cost(pairs * (6 * features + 4 * values + 5), pairs)


def _attention_tangent(eqn: Any) -> Cost:
    """Scores again, then two products for each operand that moves: one for q or k or the bias, one for v."""
    features, values, pairs = eqn.invars[0].aval.shape[-1], eqn.invars[2].aval.shape[-1], _pairs(eqn)
    moving = eqn.params["moving"]
    products = 2 * features * (1 + ("q" in moving) + ("k" in moving))
    products += 2 * values * (("v" in moving) + bool(set(moving) - {"v"}))
    return Cost(pairs * (products + 4), pairs)


OPERATORS: dict[str, Callable[[Any], int | Cost]] = {
    "relu": _each,
    "bias_add": _each,
    "matmul": _matmul,
    "conv2d": _conv2d,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "attention": _attention,
    "attention_tangent": _attention_tangent,
    "attention_backward": _attention_backward,
}
