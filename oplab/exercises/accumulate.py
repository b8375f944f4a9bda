"""Write a kernel: a matmul that adds up over its grid."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from ..pallas import check
from .exercise import Exercise

STARTER = '''\
def matmul(x, y):
    """x (256, 512) @ y (512, 256) in blocks of 128: program (i, j, k) knows one product of blocks."""
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] @ y_ref[...]  # and what the other k have found?
    return pl.pallas_call(
        kernel, grid=(2, 2, 4), out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32), interpret=True,
        in_specs=[pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
                  pl.BlockSpec((128, 128), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
    )(x, y)'''


def matmul(x, y):
    def kernel(x_ref, y_ref, o_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...] @ y_ref[...]
    return pl.pallas_call(
        kernel, grid=(2, 2, 4), out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32), interpret=True,
        in_specs=[pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
                  pl.BlockSpec((128, 128), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
    )(x, y)


def faults(matmul: Callable) -> Iterator[str]:
    numbers = np.random.default_rng(0)
    x, y = (jnp.asarray(numbers.normal(size=s).astype(np.float32)) for s in ((256, 512), (512, 256)))
    for row in check(matmul, x, y).itertuples():
        yield f"{row.finding}: {row.detail}"
    if "pallas_call" not in str(jax.make_jaxpr(matmul)(x, y)):
        yield "there is no pallas_call in it."
    got, right = np.asarray(matmul(x, y)), np.asarray(x, np.float64) @ np.asarray(y)
    if got.shape != right.shape:
        yield f"the result has shape {got.shape}, expected {right.shape}."
    elif not np.abs(got - right).max() < 1e-2:
        yield f"its first number is {got[0, 0]:.4f}, expected {right[0, 0]:.4f}."


EXERCISE = Exercise(
    name="accumulate", level=4, solution="matmul", starter=STARTER, size="three lines", faults=faults,
    task="Four programs share each block of the result, one after the other. Let them add, not overwrite.",
    hints=(
        "Which block of the result do the programs (0, 0, 0), (0, 0, 1), (0, 0, 2) and (0, 0, 3) write?",
        "Add with +=. But what stands in the block before the first of them has run?",
        "@pl.when(pl.program_id(2) == 0) around o_ref[...] = jnp.zeros_like(o_ref), then o_ref[...] += ...",
    ),
    notice="k is the last axis of the grid, so that a block is finished before the next one begins.",
    code=inspect.getsource(matmul),
)
