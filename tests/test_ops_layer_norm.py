"""What is special to layer_norm: rows without variance, rows far from zero, and who shares scale and bias."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

module = importlib.import_module("oplab.ops.layer_norm")
layer_norm = module.layer_norm

implementations = pytest.mark.parametrize("implementation", ["xla", "pallas"])
numbers = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return jnp.asarray(numbers.normal(size=shape), dtype)


def expected(x, eps=1e-5):
    x = np.asarray(x, np.float64)
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)


@implementations
@pytest.mark.parametrize("constant", [0.0, -11.0, 1e4, 1e-20, 3e18])
def test_a_constant_row_gives_exactly_the_bias(implementation, constant):
    bias = normal(7)
    y = layer_norm(jnp.full((2, 7), constant), jnp.full(7, 2.0), bias, implementation=implementation)
    np.testing.assert_array_equal(y, np.stack([bias, bias]))


@implementations
@pytest.mark.parametrize("offset, spread", [(1449, 0.5), (-11, 2e-6), (1e-4, 1e-6), (1e5, 1)])
def test_rows_far_from_zero_keep_their_variance(implementation, offset, spread):
    x = offset + spread * normal(3, 16)
    np.testing.assert_allclose(layer_norm(x, implementation=implementation), expected(x), 1e-5, 1e-5)


@implementations
def test_an_outlier_in_front_costs_no_precision(implementation):
    x = normal(2, 300).at[:, 0].set(1e6)
    np.testing.assert_allclose(layer_norm(x, implementation=implementation), expected(x), 1e-5, 1e-5)


@implementations
def test_float16_rows_whose_squares_overflow(implementation):
    x = (300 + normal(2, 32)).astype(jnp.float16)
    y = layer_norm(x, implementation=implementation)
    assert y.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(y, np.float64), expected(x), 2**-11, 1e-5)


@implementations
@pytest.mark.parametrize("mapped", [(0, None, None), (0, None, 0), (None, 0, None), (1, 1, 0)])
def test_vmap_with_scale_and_bias_of_each_example(implementation, mapped):
    shapes = [(4, 5), (5,), (5,)]
    x, scale, bias = (
        normal(*(s if d is None else (*s[:d], 3, *s[d:]))) for s, d in zip(shapes, mapped, strict=True)
    )

    def loss(f):
        return lambda *operands: jnp.sin(jax.vmap(f, mapped)(*operands)).sum()

    def ours(x, scale, bias):
        return layer_norm(x, scale, bias, implementation=implementation)

    for f in (lambda g: g, lambda g: jax.grad(g, (0, 1, 2))):
        got, want = (f(loss(g))(x, scale, bias) for g in (ours, module.layer_norm_reference))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-5), got, want)


def test_a_batched_x_keeps_one_scale():
    jaxpr = jax.make_jaxpr(jax.vmap(layer_norm, (0, None)))(normal(3, 4, 5), normal(5))
    (equation,) = jaxpr.eqns
    assert equation.params["batch_dims"] == 0 and equation.invars[1].aval.shape == (5,)


@implementations
def test_several_axes_are_one_row_in_the_order_of_x(implementation):
    x, scale = normal(4, 3, 5), normal(4, 5)
    y = layer_norm(x, scale, axis=(2, 0), implementation=implementation)
    rows = expected(x.swapaxes(0, 1).reshape(3, 20)).reshape(3, 4, 5)
    np.testing.assert_allclose(y, rows.swapaxes(0, 1) * np.asarray(scale)[:, None], 1e-5, 1e-5)


@implementations
def test_scale_and_bias_of_another_dtype_do_not_change_that_of_x(implementation):
    x, scale = normal(2, 8).astype(jnp.bfloat16), normal(8)
    grad = jax.grad(lambda x, s: layer_norm(x, s, implementation=implementation).sum(), (0, 1))(x, scale)
    assert [g.dtype for g in grad] == [jnp.bfloat16, jnp.float32]


def test_the_last_block_of_rows_may_be_ragged(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 4 * 20)  # eight rows of twenty
    x = normal(19, 20)
    np.testing.assert_allclose(layer_norm(x, implementation="pallas"), expected(x), 1e-5, 1e-5)


def test_what_it_refuses():
    with pytest.raises(ValueError, match=r"scale of shape \[32\].*x float32\[8,32\], got \[16\]"):
        layer_norm(jnp.ones((8, 32)), jnp.ones(16))
    with pytest.raises(ValueError, match="eps of at least 0.*got -1"):
        layer_norm(jnp.ones((8, 32)), eps=-1)
    with pytest.raises(TypeError, match="x is int32"):
        layer_norm(jnp.ones((8, 32), int))
