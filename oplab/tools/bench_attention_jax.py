"""The attention benchmark's variants in JAX: ours, jax.nn's, and softmax(q k^T) v written out in four ways.

A variant has one form or several of the same idea; the worker keeps the fastest of them at each shape. Those
that put the heads first get q, k and v in that layout, made once: no variant pays for another one's layout.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import oplab
from oplab.cost import function_cost
from oplab.native import load
from oplab.tools.bench_attention_problem import Missing, Prepared, Shape, operands

BLOCK = 256  # queries and keys of one step of the chunked form: what was fastest on the CPUs tried

# Written out, (batch, heads, seq, dim) ----------------------------------------------------------------------


def scores(q, k):
    return jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32)


def seen(s):
    """Query i sees the keys up to i."""
    return jnp.arange(s.shape[-1])[None] <= jnp.arange(s.shape[-2])[:, None]


def weighted(p, v):
    return jnp.einsum("bhqk,bhkd->bhqd", p.astype(v.dtype), v, preferred_element_type=jnp.float32)


def textbook(q, k, v, causal):
    """As one writes it, with jax.nn.softmax."""
    s = scores(q, k) * q.shape[-1] ** -0.5
    if causal:
        s = jnp.where(seen(s), s, -jnp.inf)
    return weighted(jax.nn.softmax(s), v).astype(v.dtype)


def divided_last(q, k, v, causal):
    """The scale goes into q and the division comes last, so both touch dim numbers a query and not seq."""
    s = scores(q * q.shape[-1] ** -0.5, k)
    return after_scores(jnp.where(seen(s), s, -1e30) if causal else s, v)


def added_mask(q, k, v, bias):
    """The same with an added mask, which XLA's library fusion takes where it refuses a `where`."""
    return after_scores(scores(q * q.shape[-1] ** -0.5, k) + bias, v)


def after_scores(s, v):
    p = jnp.exp(s - s.max(-1, keepdims=True))
    return (weighted(p, v) / p.sum(-1, keepdims=True)).astype(v.dtype)


def barriers(q, k, v, causal):
    """One program, but XLA may not fuse over a barrier: the scores go to memory and come back."""
    s = lax.optimization_barrier(scores(q, k)) * q.shape[-1] ** -0.5
    if causal:
        s = jnp.where(seen(s), s, -jnp.inf)
    return weighted(lax.optimization_barrier(jax.nn.softmax(s)), v).astype(v.dtype)


def one_by_one(q, k, v, causal):
    """What a learner types at the prompt: without jit, every operator is a program of its own."""
    s = jnp.matmul(q, jnp.swapaxes(k, -1, -2))
    s = s * q.shape[-1] ** -0.5
    if causal:
        s = jnp.where(seen(s), s, -jnp.inf)
    e = jnp.exp(s - jnp.max(s, -1, keepdims=True))
    p = e / jnp.sum(e, -1, keepdims=True)
    return jnp.matmul(p, v)


