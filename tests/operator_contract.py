"""What the operators are held against: their mathematics in numpy's float64, without JAX, in one table.

A new operator needs one entry in `ENTRIES`: its formula in numpy and a few cases. A case such as

    Case("x: rows=2 features=3, scale: features", eps=[1e-5, 1.0])

names the axes of each operand; axes of one name have one size, "2*heads" is twice as long as "heads", and 1
is 1. Each option has a list of values: the contract takes the first, Hypothesis draws from all, as it draws
the sizes.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

# Tolerances -------------------------------------------------------------------------------------------------
# dtype -> (relative, absolute). float32 and float64: some hundred roundings of 2**-24 and 2**-53, and sums
# that cancel, which no relative bound describes. bfloat16 and float16 have 8 and 11 bits: whoever computes in
# float32 and rounds once is off by half a unit in the last place, and by float32's own error. Two roundings
# do not pass.
TOLERANCES = {
    "float64": (1e-13, 1e-13),
    "float32": (1e-5, 1e-5),
    "bfloat16": (2**-8 + 1e-5, 1e-5),
    "float16": (2**-11 + 1e-5, 1e-5),
}
FLOATS = tuple(TOLERANCES)
DIFFERENCES = 1e-7  # what central differences in float64 leave, beside any dtype's own tolerance
PARTICULAR = {
    "where": bool,
    "mask": bool,
    "kv_len": np.int32,
}  # operands that are no numbers to differentiate by


def assert_close(got, expected, dtype=None, slack=0.0, inside=0.0):
    """Numbers of `dtype` (that of `got`, unless given) against float64, NaN in the same places.

    inside: units in the last place that may be lost on the way, see `Entry`.
    """
    dtype = str(dtype or got.dtype)
    relative, absolute = TOLERANCES.get(dtype, TOLERANCES["float32"] if dtype == "complex64" else (0, 0))
    absolute += 2 * inside * relative if dtype in ("bfloat16", "float16") else 0
    got = np.asarray(got)
    assert got.shape == np.shape(expected)
    got = got.astype(np.complex128 if dtype == "complex64" else np.float64)
    largest = np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected))
    np.testing.assert_allclose(got, expected, relative + slack, (absolute + slack) * largest)


# Cases ------------------------------------------------------------------------------------------------------


class Case:
    """Operands by the names of their axes, and options. See the head of this file.

    full: axes that are never empty, for emptiness has no meaning there.
    nan: the elements of each operand that become NaN in turn. Not all: where a mask hides a key from some
    queries only, whether NaN leaks through its weight of 0 is left open.
    """

    def __init__(self, layout, full="", nan=(0, -1), **options):
        self.layout, self.full, self.nan, self.choices = layout, full.split(), nan, options
        self.options = {name: values[0] for name, values in options.items()}
        self.axes, self.sizes = {}, {}
        for part in layout.split(","):
            name, axes = part.split(":")
            tokens = [axis.partition("=") for axis in axes.split()]
            self.axes[name.strip()] = tuple(axis for axis, _, _ in tokens)
            self.sizes |= {axis.split("*")[-1]: int(size) for axis, _, size in tokens if size}

    def shapes(self, **sizes):
        sizes = self.sizes | sizes
        return {
            name: tuple(
                math.prod(int(f) if f.isdigit() else sizes[f] for f in axis.split("*")) for axis in axes
            )
            for name, axes in self.axes.items()
        }

    def operands(self, dtype="float32", seed=0, **sizes):
        """Arrays of numpy, the same at every call."""
        rng = np.random.default_rng([zlib.crc32(self.layout.encode()), seed])
        return {
            name: random(rng, shape, PARTICULAR.get(name, dtype))
            for name, shape in self.shapes(**sizes).items()
        }

    def __repr__(self):
        return f"Case({self.layout!r}, {self.choices})"


def random(rng, shape, dtype):
    """Numbers between 0.1 and 1.5 with either sign: no difference quotient steps over 0."""
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.7)
    if dtype.kind == "i":
        return np.asarray(rng.integers(0, 4, shape), dtype)
    numbers = rng.uniform(0.1, 1.5, shape) * rng.choice([-1, 1], shape)
    numbers = numbers + 1j * numbers[::-1] if dtype.kind == "c" else numbers
    return np.asarray(numbers, dtype)


def is_float(x):
    return x.dtype.kind not in "biuc"  # bfloat16's kind is "V"


def floats(operands):
    return {name: x for name, x in operands.items() if is_float(x)}


# The reference ----------------------------------------------------------------------------------------------


def expected(name, operands, options):
    """float64 from whatever floats the operands are; integers, booleans and complex numbers as they stand."""
    wide = {key: x.astype(np.float64) if is_float(x) else x for key, x in operands.items()}
    with np.errstate(all="ignore"):
        return np.asarray(ENTRIES[name].formula(**wide, **options))


def gradients(name, operands, options, cotangent):
    """Of sum(f * cotangent) by each floating-point operand, by central differences in float64."""
    operands = {key: x.astype(np.float64) if is_float(x) else x.copy() for key, x in operands.items()}
    found = {}
    for key, x in floats(operands).items():
        found[key] = np.zeros(x.shape)
        for i in np.ndindex(x.shape):
            at, step = x[i], 1e-5
            ends = []
            for x[i] in (at + step, at - step):
                ends.append((expected(name, operands, options) * cotangent).sum())
            x[i], found[key][i] = at, (ends[0] - ends[1]) / (2 * step)
    return found


@functools.cache
def example(name, case, dtype):
    """Operands, cotangent, value and gradients of a case, computed once for all implementations."""
    operands = case.operands(dtype)
    value = expected(name, operands, case.options)
    cotangent = random(
        np.random.default_rng(1), value.shape, case.options.get("preferred_element_type") or dtype
    )
    return operands, cotangent, value, gradients(name, operands, case.options, cotangent.astype(np.float64))


# The mathematics --------------------------------------------------------------------------------------------


def relu(x):
    return np.maximum(x, 0)


def bias_add(x, b):
    return x + b


def matmul(a, b, preferred_element_type=None):
    if a.ndim == 1:
        return matmul(a[None], b)[..., 0, :] if b.ndim > 1 else matmul(a[None], b)[0]
    if b.ndim == 1:
        return matmul(a, b[:, None])[..., 0]
    y = np.zeros(np.broadcast_shapes(a.shape[:-1] + (1,), b.shape[:-2] + (1, b.shape[-1])), a.dtype)
    for i in range(a.shape[-1]):
        y = y + a[..., :, i, None] * b[..., None, i, :]
    return y


def softmax(x, axis=-1, where=None):
    where = np.broadcast_to(True if where is None else where, x.shape)
    e = np.where(where, np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf, where=where)), 0)
    return np.where(where, e / e.sum(axis, keepdims=True), 0)


def layer_norm(x, scale=None, bias=None, axis=-1, eps=1e-5):
    axes = {a % x.ndim for a in np.atleast_1d(axis)}
    mean = lambda x: x.sum(tuple(axes), keepdims=True) / np.float64(math.prod(x.shape[a] for a in axes))
    centred = x - mean(x)
    y = centred / np.sqrt(mean(centred**2) + eps)
    others = [
        a for a in range(x.ndim) if a not in axes
    ]  # scale and bias have the axes of one row, in x's order
    y = y if scale is None else y * np.expand_dims(scale, others)
    return y if bias is None else y + np.expand_dims(bias, others)


def conv2d(x, w, stride=(1, 1), padding="VALID", dilation=(1, 1), groups=1):
    """Every kernel element sees a strided window of the padded image. w (height, width, in/groups, out)."""
    stride, dilation = (np.broadcast_to(option, 2) for option in (stride, dilation))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[:2], dilation)]
    edges = [edge(n, r, s, padding) for n, r, s in zip(x.shape[1:3], reach, stride)]
    edges = edges if isinstance(padding, str) else np.broadcast_to(padding, (2, 2))
    x = np.pad(x, [(0, 0), *((max(lo, 0), max(hi, 0)) for lo, hi in edges), (0, 0)])
    for d, (lo, hi) in enumerate(edges, 1):  # a negative edge is cut off
        x = np.take(x, range(max(-lo, 0), x.shape[d] - max(-hi, 0)), d)
    high, wide = (max((n - r) // s + 1, 0) for n, r, s in zip(x.shape[1:3], reach, stride))
    y = np.zeros((len(x), high, wide, w.shape[3]), x.dtype)
    inputs, outputs = w.shape[2], w.shape[3] // groups
    for i, j, g in np.ndindex(*w.shape[:2], groups):
        rows = i * dilation[0] + stride[0] * np.arange(high)
        columns = j * dilation[1] + stride[1] * np.arange(wide)
        window = x[:, rows[:, None], columns, g * inputs : (g + 1) * inputs]
        kernel = w[i, j, :, g * outputs : (g + 1) * outputs]
        y[..., g * outputs : (g + 1) * outputs] += (window[..., None] * kernel).sum(-2)
    return y


def edge(n, reach, stride, padding):
    missing = max((-(-n // stride) - 1) * stride + reach - n, 0) if padding == "SAME" else 0
    return missing // 2, missing - missing // 2


def attention(q, k, v, causal=False, mask=None, bias=None, kv_len=None, scale=None):
    """One query of one head at a time; keys that it may not see are not even read."""
    if q.ndim == 3:
        return attention(q[None], k[None], v[None], causal, mask, bias, kv_len, scale)[0]
    (batch, time, heads, features), (source, kv_heads) = q.shape, k.shape[1:3]
    scale = max(features, 1) ** -0.5 if scale is None else scale
    last = {False: source, True: 0, "top_left": 0, "bottom_right": source - time}[causal]
    mask = np.broadcast_to(True if mask is None else mask, (batch, heads, time, source))
    bias = np.broadcast_to(0.0 if bias is None else bias, (batch, heads, time, source))
    y = np.zeros((batch, time, heads, v.shape[-1]))
    for b, t, h in np.ndindex(batch, time, heads):
        n = h // (heads // kv_heads)
        here = source if kv_len is None else kv_len[b]
        seen = [s for s in range(min(here, source)) if s <= t + last and mask[b, h, t, s]]
        if seen:
            scores = scale * (q[b, t, h] * k[b, seen, n]).sum(-1) + bias[b, h, t, seen]
            y[b, t, h] = (softmax(scores)[:, None] * v[b, seen, n]).sum(0)
    return y


# The table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One operator's line. The first case is the plain one; its first axis, even, is the result's first too.

    more: cases for Hypothesis alone. large: several blocks of a Pallas kernel, the last one ragged.
    refused: operands that do not fit. linear: groups of operands in which the operator is linear together,
    the others held still. inside: for an implementation, units in the last place of the largest number that
    may be lost on the way, because a step is rounded to the operands' dtype.
    """

    formula: Callable
    cases: tuple[Case, ...]
    large: Case
    more: tuple[Case, ...] = ()
    refused: tuple[Case, ...] = ()
    linear: tuple[tuple[str, ...], ...] = ()
    inside: dict[str, float] = field(default_factory=dict)


