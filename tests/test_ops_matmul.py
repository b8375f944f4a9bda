"""What is special to matmul: which axes form a group, which dtypes it sums in, the ragged edge along k."""

import importlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from oplab.ops import Unsupported

module = importlib.import_module("oplab.ops.matmul")
matmul = module.matmul

implementations = pytest.mark.parametrize("implementation", ["xla", "pallas"])


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def equations(jaxpr):
    return [equation for equation in jaxpr.eqns if equation.primitive.name == "matmul"]


SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((7, 5, 2, 3), (7, 1, 3, 4)),
    ((6, 1, 2, 3), (1, 5, 3, 4)),
    ((6, 1, 5, 2, 3), (7, 1, 3, 4)),
    ((0, 2, 3), (3, 4)),
    ((2, 0), (0, 4)),
]


@implementations
@pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
def test_shapes_and_gradients_as_jnp(implementation, of_a, of_b):
    a, b = normal(*of_a), normal(*of_b, seed=1)
    expected, expected_back = jax.vjp(jnp.matmul, a, b)
    got, back = jax.vjp(lambda a, b: matmul(a, b, implementation=implementation), a, b)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    ct = jnp.cos(expected)
    for gradient, want in zip(back(ct), expected_back(ct), strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("in_axes", "expected"), [((0, None), 0), ((None, 0), 0), ((0, 0), 1)])
def test_only_a_batch_of_both_operands_is_a_batch(in_axes, expected):
    a, b = normal(4, 4, 4), normal(4, 4, 4, seed=1)
    a, b = (x[0] if axis is None else x for x, axis in zip((a, b), in_axes, strict=True))
    jaxpr = jax.make_jaxpr(jax.vmap(matmul, in_axes))(a, b)
    (equation,) = equations(jaxpr)
    assert equation.params["batch"] == expected
    assert [x.aval.shape for x in equation.invars] == [a.shape, b.shape]  # nothing was repeated
    got, want = (jax.vmap(f, in_axes)(a, b) for f in (matmul, jnp.matmul))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@implementations
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_gradient_of_a_shared_matrix_sums_in_float32(implementation, dtype):
    a, b = jnp.ones((50, 100, 1), dtype), jnp.ones((1, 2), dtype)
    f = partial(matmul, implementation=implementation)
    for batched in (f, jax.vmap(f, (0, None))):
        _, back = jax.vjp(batched, a, b)
        _, db = back(jnp.ones((50, 100, 2), dtype))
        np.testing.assert_array_equal(db, jnp.full((1, 2), 5000, jnp.float32).astype(dtype))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_narrow_operands_are_multiplied_narrow_and_summed_wide(dtype):
    a = jnp.ones((4, 4), dtype)
    (line,) = [x for x in jax.jit(matmul).lower(a, a).as_text().splitlines() if "dot_general" in x]
    narrow = {"float16": "f16", "bfloat16": "bf16"}[a.dtype.name]
    assert f"(tensor<4x4x{narrow}>, tensor<4x4x{narrow}>) -> tensor<4x4xf32>" in line


@pytest.mark.parametrize(
    ("of_a", "of_b", "preferred", "expected"),
    [
        ("int8", "int8", None, "int8"),
        ("int8", "int8", "int32", "int32"),
        ("uint8", "uint8", "uint32", "uint32"),
        ("uint8", "uint8", "int32", "int32"),
        ("int8", "int8", "uint32", "uint32"),
        ("uint8", "int8", None, "int16"),
        ("bool", "bool", "int32", "int32"),
    ],
)
def test_integers_are_exact_or_wrap_around(of_a, of_b, preferred, expected):
    random = np.random.default_rng(0)
    a, b = random.integers(0, 256, (3, 300)), random.integers(0, 256, (300, 4))
    a, b = a.astype(of_a), b.astype(of_b)
    got = matmul(jnp.asarray(a), jnp.asarray(b), preferred_element_type=preferred)
    assert got.dtype == expected
    np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(expected))


def test_booleans_are_or_of_ands():
    a, b = np.array([[1, 0], [0, 0]], bool), np.array([[0, 1], [1, 1]], bool)
    np.testing.assert_array_equal(matmul(a, b), a @ b)


def test_mixed_dtypes_are_rounded_once():
    a, b = jnp.asarray([[1.0, 1.0]], jnp.bfloat16), jnp.asarray([[257], [-256]], jnp.int16)
    c = matmul(a, b)  # 257 is no bfloat16
    assert c.dtype == jnp.bfloat16 and c[0, 0] == 1


def test_float64_is_asked_for():
    a = normal(6, 6)
    with pytest.warns(UserWarning, match="float64"):
        assert matmul(a, a, preferred_element_type=jnp.float64).dtype == jnp.float32
    with jax.enable_x64(True):
        c, back = jax.vjp(lambda a: matmul(a, a.T, preferred_element_type=jnp.float64), a)
        wide = np.asarray(a).astype(np.float64)
        assert c.dtype == jnp.float64
        np.testing.assert_allclose(c, wide @ wide.T, rtol=1e-14)
        (da,) = back(jnp.ones_like(c))
        assert da.dtype == jnp.float32
        np.testing.assert_allclose(da, 2 * np.ones((6, 6)) @ wide, rtol=1e-5, atol=1e-6)


def test_bad_operands_are_refused():
    sentence = "matmul expects a (..., m, k) and b (..., k, n), got a float32[16,24] and b float32[16,24]."
    with pytest.raises(ValueError, match=re.escape(sentence)):
        matmul(normal(16, 24), normal(16, 24))
    for a, b in ((normal(), normal(2)), (normal(2, 3, 4), normal(3, 4, 5))):
        with pytest.raises(ValueError, match="matmul expects"):
            matmul(a, b)
    for dtype, preferred in ((jnp.float32, jnp.int32), (jnp.int32, jnp.int8), (jnp.complex64, jnp.float32)):
        square = jnp.ones((2, 2), dtype)
        with pytest.raises(TypeError, match="expects a preferred_element_type that can hold"):
            matmul(square, square, preferred_element_type=preferred)
    square = jnp.ones((2, 2), jnp.int32)
    with pytest.raises(Unsupported, match="not int32: use implementation='xla'"):
        matmul(square, square, implementation="pallas")


def test_ragged_blocks_race_free(monkeypatch):
    monkeypatch.setattr("oplab.ops.matmul_kernel.BLOCK", 16)
    a, b = normal(2, 17, 35), normal(2, 35, 20, seed=1)
    params = dict(batch=1, inner=1, dtype=jnp.dtype(jnp.float32), sharding=None)
    for interpret in (True, pltpu.InterpretParams(detect_races=True)):
        c = module.matmul_pallas(a, b, **params, interpret=interpret)
        np.testing.assert_allclose(c, np.asarray(a) @ np.asarray(b), rtol=1e-5, atol=1e-5)
