"""The rule of each primitive against counts by hand, and against XLA on programs without loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import MATMUL, W, X, of_primitive, ones, ours, xla
from jax import lax

from oplab.cost import Cost, equations, flops, function_cost

NHWC = ("NHWC", "HWIO", "NHWC")


# Products: the count everyone agrees on

ANALYTIC = {
    "matmul": (lambda x, w: x @ w, (X, W), MATMUL),
    "10 unrolled": (lambda x, w: [x := x @ w for _ in range(10)][-1], (X, W), 10 * MATMUL),
    "scan of 10": (lambda x, w: lax.scan(lambda c, _: (c @ w, None), x, length=10)[0], (X, W), 10 * MATMUL),
    "scan of 5 scans of 4": (
        lambda x, w: lax.scan(
            lambda c, _: (lax.scan(lambda d, _: (d @ w, None), c, length=4)[0], None), x, length=5)[0],
        (X, W), 20 * MATMUL),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (ones(3, 8, 64), ones(3, 64, 64)), 3 * MATMUL),
    "gradient": (lambda x, w: jax.grad(lambda t: ((x @ t)**2).sum())(w), (X, W), 2 * MATMUL),
    "conv, borders counted full": (
        lambda a, b: lax.conv_general_dilated(a, b, (1, 1), "SAME", dimension_numbers=NHWC),
        (ones(1, 16, 16, 4), ones(3, 3, 4, 8)), 2 * 16 * 16 * 8 * 3 * 3 * 4),
    "attention": (
        lambda t: jax.nn.dot_product_attention(t, t, t), (ones(1, 32, 4, 16),), 2 * 2 * 4 * 32 * 32 * 16),
}


@pytest.mark.parametrize("name", ANALYTIC)
def test_flops_of_products_are_the_analytic_count(name):
    f, args, expected = ANALYTIC[name]
    assert expected <= flops(f, *args) <= 1.1 * expected  # a little elementwise work beside the products


# XLA agrees where it can see: no loops, no libraries, none of the differences in the module's docstring

def contract_two(a):
    return lax.dot_general(a, a, (((1, 2), (1, 2)), ((0,), (0,))))


def maxpool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (3, 2), (1, 2), "VALID")


AGREED = {
    "elementwise": (lambda x: jnp.where(x > 0, x * 2 + 1, -x / 3), X),
    "transcendental": (lambda x: jnp.tanh(x) + jnp.exp(x) * lax.rsqrt(x) - jnp.log1p(x) + x**2.5, X),
    "integers": (lambda x: (x << 1) ^ (x & 3) | ~x, ones(7, 3, dtype=jnp.int32)),
    "bool": (lambda x: ~(x & x) | x, ones(5, dtype=bool)),
    "powers": (lambda x: x**2 + x**3 + x**7 + lax.integer_pow(x, -3), X),
    "reductions": (lambda x: x.sum(0) + x.max(0) + lax.reduce(x, 1.0, lax.mul, (0,)), X),
    "softmax": (lambda x: jnp.exp(x - x.max(-1, keepdims=True)), X),
    "own reducer": (lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * b, (1,)), X),
    "window": (maxpool, X),
    "gradient of window": (jax.value_and_grad(lambda x: maxpool(x).sum()), X),
    "dot": (lambda x, w: lax.dot_general(x, w, (((1,), (1,)), ((), ()))), X, W),
    "dot over two axes": (contract_two, ones(3, 4, 5, 6)),
    "bfloat16": (lambda a: lax.dot(a, a, preferred_element_type=jnp.float32), ones(4, 4, dtype=jnp.bfloat16)),
    "moving": (lambda x: (x.T.reshape(-1)[::2], jnp.concatenate([x, x]), lax.rev(x, (0,)), x[3:4]), X),
    "scatter-add": (lambda x, i: x.at[i].add(2.0), X, ones(5, dtype=jnp.int32)),
    "gather": (lambda x, i: x[i], X, ones(5, dtype=jnp.int32)),
    "empty": (lambda x: jnp.dot(x.T, jnp.sin(x) * 2) * 3, ones(0, 4)),
    "jit in jit": (lambda x: jax.jit(lambda y: jnp.sin(y) * 2)(x) + jax.jit(lambda y: y * y)(x), X),
    "custom_jvp": (lambda x: jax.nn.relu(x) * jax.nn.relu6(x), X),
    "remat": (jax.value_and_grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()), X),
    "vmap of dot": (jax.vmap(lambda a, b: a @ b), ones(3, 4), ones(3, 4, 5)),
}


@pytest.mark.parametrize("name", AGREED)
def test_xla_counts_the_same_where_it_can_see(name):
    f, *args = AGREED[name]
    assert ours(f, *args) == xla(f, *args)
    assert function_cost(f, *args).exact


CONV = {
    "plain": {},
    "strided": {"window_strides": (2, 3)},
    "dilated kernel": {"rhs_dilation": (2, 1)},
    "transposed": {"lhs_dilation": (2, 3), "window_strides": (1, 2), "padding": ((0, 0), (0, 0))},
    "transposed and dilated": {"lhs_dilation": (3, 2), "rhs_dilation": (2, 3), "padding": ((0, 0), (-2, -1))},
    "grouped": {"feature_group_count": 2},
    "batch groups": {"batch_group_count": 2},
}


@pytest.mark.parametrize("name", CONV)
def test_convolutions_without_padding_agree_with_xla(name):
    options = {"window_strides": (1, 1), "padding": "VALID", **CONV[name]}
    x, k = ones(2, 11, 13, 4), ones(3, 2, 4 // options.get("feature_group_count", 1), 8)
    def f(x, k):
        return lax.conv_general_dilated(x, k, **options, dimension_numbers=NHWC)
    assert ours(f, x, k) == xla(f, x, k)


def test_gradient_of_a_strided_convolution_does_not_count_the_zeros_between():
    def f(x, k):
        return lax.conv(x, k, (2, 2), "VALID").sum()
    x, k = ones(1, 3, 32, 32), ones(8, 3, 2, 2)
    forward = function_cost(f, x, k).flops
    assert function_cost(jax.grad(f), x, k).flops < 2.1 * forward


# Rules with formulas

def test_complex_operations_count_as_their_real_ones():
    z = ones(5, dtype=jnp.complex64)
    expected = {lax.add: 2, lax.sub: 2, lax.mul: 6, lax.div: 11}
    for f, each in expected.items():
        assert ours(f, z, z) == (5 * each, 0)
    assert ours(lambda z: z.sum(), z) == (4 * 2, 0)
    assert ours(lambda z: (z.real, z.imag), z) == (0, 0)
    assert ours(jnp.abs, z) == (15, 5)
    a, b = ones(2, 3, dtype=jnp.complex64), ones(3, 4, dtype=jnp.complex64)
    assert ours(jnp.dot, a, b) == (8 * 2 * 3 * 4, 0)


def test_cumulative_sorted_and_transformed():
    x = ones(4, 8)
    assert ours(lambda x: lax.cumsum(x, 1), x) == (28, 0)
    assert ours(lambda x: lax.cumlogsumexp(x, 0), x) == (4 * 24, 2 * 24)
    assert ours(lambda x: lax.sort(x, dimension=1), x) == (32 * 3, 0)
    assert ours(lambda x: lax.top_k(x, 4), x) == (32 * 2, 0)
    assert ours(lambda x: lax.argmax(x, 1, jnp.int32), x) == (28, 0)
    assert ours(lambda x: lax.clamp(0.0, x, 1.0), x) == (64, 0)
    assert of_primitive("fft", jnp.fft.fft, ones(4, 8, dtype=jnp.complex64)).flops == 4 * 5 * 8 * 3
    assert of_primitive("fft", jnp.fft.rfft, x).flops == 4 * 5 * 8 * 3 / 2
    back = of_primitive("fft", lambda c: jnp.fft.irfft(c, 8), ones(4, 5, dtype=jnp.complex64))
    assert back.flops == 4 * 5 * 8 * 3 / 2


def test_dense_matrices():
    def leading(name, f, *shape):
        return of_primitive(name, f, ones(*shape)).flops
    n = 30
    assert leading("cholesky", jnp.linalg.cholesky, 2, n, n) == 2 * n**3 // 3
    assert leading("lu", lax.linalg.lu, n, n) == 2 * n**3 // 3
    assert leading("lu", lax.linalg.lu, 2 * n, n) == leading("lu", lax.linalg.lu, n, 2 * n) == 5 * n**3 // 3
    assert leading("qr", lax.linalg.qr, n, n) == 2 * (4 * n**3 // 3)
    reduced = leading("qr", lambda a: lax.linalg.qr(a, full_matrices=False), 2 * n, n)
    assert reduced == 2 * (4 * n**3 - 2 * n**3 // 3) < leading("qr", lax.linalg.qr, 2 * n, n)
    assert leading("eigh", jnp.linalg.eigh, n, n) == 9 * n**3
    values = leading("svd", lambda a: lax.linalg.svd(a, compute_uv=False), n, n)
    assert values == 8 * n**3 // 3 < leading("svd", lambda a: lax.linalg.svd(a, full_matrices=False), n, n)
    assert leading("svd", lax.linalg.svd, n, 2 * n) == leading("svd", lax.linalg.svd, 2 * n, n)
    solve = lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True)
    assert function_cost(solve, ones(n, n), ones(n, 7)) == Cost(7 * n**2, 0, 4 * (n * n + 14 * n))


def test_ragged_and_sparse_products():
    from jax.experimental import sparse
    groups = ones(2, dtype=jnp.int32)
    assert function_cost(lax.ragged_dot, ones(4, 3), ones(2, 3, 5), groups).flops == 2 * 4 * 3 * 5
    gradient = jax.grad(lambda b, a, g: lax.ragged_dot(a, b, g).sum())
    counted = equations(jax.jit(gradient).trace(ones(2, 3, 5), ones(4, 3), groups).jaxpr)
    assert {c.cost.flops for c in counted if "ragged" in c.eqn.primitive.name} == {2 * 4 * 3 * 5}
    def f(a, b):
        return sparse.BCOO.fromdense(a, nse=7) @ b
    product = of_primitive("bcoo_dot_general", f, ones(4, 6), ones(6, 5))
    assert product.flops == 2 * 7 * 5


def test_random_bits_are_integer_operations():
    key = jax.random.key(0)
    assert of_primitive("random_bits", lambda: jax.random.bits(key, (100,))).flops == 118 * 100
    assert of_primitive("random_split", lambda: jax.random.split(key, 10)).flops == 117 * 10
    rbg = jax.random.key(0, impl="rbg")
    assert of_primitive("random_bits", lambda: jax.random.bits(rbg, (100,), "uint8")).flops == 25 * 25
    sampled = function_cost(lambda k: jax.random.normal(k, (100,)), jax.random.key(1))
    assert sampled.exact and sampled.transcendentals == 100


def test_threefry_s_117_operations_are_counted_from_its_rounds():
    u = ones(dtype=jnp.uint32)
    def rotate(x, d):
        return (x << d) | (x >> (32 - d))
    def block(k0, k1, k2, x0, x1):  # k2 = k0 ^ k1 ^ constant, once for a key
        keys = [k0, k1, k2]
        x0, x1 = x0 + k0, x1 + k1
        for group in range(5):
            for d in ([13, 15, 26, 6], [17, 29, 16, 24])[group % 2]:
                x0 = x0 + x1
                x1 = rotate(x1, d) ^ x0
            x0 = x0 + keys[(group + 1) % 3]
            x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
        return x0, x1
    assert function_cost(block, u, u, u, u, u).flops == 117
