"""What is special to attention: who sees whom, what may not leak, and the operators of its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from oplab.ops import attention

BOTH = pytest.mark.parametrize("implementation", ["xla", "pallas"])


def exact(q, k, v, seen=None, bias=0.0, scale=None):
    """A loop over batches, heads and queries in float64; seen(b, n, t) gives the keys that a query sees."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    (batch, time, heads, features), source, group = q.shape, k.shape[1], q.shape[2] // k.shape[2]
    bias = np.broadcast_to(bias, (batch, heads, time, source))
    out = np.zeros((batch, time, heads, v.shape[-1]))
    for b, t, n in np.ndindex(batch, time, heads):
        keys = np.arange(source) if seen is None else np.asarray(seen(b, n, t))
        if len(keys):
            s = k[b, keys, n // group] @ q[b, t, n] * (features**-0.5 if scale is None else scale)
            s = s + bias[b, n, t, keys]
            p = np.exp(s - s.max())
            out[b, t, n] = p / p.sum() @ v[b, keys, n // group]
    return out


def draw(time=5, source=7, heads=4, kv_heads=2, features=3, values=6, batch=2):
    r = np.random.default_rng(0)
    shapes = (time, heads, features), (source, kv_heads, features), (source, kv_heads, values)
    return [jnp.float32(r.normal(size=(batch, *shape))) for shape in shapes]


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@BOTH
@pytest.mark.parametrize("time,source", [(2, 5), (5, 2), (3, 130)])
def test_both_alignments_of_the_causal_mask(implementation, time, source):
    q, k, v = draw(time, source)
    for causal, offset in ((True, 0), ("top_left", 0), ("bottom_right", source - time)):
        want = exact(q, k, v, lambda b, n, t, ahead=offset: np.arange(max(0, min(source, t + ahead + 1))))
        close(attention(q, k, v, causal=causal, implementation=implementation), want)


@BOTH
def test_a_query_that_sees_no_key_gives_zero_and_poisons_no_gradient(implementation):
    q, k, v = draw(time=4, source=4)
    mask = np.tril(np.ones((4, 4), bool))
    mask[2] = False
    f = lambda q, k, v: attention(q, k, v, mask=mask, implementation=implementation)
    close(f(q, k, v), exact(q, k, v, lambda b, n, t: np.flatnonzero(mask[t])))
    gradients = jax.jit(jax.grad(lambda *qkv: (f(*qkv) ** 2).sum(), (0, 1, 2)))(q, k, v)
    assert all(np.isfinite(g).all() for g in gradients) and (gradients[0][:, 2] == 0).all()


@BOTH
@pytest.mark.parametrize("how", ["kv_len", "mask", "causal"])
def test_padding_never_leaks_whatever_it_holds(implementation, how):
    q, k, v = draw(time=3, source=6)
    k, v = k.at[:, 3:].set(jnp.nan), v.at[:, 3:].set(jnp.inf)
    options = {"kv_len": jnp.array([3, 3]), "mask": jnp.arange(6) < 3, "causal": True}
    f = lambda q, k, v: attention(q, k, v, **{how: options[how]}, implementation=implementation)
    want = exact(q, k, v, lambda b, n, t: np.arange(t + 1 if how == "causal" else 3))
    close(f(q, k, v), want)
    dq, dk, dv = jax.jit(jax.grad(lambda *qkv: f(*qkv).sum(), (0, 1, 2)))(q, k, v)
    assert np.isfinite(dq).all() and (dk[:, 3:] == 0).all() and (dv[:, 3:] == 0).all()


@BOTH
@pytest.mark.parametrize("dtype,eps", [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)])
def test_few_bits_are_accumulated_in_many(implementation, dtype, eps):
    q, k, v = (x.astype(dtype) for x in draw(64, 64, 2, 2, 32, 32, 1))
    y = np.asarray(attention(q, k, v, implementation=implementation)).astype(float)
    assert abs(y - exact(q, k, v)).max() < 8 * eps
    big = jnp.full((1, 2, 1, 16), 200, dtype)  # scores of 640,000, beyond float16
    k = jnp.stack([big[0, 0], -big[0, 0]])[None]
    v = jnp.stack([jnp.ones((1, 16), dtype), jnp.zeros((1, 16), dtype)])[None]
    y = np.asarray(attention(big, k, v, implementation=implementation)).astype(float)
    close(y, np.ones((1, 2, 1, 16)))


@BOTH
def test_enormous_scores_with_a_scale_that_rounds(implementation):
    q = jnp.float32(np.random.default_rng(0).normal(size=(1, 8, 1, 24)) * 1e6)
    f = lambda v: attention(q, q, v, implementation=implementation)
    close(jax.jit(f)(q / 1e6), exact(q, q, q / 1e6), 1e-3)
    # Every query sees but one key: what comes back to the values is the same numbers.
    (back,) = jax.jit(lambda ct: jax.vjp(f, q / 1e6)[1](ct))(jnp.ones_like(q))
    close(back.sum(), q.size)


@pytest.mark.parametrize("batch,time,source", [(2, 0, 3), (2, 3, 0), (0, 3, 3)])
@BOTH
def test_nothing_to_attend(implementation, batch, time, source):
    q, k = jnp.ones((batch, time, 2, 4)), jnp.ones((batch, source, 2, 4))
    f = lambda q: attention(q, k, k, implementation=implementation)
    assert f(q).shape == (batch, time, 2, 4) and (f(q) == 0).all()
    assert jax.grad(lambda q: f(q).sum())(q).shape == q.shape


def test_each_query_sees_its_own_keys_and_bias_and_all_of_it_differentiates_twice():
    with jax.enable_x64(True):
        q, k, v = (np.asarray(x, np.float64) for x in draw(3, 4, values=2))
        r = np.random.default_rng(1)
        mask, bias = r.random((2, 1, 3, 4)) > 0.4, r.normal(size=(1, 4, 1, 4))
        kv_len = np.array([4, 2])
        options = {"mask": mask, "kv_len": kv_len, "causal": "bottom_right"}
        f = lambda q, k, v, bias: attention(q, k, v, bias=bias, **options)
        s = np.arange(4)
        seen = lambda b, n, t: np.flatnonzero(mask[b, 0, t] & (s < kv_len[b]) & (s <= t + 1))
        close(f(q, k, v, bias), exact(q, k, v, seen, bias), 1e-12)
        check_grads(f, (q, k, v, bias), order=2)


def test_the_gradient_is_one_operator():
    q, k, v = draw()
    jaxpr = jax.make_jaxpr(jax.grad(lambda q: attention(q, k, v).sum()))(q)
    names = [equation.primitive.name for equation in jaxpr.eqns]
    assert names.count("attention") == names.count("attention_backward") == 1
    assert "attention_tangent" not in names


def test_a_bias_shared_by_the_batch_gets_a_gradient_for_each_mapped_one():
    q, k, v = draw()
    bias = jnp.ones((1, 4, 5, 7))
    gradient = jax.grad(lambda bias, q: (attention(q, k, v, bias=bias) ** 2).sum())
    mapped = jax.vmap(gradient, (None, 0))(bias, jnp.stack([q, 2 * q]))
    close(mapped, jnp.stack([gradient(bias, q), gradient(bias, 2 * q)]))


def test_what_does_not_fit_is_refused_in_one_sentence():
    q, k, v = draw()
    wrong = {
        "multiple of k's kv_heads, got 3 and 2": lambda: attention(q[:, :, :3], k, v),
        r"one source.*v float32\[2, 6, 2, 6\]": lambda: attention(q, k, v[:, :6]),
        "one dtype": lambda: attention(q, k, v.astype(jnp.bfloat16)),
        r"k is int32": lambda: attention(q, k.astype(int), v),
        r"got q float32\[5, 4, 3\]": lambda: attention(q[0], k, v),
        r"mask that .* \[2, 4, 5, 7\], got \[5, 6\]": lambda: attention(q, k, v, mask=jnp.ones((5, 6), bool)),
        "booleans as mask": lambda: attention(q, k, v, mask=jnp.ones((5, 7))),
        r"kv_len to be integers of shape \[2\]": lambda: attention(q, k, v, kv_len=jnp.array([1, 2, 3])),
        "causal to be": lambda: attention(q, k, v, causal="left"),
        "scale to be a Python number": lambda: jax.jit(lambda s: attention(q, k, v, scale=s))(0.5),
        "'numba'": lambda: attention(q, k, v, implementation="numba"),
    }
    for sentence, call in wrong.items():
        with pytest.raises((ValueError, TypeError), match=sentence):
            call()
