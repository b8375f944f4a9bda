"""The two Hopper kernels: their values, on a CPU, in JAX's GPU interpreter, and what they refuse.

The interpreter runs warpgroups as threads that wait at barriers, clips copies at the edges, starts shared
memory with NaN and raises on a race. It knows nothing of swizzled memory, of wgmma that is still running, and
of the chip's approximate functions. That of JAX 0.10 does not clip and cannot read shared memory transposed:
there the kernels are only lowered. `test_targets.py` compiles them to machine code.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oplab.ops.attention_hopper import attention_hopper
from oplab.ops.attention_hopper import refusal as attention_refusal
from oplab.ops.matmul_hopper import matmul_hopper, mosaic_gpu, not_here
from oplab.ops.matmul_hopper import refusal as matmul_refusal
from oplab.ops.operator import Unsupported

pytestmark = pytest.mark.skipif(bool(not_here("This")), reason=str(not_here("This")))
interpreted = pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="the GPU interpreter of this JAX cannot run these kernels"
)


def interpreter():
    return mosaic_gpu().InterpretGPUParams(detect_races=True)


def normal(seed, *shapes, dtype="float16"):
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal(shape), dtype) for shape in shapes]


# matmul -----------------------------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("a, b, dtype, out_dtype, eps", [
    # Whole blocks, and along k more steps than there are slots.
    ((256, 384), (384, 256), "bfloat16", "float32", 2**-20),
    # A batch, blocks that reach over each edge, sizes that are no whole tiles, two blocks of columns.
    ((2, 1, 101, 70), (2, 1, 70, 323), "float16", "float16", 2**-11),
])  # fmt: skip
def test_matmul_is_right(a, b, dtype, out_dtype, eps):
    a, b = normal(0, a, b, dtype=dtype)
    c = matmul_hopper(a, b, out_dtype=out_dtype, interpret=interpreter())
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert c.dtype == out_dtype and c.shape == (a @ b).shape
    assert (np.abs(np.asarray(c, np.float64) - a @ b) <= eps * (abs(a) @ abs(b))).all()


# attention --------------------------------------------------------------------------------------------------


def reference(q, k, v, causal, scale):
    """In float64, with keys and values repeated for each group of heads."""
    group, offset = q.shape[2] // k.shape[2], 0 if causal == "top_left" else k.shape[1] - q.shape[1]
    q, k, v = (np.asarray(x, np.float64) for x in (q, np.repeat(k, group, 2), np.repeat(v, group, 2)))
    s = scale * np.einsum("btnh,bsnh->bnts", q, k)
    if causal:
        t, key = np.ogrid[: q.shape[1], : k.shape[1]]
        s = np.where(key <= t + offset, s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(m), 0, m))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (m + np.log(total))[..., 0]
    return np.einsum("bnts,bsnh->btnh", p / np.where(total == 0, 1, total), v), lse


def check_attention(q, k, v, causal, scale, hidden=0):
    """`hidden`: so many keys at the end that no query sees; the reference is not shown them."""
    o, lse = attention_hopper(q, k, v, causal=causal, scale=scale, interpret=interpreter())
    shown = k.shape[1] - hidden
    want, want_lse = reference(q, k[:, :shown], v[:, :shown], causal, scale)
    assert o.dtype == q.dtype and o.shape == want.shape
    assert lse.dtype == jnp.float32 and lse.shape == want_lse.shape
    np.testing.assert_allclose(o, want, rtol=0, atol=2**-10 * np.abs(want).max())
    np.testing.assert_allclose(lse, want_lse, rtol=2**-18, atol=2**-18)
    return o, lse


@interpreted
@pytest.mark.parametrize("causal, batch, time, source, heads", [
    (None, 2, 40, 300, 4),  # three blocks of keys for two slots; the last one is ragged
    ("top_left", 1, 140, 140, 2),  # two blocks of queries, that see one and two blocks of keys
    ("bottom_right", 1, 150, 180, 2),  # the first query sees 31 keys
])  # fmt: skip
def test_attention_is_right(causal, batch, time, source, heads):
    kv = batch, source, heads // 2
    q, k, v = normal(1, (batch, time, heads, 64), (*kv, 64), (*kv, 128))
    check_attention(q, k, v, causal, 0.125)


@interpreted
def test_a_query_that_sees_no_key_gives_zero():
    q, k, v = normal(2, (1, 200, 1, 40), (1, 60, 1, 40), (1, 60, 1, 24))  # widths that are no whole tiles
    o, lse = check_attention(q, k, v, "bottom_right", 0.2)
    assert (o[:, :140] == 0).all() and (lse[..., :140] == -jnp.inf).all() and (lse[..., 140:] > -9).all()


@interpreted
def test_a_key_that_no_query_sees_does_not_leak():
    q, k, v = normal(3, (1, 30, 1, 64), (1, 50, 1, 64), (1, 50, 1, 64))
    check_attention(q, k.at[:, 30:].set(jnp.nan), v.at[:, 30:].set(jnp.nan), "top_left", 1.0, hidden=20)


@interpreted
@pytest.mark.parametrize("scale", [-0.125, 0.0, 3e4])
def test_attention_scales_by_any_number(scale):
    q, k, v = normal(4, (1, 8, 1, 64), (1, 140, 1, 64), (1, 140, 1, 64))
    check_attention(q, k, v, None, scale)


# What is refused, and that both are lowered without a GPU ---------------------------------------------------


def array(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("a, b, out_dtype, why", [
    (array(8, 8), array(8, 8), "float64", "not float64"),
    (array(8, 8, dtype="float32"), array(8, 8, dtype="float32"), "float32", "multiplies float16 by float16"),
    (array(8, 8), array(8, 8, dtype="float16"), "float32", "got a bfloat16.* and b float16"),
    (array(2, 8, 8), array(3, 8, 8), "float32", "same leading dimensions"),
    (array(8, 8), array(7, 8), "float32", "same leading dimensions"),
    (array(8), array(8, 8), "float32", "same leading dimensions"),
    (array(0, 8), array(8, 8), "float32", "at least one element"),
    (array(70_000, 8, 8), array(70_000, 8, 8), "float32", "at most 65535"),
])  # fmt: skip
def test_matmul_says_what_it_cannot_do(a, b, out_dtype, why):
    with pytest.raises(Unsupported, match=why):
        jax.eval_shape(lambda a, b: matmul_hopper(a, b, out_dtype=out_dtype), a, b)
    assert matmul_refusal(a, b, out_dtype).count(". ") == 0


@pytest.mark.parametrize("q, k, v, extras, why", [
    (array(1, 9, 4, 64), array(1, 9, 2, 64), array(1, 9, 2, 64), ("mask",), "takes no mask"),
    (array(1, 9, 4, 192), array(1, 9, 2, 192), array(1, 9, 2, 64), (), "128 features"),
    (array(1, 9, 4, 64), array(1, 9, 3, 64), array(1, 9, 3, 64), (), "multiple of kv_heads"),
    (array(1, 9, 4, 64), array(2, 9, 2, 64), array(2, 9, 2, 64), (), r"expects q \(batch"),
    (array(1, 9, 4, 64), array(1, 0, 2, 64), array(1, 0, 2, 64), (), "at least one element"),
    (*[array(1, 9, 4, 64, dtype="float32")] * 3, (), "float16 or all in bfloat16"),
    (*[array(70_000, 9, 4, 64)] * 3, (), "up to 65535"),
])  # fmt: skip
def test_attention_says_what_it_cannot_do(q, k, v, extras, why):
    reason = attention_refusal(q, k, v, extras)
    assert reason and reason.count(". ") == 0
    with pytest.raises(Unsupported, match=why):
        if extras:
            raise Unsupported(reason)
        jax.eval_shape(lambda *qkv: attention_hopper(*qkv, causal=None, scale=1.0), q, k, v)


def test_another_gpu_is_refused_and_none_is_not(monkeypatch):
    square = array(8, 8)
    assert matmul_refusal(square, square, "float32") is None  # the tests run on a CPU
    ampere = SimpleNamespace(compute_capability="8.0", device_kind="NVIDIA A100")
    monkeypatch.setattr(jax, "devices", lambda platform: [ampere])
    assert "this is NVIDIA A100 (8.0)" in matmul_refusal(square, square, "float32")


@pytest.mark.parametrize("f, operands", [
    (lambda a, b: matmul_hopper(a, b, out_dtype="float32"), [array(300, 300), array(300, 200)]),
    (lambda *qkv: attention_hopper(*qkv, causal="top_left", scale=1.0), [array(1, 300, 2, 64)] * 3),
], ids=["matmul", "attention"])  # fmt: skip
def test_a_kernel_is_lowered_without_a_gpu(f, operands):
    text = jax.jit(f).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@mosaic_gpu") == 1