QKV = "q: batch=2 time=3 2*kv features=4, k: batch source=5 kv=1 features, v: batch source kv width=3"
IMAGE = "x: batch=2 height=5 width=4 {}, w: kh=3 kw=2 {}"
BORDERS = ["VALID", "SAME", 1, ((1, 2), (0, 1)), ((-1, 0), (2, -1))]

ENTRIES = {
    "relu": Entry(
        relu,
        (Case("x: rows=2 columns=3"), Case("x: a=2 b=1 c=3 d=2"), Case("x:")),
        large=Case("x: rows=1031 columns=130"),
    ),
    "bias_add": Entry(
        bias_add,
        (Case("x: rows=2 features=3, b: features"), Case("x: a=2 b=3 features=2, b: features")),
        large=Case("x: rows=2061 features=130, b: features"),
        refused=(Case("x: rows=2 features=3, b: other=4"), Case("x: rows=2 features=3, b: features 1")),
        linear=(("x", "b"),),
    ),
    "matmul": Entry(
        matmul,
        (
            Case("a: rows=2 inner=3, b: inner columns=4"),
            Case("a: other=2 batch=3 rows=2 inner=4, b: batch inner columns=2"),
            Case("a: rows=2 inner=5, b: inner columns=3", preferred_element_type=["float32"]),
        ),
        more=(
            Case("a: batch=2 rows=3 inner=4, b: other=3 1 inner columns=2"),
            Case("a: inner=4, b: batch=3 inner columns=2"),
            Case("a: batch=3 rows=2 inner=4, b: inner"),
            Case("a: inner=4, b: inner"),
        ),
        large=Case("a: rows=300 inner=150, b: inner columns=270"),
        refused=(
            Case("a: rows=2 inner=3, b: other=4 columns=2"),
            Case("a: batch=2 rows=3 inner=4, b: other=3 inner columns=2"),
        ),
        linear=(("a",), ("b",)),
    ),
    "softmax": Entry(
        softmax,
        (
            Case("x: rows=2 columns=5", axis=[-1, 0, (0, 1), None, (-1,)]),
            Case("x: a=2 b=3 c=2", axis=[(0, 2), 1, (2, 1), 0]),
            Case("x: rows=4 columns=3, where: rows columns", axis=[-1, 0, None]),
        ),
        more=(Case("x: rows=4 columns=3, where: columns", axis=[0, 1]),),
        large=Case("x: rows=2061 columns=130"),
        refused=(
            Case("x: rows=2 columns=3", axis=[2]),
            Case("x: rows=2 columns=3", axis=[(0, 0)]),
            Case("x: rows=2 columns=3, where: other=4"),
        ),
    ),
    "layer_norm": Entry(
        layer_norm,
        (
            Case("x: rows=2 features=5, scale: features, bias: features", eps=[1e-5, 0.3]),
            Case("x: a=2 b=3 features=4", axis=[-1, 1, 0, (1, 2)], eps=[1e-5]),
            Case("x: a=2 b=2 c=3, scale: a c, bias: a c", axis=[(0, 2), (2, 0), (-1, 0)]),
        ),
        more=(Case("x: rows=3 features=4, scale: features"), Case("x: a=2 b=2 features=3, bias: features")),
        large=Case("x: rows=2061 features=130, scale: features, bias: features"),
        refused=(
            Case("x: rows=2 features=3", axis=[2]),
            Case("x: rows=2 features=3, scale: other=4"),
            Case("x: rows=2 features=3, scale: features, bias: other=4"),
        ),
    ),
    "conv2d": Entry(
        conv2d,
        (
            Case(
                IMAGE.format("in=2", "in out=3"),
                "kh kw",
                stride=[(1, 1), (2, 1), (2, 3)],
                padding=BORDERS,
                dilation=[(1, 1), (2, 1)],
                groups=[1],
            ),
            Case(
                IMAGE.format("in=1", "in out=2"),
                "kh kw",
                stride=[(2, 3)],
                padding=["SAME", *BORDERS],
                dilation=[(1, 2), (2, 1)],
                groups=[1],
            ),
            Case(
                IMAGE.format("2*in=2", "in 2*half=1"),
                "kh kw",
                stride=[(1, 2), (1, 1)],
                padding=[((1, 2), (0, 1)), *BORDERS],
                dilation=[(1, 1)],
                groups=[2],
            ),
        ),
        large=Case("x: batch=3 height=18 width=17 in=5, w: kh=3 kw=3 in out=130"),
        refused=(
            Case(IMAGE.format("in=2", "other=3 out=3")),
            Case(IMAGE.format("in=3", "in out=3"), groups=[2]),
            Case("x: batch=2 height=5 in=2, w: kh=3 in out=2"),
            Case(IMAGE.format("in=2", "in out=3"), padding=["FULL"]),
        ),
        linear=(("x",), ("w",)),
    ),
    "attention": Entry(
        attention,
        (
            Case(QKV, "kv", causal=[False, True, "top_left", "bottom_right"], scale=[None, 0.3]),
            Case(QKV + ", bias: 1 2*kv time source", "kv", nan=(0,), causal=["bottom_right", True, False]),
            Case(QKV + ", mask: batch 1 1 source, kv_len: batch", "kv", causal=[False], scale=[0.7]),
        ),
        more=(
            Case(
                QKV + ", mask: batch 1 time source, bias: batch 1 1 source",
                "kv",
                nan=(),
                causal=[True, False],
            ),
            Case(QKV.replace("batch=2", "").replace("batch", ""), "kv", nan=(0,), causal=["top_left", False]),
        ),
        large=Case(
            "q: batch=2 time=140 2*n=1 features=8, k: batch source=150 n features, v: batch source n width=9",
            causal=["bottom_right"],
        ),
        refused=(
            Case(
                "q: batch=2 time=3 3*n=1 features=4, k: batch source=5 2*n features, v: batch source 2*n w=3"
            ),
            Case("q: batch=2 time=3 n=1 features=4, k: batch source=5 n other=3, v: batch source n features"),
            Case(
                "q: batch=2 time=3 n=1 features=4, k: batch source=5 n features, v: batch other=4 n features"
            ),
            Case("q: batch=2 time=3 n=1 features=4, k: time n features, v: time n features"),
            Case(QKV + ", mask: batch 2*kv time other=4"),
            Case(QKV, causal=["top_right"]),
        ),
        # P, which the kernel hands to the second product, and O, which the backward pass reads
        inside={"pallas": 1.0, "native": 1.0},
    ),
}
