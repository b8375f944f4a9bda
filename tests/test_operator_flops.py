"""An operator costs what its reference costs: the formulas in oplab/operator_flops.py against a count."""

import jax
import jax.numpy as jnp
import pytest

from oplab.cost import flops, function_cost
from oplab.operator_flops import OPERATORS
from oplab.ops import CATALOGUE, attention, conv2d, matmul


def example(operator):
    return [jax.ShapeDtypeStruct(tuple(axes.values()), jnp.float32) for axes in operator.example.values()]


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_formula_agrees_with_a_count_of_the_reference(name):
    operator = CATALOGUE[name]
    ours = function_cost(operator.function, *example(operator))
    counted = function_cost(operator.reference, *example(operator))
    exactly = name in ("relu", "bias_add", "matmul")
    assert ours.flops == pytest.approx(counted.flops, rel=0 if exactly else 0.15)
    assert ours.transcendentals == pytest.approx(counted.transcendentals, rel=0.15)


def test_every_primitive_of_the_operators_has_a_formula():
    from oplab.ops.operator import MAP

    assert set(MAP) == set(OPERATORS)


def test_batches_gradients_and_groups():
    a, b = jnp.ones((3, 4, 5)), jnp.ones((5, 6))
    assert flops(matmul, a, b) == 2 * 3 * 4 * 5 * 6
    assert flops(jax.grad(lambda a: matmul(a, b).sum()), a) == 2 * (2 * 3 * 4 * 5 * 6) + 3 * 4 * 6 - 1
    x, w = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 2, 6))
    assert flops(lambda x, w: conv2d(x, w, groups=2, padding="SAME"), x, w) == 2 * 8 * 8 * 6 * 3 * 3 * 2


def test_a_causal_mask_counts_what_is_seen():
    q = jnp.ones((2, 16, 4, 8))
    whole, causal = (function_cost(lambda q, c=c: attention(q, q, q, causal=c), q) for c in (False, True))
    assert causal.flops * 32 == whole.flops * 17  # (1 + 2 + ... + 16) of 16 * 16 pairs
    assert causal.transcendentals == 2 * 4 * 16 * 17 // 2


def test_the_backward_pass_of_attention_has_five_products_to_the_forward_pass_two():
    q = jnp.ones((1, 64, 2, 64))
    forward = flops(lambda q, k, v: attention(q, k, v), q, q, q)
    both = flops(jax.grad(lambda q, k, v: attention(q, k, v).sum(), (0, 1, 2)), q, q, q)
    assert (both - forward) / forward == pytest.approx(2.5, rel=0.05)
