"""Write a kernel: index maps count blocks."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from ..pallas import check
from .exercise import Exercise

STARTER = '''\
def transpose(x):
    """x of (256, 512), in blocks of 128 x 128. Program (i, j) writes block (i, j) of the result."""
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...].T
    return pl.pallas_call(
        kernel, grid=(4, 2), out_shape=jax.ShapeDtypeStruct((512, 256), x.dtype), interpret=True,
        in_specs=[pl.BlockSpec((128, 128), lambda i, j: (i, j))],  # which block of x does it read?
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
    )(x)'''


def transpose(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...].T
    return pl.pallas_call(
        kernel, grid=(4, 2), out_shape=jax.ShapeDtypeStruct((512, 256), x.dtype), interpret=True,
        in_specs=[pl.BlockSpec((128, 128), lambda i, j: (j, i))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
    )(x)


def faults(transpose: Callable) -> Iterator[str]:
    x = jnp.arange(256 * 512, dtype=jnp.float32).reshape(256, 512)
    for row in check(transpose, x).itertuples():
        yield f"{row.finding}: {row.detail}"
    if "pallas_call" not in str(jax.make_jaxpr(transpose)(x)):
        yield "there is no pallas_call in it."
    got = np.asarray(transpose(x))
    if not np.array_equal(got, np.asarray(x).T):
        wrong = np.argwhere(got != np.asarray(x).T)[0]
        i, j = wrong // 128
        yield f"block ({i}, {j}) of the result holds the wrong block of x."


EXERCISE = Exercise(
    name="tile_transpose", level=4, solution="transpose",
    starter=STARTER, size="one expression", faults=faults,
    task="Each program turns one block over. Say which block of x it must read.",
    hints=(
        "Program (3, 0) writes block row 3 of the result. In which part of x do those numbers stand?",
        "An index map returns numbers of blocks, not of elements; Pallas multiplies by the block "
        "size itself.",
        "lambda i, j: (j, i).",
    ),
    notice="The kernel never sees an address. Which data it gets is decided by the index map alone.",
    code=inspect.getsource(transpose),
)