def chunked(q, k, v, causal):
    """Online softmax in jax.lax: blocks of queries, for each a scan over blocks of keys, no whole score row.

    Nothing of a block is kept for the backward pass, which computes it again, as a fused kernel's does.
    """
    batch, heads, seq, dim = q.shape
    n = math.gcd(seq, BLOCK)
    cut = lambda x: x.reshape(batch * heads, seq // n, n, dim)
    inside = jnp.tri(n, dtype=bool)

    def head(blocks):
        qs, ks, vs = blocks
        numbers = jnp.arange(len(qs))

        @jax.checkpoint
        def row(i, q_block):
            def add(carry, block):
                j, k_block, v_block = block

                def step(carry):
                    top, total, o = carry
                    s = jnp.dot(q_block, k_block.T, preferred_element_type=jnp.float32)
                    if causal:
                        s = jnp.where((j < i) | inside, s, -1e30)
                    higher = jnp.maximum(top, s.max(-1))
                    shrink, p = jnp.exp(top - higher), jnp.exp(s - higher[:, None])
                    o = o * shrink[:, None]
                    o += jnp.dot(p.astype(v_block.dtype), v_block, preferred_element_type=jnp.float32)
                    return higher, total * shrink + p.sum(-1), o

                return lax.cond(j <= i, step, lambda c: c, carry) if causal else step(carry), None

            start = jnp.full(n, -1e30), jnp.zeros(n), jnp.zeros((n, dim))
            (_, total, o), _ = lax.scan(add, start, (numbers, ks, vs))
            return (o / total[:, None]).astype(q.dtype)

        return lax.map(lambda each: row(*each), (numbers, qs))

    return lax.map(head, (cut(q * dim**-0.5), cut(k), cut(v))).reshape(q.shape)


# As they are timed ------------------------------------------------------------------------------------------


def prepared(f: Callable, shape: Shape, heads_first: bool = True, jit: bool = True,
             bias: bool = False) -> Prepared:
    """f(q, k, v, causal) ready to be timed; with `bias`, f takes an array to add in causal's place."""
    turn = lambda x: np.ascontiguousarray(x.swapaxes(1, 2)) if heads_first else x
    args = [jnp.asarray(turn(x), shape.dtype) for x in operands(shape)]
    if bias:
        mask = np.where(np.tri(shape.seq, dtype=bool), np.float32(0), np.float32(-1e30))
        args.append(jnp.asarray(mask))

    def forward(q, k, v, do, last=shape.causal):
        return f(q, k, v, last)

    def both(q, k, v, do, *last):
        def loss(q, k, v):
            return jnp.sum(forward(q, k, v, do, *last) * do, dtype=jnp.float32)

        return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)

    step = both if shape.backward else forward
    run = jax.jit(step) if jit else step

    def results():
        out = run(*args)[1] if shape.backward else [run(*args)]
        return [turn(np.asarray(x, np.float32)) for x in out]

    return Prepared(lambda: jax.block_until_ready(run(*args)), results, shape.flops,
                    function_cost(step, *args).bytes)


def native(shape: Shape) -> dict[str, Prepared]:
    """oplab's own kernel; an answer by any other implementation is refused, for it would be timed as ours."""
    def ours(q, k, v, causal):
        return oplab.ops.attention(q, k, v, causal=causal, implementation="native")

    small = jnp.zeros((1, 16, 1, shape.dim), shape.dtype)
    try:
        found = set(oplab.ran(lambda q: ours(q, q, q, shape.causal), small)["ran"])
    except Exception as error:
        raise Missing(str(error).splitlines()[0]) from error
    if found != {"native"}:
        raise Missing(f"{', '.join(map(str, found))} ran in its place")
    return {f"{load().instruction_set}, time before heads": prepared(ours, shape, heads_first=False)}


def jit_naive(shape: Shape) -> dict[str, Prepared]:
    forms = {"textbook": prepared(textbook, shape), "divided last": prepared(divided_last, shape)}
    if shape.causal:  # without a mask it would be the form before
        forms["added mask"] = prepared(added_mask, shape, bias=True)
    return forms


def jax_nn(shape: Shape) -> dict[str, Prepared]:
    def theirs(q, k, v, causal):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    return {"time before heads": prepared(theirs, shape, heads_first=False)}


VARIANTS: dict[str, Callable[[Shape], dict[str, Prepared]]] = {
    "native": native,
    "jax.nn": jax_nn,
    "jit naive": jit_naive,
    "jit with barriers": lambda shape: {"heads first": prepared(barriers, shape)},
    "eager": lambda shape: {"heads first": prepared(one_by_one, shape, jit=False)},
    "chunked lax": lambda shape: {"heads first": prepared(chunked, shape)},
    "xla": lambda shape: {"time before heads": prepared(
        lambda q, k, v, causal: oplab.ops.attention(q, k, v, causal=causal, implementation="xla"),
        shape, heads_first=False)},
}


def matmul(n: int, dtype: str) -> Prepared:
    a, b = (jnp.asarray(x, dtype) for x in np.random.default_rng(n).standard_normal((2, n, n), np.float32))
    product = jax.jit(jnp.matmul)
    return Prepared(lambda: jax.block_until_ready(product(a, b)), lambda: [], 2 * n**3, 3 * a.nbytes)
