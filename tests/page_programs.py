"""Four programs of different size whose links people wrote down by hand (see test_page_links.py).

One operator on each line, so that a line's relatives can be told by reading.
"""

import functools

import jax
import jax.numpy as jnp

import oplab
from oplab.tools.golden import normal


def relu_layer(x, w, b):
    product = x @ w
    biased = product + b
    return jnp.maximum(biased, 0)


def attention(q, k, v):
    scores = q @ k.T
    scaled = scores / 8.0
    largest = scaled.max(axis=-1, keepdims=True)
    weights = jnp.exp(scaled - largest)
    total = weights.sum(axis=-1, keepdims=True)
    normal_weights = weights / total
    return normal_weights @ v


def mlp_loss(params, x):
    w1, w2 = params
    hidden = jnp.tanh(x @ w1)
    output = hidden @ w2
    return (output**2).sum()


def mlp_gradient(params, x):
    return jax.grad(mlp_loss)(params, x)


def scan_layers(x, weights):
    def layer(h, w):
        moved = h @ w
        bent = jnp.sin(moved)
        return bent, moved.sum()

    return jax.lax.scan(layer, x, weights)


ARGUMENTS = {
    relu_layer: (normal(0, 32, 64), normal(1, 64, 48), normal(2, 48)),
    attention: (normal(0, 32, 64), normal(1, 32, 64), normal(2, 32, 64)),
    mlp_gradient: ((normal(0, 16, 32), normal(1, 32, 8)), normal(2, 64, 16)),
    scan_layers: (normal(0, 8, 32), normal(1, 6, 32, 32)),
}


@functools.cache
def document(function):
    """The document of a program's walk, made once."""
    return oplab.walk(function, *ARGUMENTS[function]).to_json()
