"""What is special to softmax: rows without a largest term, long rows of few bits, products fused into it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oplab.ops import softmax

BOTH = pytest.mark.parametrize("implementation", ["xla", "pallas"])


def exact(x, axis=-1):
    x = np.asarray(x).astype(np.float64)
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@BOTH
@pytest.mark.parametrize("jit", [False, True])
def test_rows_that_hold_infinities_and_nan(implementation, jit):
    x = np.array([[0, 1, 2], [-np.inf] * 3, [-np.inf, 3, 3], [np.nan, 0, 0], [1e38, 1e38, -1e38]], np.float32)
    f = lambda x: softmax(x, implementation=implementation)
    y = np.asarray((jax.jit(f) if jit else f)(x))
    assert np.isnan(y[[1, 3]]).all()
    np.testing.assert_allclose(y[[0, 2, 4]], exact(x[[0, 2, 4]]), rtol=1e-6)


@BOTH
def test_what_where_leaves_out_is_zero_and_never_leaks(implementation):
    x = jnp.array([[1.0, jnp.nan, 2.0], [jnp.inf, 0.0, 1.0], [3.0, 3.0, 3.0]])
    where = jnp.array([[True, False, True], [False, True, True], [False, False, False]])
    f = lambda x: softmax(x, where=where, implementation=implementation)
    y = np.asarray(f(x))
    np.testing.assert_allclose(y[0, [0, 2]], exact([1.0, 2.0]), rtol=1e-6)
    np.testing.assert_allclose(y[1, 1:], exact([0.0, 1.0]), rtol=1e-6)
    assert (y[~np.asarray(where)] == 0).all()
    g = np.asarray(jax.grad(lambda x: (f(x) * jnp.arange(3.0)).sum())(x))
    assert np.isfinite(g).all() and (g[~np.asarray(where)] == 0).all() and abs(g[0, 0]) > 0.1


@BOTH
@pytest.mark.parametrize("dtype,tolerance", [(jnp.float16, 4e-3), (jnp.bfloat16, 3e-2), (jnp.float32, 1e-5)])
@pytest.mark.parametrize("n", [64, 257, 8192])
def test_the_gradient_is_right_where_a_square_of_the_sum_would_overflow(implementation, dtype, tolerance, n):
    c = np.linspace(0, 1, n)
    want = (c - c.mean()) / n
    f = lambda x: (softmax(x, implementation=implementation).astype(jnp.float32) * c.astype(np.float32)).sum()
    g = np.asarray(jax.grad(f)(jnp.zeros(n, dtype))).astype(np.float64)
    assert abs(g - want).max() < tolerance * abs(want).max()


@pytest.mark.parametrize("n", [4, 67, 1000])
@pytest.mark.parametrize("before", [lambda x: x / 3.0, lambda x: x * 0.2041, lambda x: jnp.tanh(x) * x / 7])
@BOTH
def test_a_product_fused_into_it_does_not_change_what_is_subtracted(implementation, n, before):
    x = np.random.default_rng(n).normal(size=(3, n)).astype(np.float32) * np.float32(1e12)
    f = lambda x: softmax(before(x), implementation=implementation)
    np.testing.assert_allclose(jax.jit(f)(x), f(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(x).sum(-1), 1, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("axis", [0, -2, (0, 2), None])
def test_other_axes(implementation, axis):
    x = np.random.default_rng(0).normal(size=(3, 5, 4))
    axes = tuple(range(3)) if axis is None else axis
    np.testing.assert_allclose(softmax(jnp.float32(x), axis=axis, implementation=implementation),
                               exact(np.float32(x), axes), rtol=1e-5)


def test_a_row_too_long_for_a_tpu_is_refused_in_a_sentence():
    f = jax.jit(lambda x: softmax(x, implementation="pallas"))
    with pytest.raises(NotImplementedError, match="rows of at most 131072 .* 200000: use .*'xla'"):
        f.trace(jnp.ones((1, 200_000))).lower(lowering_platforms=("tpu",))
