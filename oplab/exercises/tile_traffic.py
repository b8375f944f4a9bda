"""Write a kernel: the bytes that a tiled matmul moves, said before it runs."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ..pallas import traffic
from .exercise import Exercise

STARTER = '''\
def moved(m, k, n, tile):
    """Bytes fetched and written back by a float32 matmul (m, k) @ (k, n) with the grid
    (m / tile, n / tile, k / tile), the last axis running fastest. All divide; there are at least two of each.
    """
    return ...'''


def moved(m, k, n, tile):
    x = m * k * (n // tile)  # every block row of x is fetched once for each block column of the result
    y = k * n * (m // tile)
    return 4 * (x + y + m * n)  # the result stays in place while k runs, and is written once


def kernel(x_ref, y_ref, o_ref):
    @pl.when(pl.program_id(2) == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)
    o_ref[...] += x_ref[...] @ y_ref[...]


def counted(m: int, k: int, n: int, tile: int) -> int:
    block = lambda index: pl.BlockSpec((tile, tile), index)
    call = pl.pallas_call(
        kernel, grid=(m // tile, n // tile, k // tile), out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        in_specs=[block(lambda i, j, k: (i, k)), block(lambda i, j, k: (k, j))],
        out_specs=block(lambda i, j, k: (i, j)), interpret=True)
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((m, k), (k, n))]
    return int(traffic(call, *shapes)["moved_bytes"].sum())


def faults(guess: Callable) -> Iterator[str]:
    for m, k, n, tile in [(256, 256, 256, 128), (512, 256, 1024, 128), (128, 512, 256, 64)]:
        said, right = guess(m, k, n, tile), counted(m, k, n, tile)
        case = f"at m={m}, k={k}, n={n}, tile={tile} it says {said}"
        arrays = 4 * (m * k + k * n + m * n)
        if said is None or said is ...:
            yield "it returns nothing yet: fill the hole."
        elif said == arrays:
            yield f"{case}, which is each array once; the kernel moves {right}: blocks are fetched again."
        elif said == 4 * (m * k * (n // tile) + k * n * (m // tile) + m * n * (k // tile)):
            yield f"{case}, and the kernel moves {right}: the result is not written at every step."
        elif 4 * said == right:
            yield f"{case}: those are numbers, and the kernel moves {right} bytes."
        elif said != right:
            yield f"{case}, and the kernel moves {right}."


EXERCISE = Exercise(
    name="tile_traffic", level=4, solution="moved", starter=STARTER, size="three lines", faults=faults,
    task="Small tiles fetch the same data again and again. Say how many bytes a tiled matmul moves.",
    hints=(
        "oplab.pallas.steps shows each step. How often is the first block of x fetched? And that of "
        "the result?",
        "x's blocks depend on i and k: for each of the n / tile values of j they are fetched anew. y "
        "likewise.",
        "4 * (m * k * (n // tile) + k * n * (m // tile) + m * n).",
    ),
    notice=("Doubling the tile halves the traffic, until the tile no longer fits: that is what tuning "
            "a kernel means."),
    code=inspect.getsource(moved),
)
