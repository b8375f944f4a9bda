"""The two machines that run the programs of `program_rules`.

    JAX     the program's own types (float16, bfloat16, float32, complex64, int32, bool), and lax loops;
    NUMPY   the oracle: float64 and complex128, and Python's loops.

Where they differ by more than a module's name, the difference stands here.
"""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

# The step from 1 to the next number: none where arithmetic is exact.
EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "complex64": 2**-23, "int32": 0, "bool": 0}


def numpy_put(x, index):
    x = x.copy()
    x[index] = 0
    return x


def numpy_softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def numpy_fori(trips, body, x):
    for i in range(trips):
        x = body(x, np.int32(i))
    return x


def numpy_scan(body, x, items):
    for item in items:
        x = body(x, item)
    return x


def jax_while(trips, body, x):
    return jax.lax.while_loop(lambda c: c[0] < trips, lambda c: (c[0] + 1, body(c[1])), (jnp.int32(0), x))[1]


def each(body):
    return lambda x: np.stack([body(item) for item in x])


NUMPY = SimpleNamespace(
    np=np, relu=lambda x: np.maximum(x, 0), softmax=numpy_softmax, put=numpy_put,
    types={"float16": np.float64, "bfloat16": np.float64, "float32": np.float64, "complex64": np.complex128,
           "int32": np.int32, "bool": np.bool_},
    cond=lambda p, yes, no, x: yes(x) if p else no(x),
    switch=lambda i, branches, x: branches[min(max(int(i), 0), len(branches) - 1)](x),
    loop=lambda trips, body, x: numpy_fori(int(trips), lambda c, _: body(c), x),
    fori=numpy_fori, scan=numpy_scan,
    jit=lambda f: f, checkpoint=lambda f: f, vmap=each, map=each)

JAX = SimpleNamespace(
    np=jnp, relu=jax.nn.relu, softmax=jax.nn.softmax, put=lambda x, index: x.at[index].set(x.dtype.type(0)),
    types={name: jnp.dtype(name) for name in EPS},
    cond=jax.lax.cond, switch=jax.lax.switch, loop=jax_while,
    fori=lambda trips, body, x: jax.lax.fori_loop(0, trips, lambda i, c: body(c, jnp.int32(i)), x),
    scan=lambda body, x, items: jax.lax.scan(lambda c, item: (body(c, item), None), x, items)[0],
    jit=jax.jit, checkpoint=jax.checkpoint, vmap=jax.vmap, map=lambda f: partial(jax.lax.map, f))
