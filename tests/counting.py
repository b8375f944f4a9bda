"""What the tests of the cost model count with: shapes, XLA's count, ours, and a loop that counts."""

import jax
import jax.numpy as jnp
from jax import lax

from oplab.cost import equations, function_cost


def ones(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def xla(f, *args):
    """XLA's own count, before it optimises: (flops, transcendentals)."""
    counts = jax.jit(f).lower(*args).cost_analysis()
    return counts.get("flops", 0), counts.get("transcendentals", 0)


def ours(f, *args):
    counted = function_cost(f, *args)
    return counted.flops, counted.transcendentals


def of_primitive(name, f, *args):
    """The cost of the only equation of that name, at any depth."""
    closed = jax.jit(f).trace(*args).jaxpr
    counted, = [c.cost for c in equations(closed) if c.eqn.primitive.name == name]
    return counted


W, X = ones(64, 64), ones(8, 64)
MATMUL = 2 * 8 * 64 * 64


def counts_to(n, x):
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2.0), (0, x))[1]
