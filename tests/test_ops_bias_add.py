"""What is special to bias_add: a bias of each example's own, a scalar, and sums of gradients."""

import importlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from oplab.ops import Unsupported

module = importlib.import_module("oplab.ops.bias_add")
bias_add = module.bias_add

implementations = pytest.mark.parametrize("implementation", ["xla", "pallas"])


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


@implementations
def test_every_example_may_have_its_own_bias(implementation):
    def f(x, b):
        return bias_add(x, b, implementation=implementation)

    x, b = normal(3, 4, 5), normal(3, 5)
    np.testing.assert_allclose(jax.vmap(f)(x, b), x + b[:, None])
    np.testing.assert_allclose(jax.vmap(f)(x, b[:, 0]), x + b[:, :1, None])
    twice = jax.vmap(jax.vmap(f, (0, None)))(x, b)
    np.testing.assert_allclose(twice, x + b[:, None])
    both = jax.vmap(jax.vmap(f, (None, 0)), (0, None))(x, b)
    np.testing.assert_allclose(both, x[:, None] + b[None, :, None])

    def loss(f):
        return lambda x, b: jnp.sin(f(x, b)).sum()

    expected = jax.grad(loss(lambda x, b: x + b[:, None]), (0, 1))(x, b)
    for got, want in zip(jax.grad(loss(jax.vmap(f)), (0, 1))(x, b), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_a_batched_bias_stays_as_small_as_it_is():
    jaxpr = jax.make_jaxpr(jax.vmap(bias_add))(normal(3, 4, 5), normal(3, 5))
    (equation,) = jaxpr.eqns
    assert equation.params["batch_dims"] == 1 and equation.invars[1].aval.shape == (3, 5)


@implementations
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(), (2,)])
@pytest.mark.parametrize("together", [True, False])
def test_the_gradient_of_b_sums_in_float32(implementation, dtype, shape, together):
    x, b = jnp.zeros((5000, 2), dtype), jnp.zeros(shape, dtype)
    f = partial(bias_add, implementation=implementation)
    _, back = jax.vjp(f, x, b) if together else jax.vjp(partial(f, x), b)
    db = back(jnp.ones((5000, 2), dtype))[-1]
    assert db.dtype == dtype
    np.testing.assert_array_equal(db, jnp.full(shape, 10000 if shape == () else 5000, dtype))
    # Compilers may sum in float32 of their own accord: StableHLO says whether it was asked for.
    lines = jax.jit(back).lower(jnp.ones((5000, 2), dtype)).as_text().splitlines()
    (reduction,) = [line for line in lines if "stablehlo.reduce" in line]
    assert "(tensor<5000x2xf32>, tensor<f32>)" in reduction


def test_shapes_that_do_not_fit():
    sentence = (
        "bias_add expects x (..., features) and b (features,) or a scalar, got x float32[16, 24] and b f"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        bias_add(normal(16, 24), normal(16))
    for x, b in ((normal(2, 3), normal(2, 3)), (normal(2, 3), normal(1)), (normal(), normal())):
        with pytest.raises(ValueError, match="bias_add expects"):
            bias_add(x, b)


def test_ragged_blocks_race_free(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 8)
    monkeypatch.setattr(module, "FEATURES", 128)
    x, b = normal(2, 11, 150), normal(2, 150)
    y = module.bias_add_pallas(x, b, batch_dims=1, interpret=pltpu.InterpretParams(detect_races=True))
    np.testing.assert_allclose(y, x + b[:, None])


def test_pallas_refuses_complex_numbers():
    x = jnp.ones((2, 3), jnp.complex64)
    np.testing.assert_allclose(bias_add(x, x[0]), x + 1)
    with pytest.raises(Unsupported, match="complex64: use implementation='xla'"):
        bias_add(x, x[0], implementation="pallas")
