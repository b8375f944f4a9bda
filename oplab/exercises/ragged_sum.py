"""Write a kernel: the edge at which blocks do not fit."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from ..pallas import check
from .exercise import Exercise

STARTER = '''\
def row_sums(x):
    """The sum of each row of x, (8, n), for any n: blocks of 128 columns, added up over the grid."""
    n = x.shape[1]
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...].sum(1, keepdims=True)  # beyond column n stand numbers that are not yours
    return pl.pallas_call(
        kernel, grid=(pl.cdiv(n, 128),), out_shape=jax.ShapeDtypeStruct((8, 1), x.dtype), interpret=True,
        in_specs=[pl.BlockSpec((8, 128), lambda i: (0, i))], out_specs=pl.BlockSpec((8, 1), lambda i: (0, 0)),
    )(x)'''


def row_sums(x):
    n = x.shape[1]
    def kernel(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        column = 128 * pl.program_id(0) + jax.lax.broadcasted_iota(jnp.int32, (8, 128), 1)
        o_ref[...] += jnp.where(column < n, x_ref[...], 0).sum(1, keepdims=True)
    return pl.pallas_call(
        kernel, grid=(pl.cdiv(n, 128),), out_shape=jax.ShapeDtypeStruct((8, 1), x.dtype), interpret=True,
        in_specs=[pl.BlockSpec((8, 128), lambda i: (0, i))], out_specs=pl.BlockSpec((8, 1), lambda i: (0, 0)),
    )(x)


def faults(row_sums: Callable) -> Iterator[str]:
    for n in (128, 256, 300, 1):
        x = jnp.asarray(np.random.default_rng(n).normal(size=(8, n)).astype(np.float32))
        for row in check(row_sums, x).itertuples():
            yield f"with {n} columns, {row.finding}: {row.detail}"
        if "pallas_call" not in str(jax.make_jaxpr(row_sums)(x)):
            yield "there is no pallas_call in it."
        got, right = np.asarray(row_sums(x)), np.asarray(x, np.float64).sum(1, keepdims=True)
        if got.shape != right.shape:
            yield f"with {n} columns the result has shape {got.shape}, expected {right.shape}."
        elif np.isnan(got).any():
            beyond = -n % 128
            yield (f"with {n} columns the sums are NaN: the last block has {beyond} columns that x does not "
                   "have, and what stands there was added.")
        elif np.abs(got - right).max() > 1e-4:
            yield f"with {n} columns the first sum is {got[0, 0]:.4f}, expected {right[0, 0]:.4f}."


EXERCISE = Exercise(
    name="ragged_sum", level=4, solution="row_sums", starter=STARTER, size="two lines", faults=faults,
    task="With 300 columns the third block of 128 hangs over the edge. Keep out what does not belong to x.",
    hints=(
        "What is the number, in x, of the first column of program i's block?",
        "Compare each column's number with n, and put 0 where it is beyond. Choose; a product with 0 "
        "keeps NaN.",
        "column = 128 * pl.program_id(0) + jax.lax.broadcasted_iota(jnp.int32, (8, 128), 1); "
        "jnp.where(column < n, ...).",
    ),
    notice=("Whoever reads across an edge gets whatever is there. The interpreter puts NaN there, so "
            "that it shows."),
    code=inspect.getsource(row_sums),
)
