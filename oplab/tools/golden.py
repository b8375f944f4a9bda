"""The golden set: small programs that every figure of oplab is measured on, from one relu to a transformer.

Each program is a plain `jax.numpy` function of a few lines, with float32 arguments from a fixed seed, so that
two runs on one machine see the same compiler input. `golden()` is the set; `timed()` and `deep()` hold what
is only there to be timed. Nothing is made before it is asked for.

    function, args = golden()["softmax"]
    walk = oplab.walk(function, *args)
"""

import jax
import jax.numpy as jnp
import numpy as np

# One operator, or a few, at a time

def relu_chain(x, w1, b1, w2, b2):
    h = jnp.maximum(x @ w1 + b1, 0)
    return jnp.maximum(h @ w2 + b2, 0)


def matmul(x, w):
    return x @ w


def softmax(x):
    e = jnp.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, scale, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def conv2d(x, kernel):
    """x: (batch, in, height, width), kernel: (out, in, height, width). The CPU wants another order."""
    return jax.lax.conv(x, kernel, (1, 1), "SAME")


def cumsum(x):
    return jnp.cumsum(x, axis=-1)


def attention(q, k, v):
    """Unfused attention, (batch, heads, time, features): every operator on its own line."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = softmax(scores)
    return weights @ v


def attention_grad(q, k, v):
    return jax.grad(lambda *qkv: attention(*qkv).sum(), argnums=(0, 1, 2))(q, k, v)


# Loops: the compiler sees the body once, the machine runs it many times

def scan_mlp(x, weights):
    """weights: (layers, features, features)."""
    def layer(h, w):
        return jnp.tanh(h @ w), h.sum()

    return jax.lax.scan(layer, x, weights)


def while_loop(x):
    """Halve x until it is small; how often depends on the data."""
    return jax.lax.while_loop(lambda h: jnp.abs(h).max() > 0.1, lambda h: jnp.sin(h) * 0.5, x)


# A transformer, its layers unrolled by Python so that every layer has equations of its own

HEADS = 2


def transformer_layer(layer, x):
    batch, time, features = x.shape
    h = layer_norm(x, layer["scale1"], layer["bias1"])
    q, k, v = ((h @ layer[name]).reshape(batch, time, HEADS, -1).swapaxes(1, 2) for name in ("q", "k", "v"))
    x = x + attention(q, k, v).swapaxes(1, 2).reshape(batch, time, features) @ layer["out"]
    h = layer_norm(x, layer["scale2"], layer["bias2"])
    return x + jnp.maximum(h @ layer["up"], 0) @ layer["down"]


def transformer(layers, x):
    for layer in layers:
        x = transformer_layer(layer, x)
    return x


def transformer_grad(layers, x):
    return jax.grad(lambda p: (transformer(p, x) ** 2).mean())(layers)


# The arguments

def normal(seed, *shape, scale=1.0):
    return jnp.asarray(np.random.default_rng(seed).normal(0, scale, shape), jnp.float32)


def transformer_args(layers, features=32, batch=2, time=16):
    """Parameters as a list of dictionaries, one per layer, and x: (batch, time, features)."""
    def one_layer(seed):
        scale, hidden = features**-0.5, 4 * features
        shapes = {"q": (features, features), "k": (features, features), "v": (features, features),
                  "out": (features, features), "up": (features, hidden), "down": (hidden, features)}
        layer = {name: normal((seed, n), *shapes[name], scale=scale) for n, name in enumerate(shapes)}
        ones, zeros = jnp.ones(features), jnp.zeros(features)
        return layer | {"scale1": ones, "bias1": zeros, "scale2": ones, "bias2": zeros}

    return [one_layer(seed) for seed in range(layers)], normal(1000, batch, time, features)


# The tables of contents: name -> (function, args)

def golden():
    """The twelve programs that every figure is measured on: {name: (function, args)}."""
    q, k, v = (normal(seed, 2, 2, 16, 8) for seed in (1, 2, 3))
    twelve_layers = transformer_args(12)
    return {
        "relu_chain": (relu_chain, (normal(0, 32, 64), normal(1, 64, 64), normal(2, 64),
                                    normal(3, 64, 16), normal(4, 16))),
        "matmul": (matmul, (normal(0, 64, 32), normal(1, 32, 48))),
        "softmax": (softmax, (normal(0, 64, 128),)),
        "layer_norm": (layer_norm, (normal(0, 64, 128), normal(1, 128), normal(2, 128))),
        "conv2d": (conv2d, (normal(0, 2, 4, 16, 16), normal(1, 8, 4, 3, 3))),
        "cumsum": (cumsum, (normal(0, 32, 100),)),
        "attention": (attention, (q, k, v)),
        "attention_grad": (attention_grad, (q, k, v)),
        "scan_mlp": (scan_mlp, (normal(0, 8, 32), normal(1, 6, 32, 32, scale=0.2))),
        "while_loop": (while_loop, (normal(0, 16),)),
        "transformer": (transformer, twelve_layers),
        "transformer_grad": (transformer_grad, twelve_layers),
    }


def timed():
    """Programs that run long enough (above 5 ms) for their kernels to be held against the clock."""
    return {
        "attention_1024": (attention, tuple(normal(seed, 1, 8, 1024, 64) for seed in (1, 2, 3))),
        "relu_chain_wide": (relu_chain, (normal(0, 1024, 1024), normal(1, 1024, 2048), normal(2, 2048),
                                         normal(3, 2048, 1024), normal(4, 1024))),
        "transformer_wide": (transformer, transformer_args(12, features=256, batch=2, time=128)),
        "transformer_24": (transformer, transformer_args(24, features=128, batch=2, time=128)),
    }


def deep():
    """The 200-layer transformer: 11,600 equations and some 40,000 HLO instructions; seconds to compile."""
    return {"transformer_200": (transformer, transformer_args(200))}


def program(name):
    """(function, args) of any program in the three tables."""
    for table in (golden, timed, deep):
        if name in (found := table()):
            return found[name]
    raise KeyError(f"no golden program is called {name!r}")
