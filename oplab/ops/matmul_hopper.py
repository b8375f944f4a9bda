"""matmul as one Pallas kernel for NVIDIA's Hopper (H100, H200), in Mosaic GPU: how a tensor core is kept fed.

    C = A B        A (m, k), B (k, n) in float16 or bfloat16, summed in float32

A Hopper chip multiplies faster than ordinary loads can feed it, so three parts work at once. The *TMA*, an
engine of its own, copies tiles from global to shared memory; one thread starts a copy and goes on. A
*barrier* in shared memory counts the bytes that have arrived: whoever waits for it waits for a whole tile.
*wgmma* is a matrix product that a *warpgroup* (four warps, 128 threads) asks the tensor core for: operands in
shared memory, sums in registers. Hence the form of this kernel: one warpgroup does nothing but start copies,
some tiles ahead, and two do nothing but multiply.

    loading                                    multiplying (two warpgroups, half of the rows each)
    for each step along k:                     for each step along k:
        wait until the slot is empty               wait until the slot is full
        start the copies of A's tile and B's       C += A's tile x B's tile
                                                   say that the slot is empty

Tiles lie in shared memory *swizzled*: the 16-byte pieces of a 128-byte row are permuted, differently in each
of eight rows, so that the tensor core finds a column of pieces in different banks. The TMA swizzles on the
way; the kernel only has to name the form.

Cost: 2 m k n FLOPs. A block of C reads (rows + columns) k numbers of 2 bytes and does 2 rows columns k FLOPs
with them: with the sizes below 85 FLOPs for each byte that leaves the second-level cache.

Sources: NVIDIA's PTX manual (wgmma, cp.async.bulk.tensor, mbarrier); the Mosaic GPU chapter of JAX's
documentation.

What is known of it: it compiles to machine code for Hopper, with wgmma (HGMMA) and TMA (UTMALDG) instructions
and no spilled register, and JAX's GPU interpreter gives the right values on a CPU, without a race. It has
never been run on a GPU: its speed is not known, nor what the interpreter does not model (the swizzle, wgmma
that is still running, approximate functions).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl

from .operator import Unsupported

WARPGROUPS = 2  # that multiply: while one waits for its products, the tensor core has the other's
ROWS = 128  # of a block of C: wgmma is 64 rows high, one such piece for each warpgroup
COLUMNS = 256  # of a block of C: the widest wgmma; its sums take 128 of a thread's 255 registers
DEPTH = 64  # of a step along k: 64 numbers of 16 bits are the 128 bytes of one swizzled row
STAGES = 4  # tiles in flight: 4 (128 + 256) 64 numbers are 192 KiB, and 227 KiB is what a block may have
STRIP = 64  # columns of C that leave at a time: (128, 64) of float32 are 32 KiB, which is what is left

# Registers of a thread: 128 (2 x 232 + 40) = 63 Ki of the 64 Ki of a block. Starting copies takes few.
LOADING, MULTIPLYING = 40, 232

# CUDA's limit on the second and third dimension of a grid.
GRID_LIMIT = 65535


# What both Hopper kernels share -----------------------------------------------------------------------------


def mosaic_gpu() -> ModuleType:
    """`jax.experimental.pallas.mosaic_gpu`, imported when it is needed: it takes a second or two.

    On JAX 0.10 its import needs the package absl-py, which JAX does not ask for.
    """
    from jax.experimental.pallas import mosaic_gpu

    return mosaic_gpu


def not_here(kernel: str) -> str | None:
    """Why this machine cannot make or run a Hopper kernel, or None. Without a GPU it can still make one."""
    try:
        mosaic_gpu()
    except ModuleNotFoundError as error:
        package = {"absl": "absl-py"}.get(error.name or "", error.name)
        return f"{kernel} is written in Mosaic GPU, which needs {package}: pip install {package}."
    try:
        device = jax.devices("cuda")[0]
    except RuntimeError:
        return None
    if device.compute_capability != "9.0":
        return (
            f"{kernel} needs a Hopper GPU (compute capability 9.0), this is {device.device_kind} "
            f"({device.compute_capability}): use implementation='xla'."
        )
    return None


def swizzled(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory in the form that wgmma reads and TMA writes: tiles of 8 rows of 128 bytes, swizzled."""
    plgpu, elements = mosaic_gpu(), 128 // np.dtype(dtype).itemsize
    form = (plgpu.TilingTransform((8, elements)), plgpu.SwizzleTransform(128))
    return plgpu.SMEM(shape, dtype, transforms=form)


def compiler_params() -> Any:
    """Layouts in registers are inferred (JAX 0.10 must be asked to); exp2 and log are the chip's own."""
    plgpu = mosaic_gpu()
    return plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup, approx_math=True)


def filled_up(x: jax.Array, axis: int, multiple: int) -> jax.Array:
    """x, with zeros behind its end along `axis` if its size is not a multiple yet (which costs a copy).

    Mosaic wants whole tiles of 8 x 64 in global memory. Blocks are larger than that, and where they reach
    over the edge it is the TMA's affair: it reads zeros there, and writes nothing.
    """
    missing = -x.shape[axis] % multiple
    widths = [(0, missing if d == axis else 0) for d in range(x.ndim)]
    return jnp.pad(x, widths) if missing else x


# The kernel -------------------------------------------------------------------------------------------------


def _kernel(a_gmem, b_gmem, c_gmem, *, a_smem, b_smem, c_smem, full, empty):
    """One block of C. *_gmem: whole arrays (batch, m, k), (batch, k, n) and (batch, m, n).

    a_smem and b_smem: STAGES slots of a tile each. full and empty: a barrier for each slot.
    """
    plgpu = mosaic_gpu()
    batch, row, column = (lax.axis_index(name) for name in ("batch", "row", "column"))
    warpgroup = lax.axis_index("warpgroup")
    steps, columns = pl.cdiv(a_gmem.shape[2], DEPTH), b_smem.shape[2]
    left = column * columns

    @pl.when(warpgroup == WARPGROUPS)
    def _load():
        plgpu.set_max_registers(LOADING, action="decrease")

        def step(i, _):
            slot, deep = lax.rem(i, np.int32(STAGES)), pl.ds(i * DEPTH, DEPTH)

            @pl.when(i >= STAGES)  # before that, slots are empty from the start
            def _():
                plgpu.barrier_wait(empty.at[slot])

            a_tile = a_gmem.at[batch, pl.ds(row * ROWS, ROWS), deep]
            b_tile = b_gmem.at[batch, deep, pl.ds(left, columns)]
            plgpu.copy_gmem_to_smem(a_tile, a_smem.at[slot], full.at[slot])
            plgpu.copy_gmem_to_smem(b_tile, b_smem.at[slot], full.at[slot])

        lax.fori_loop(0, steps, step, None)

    @pl.when(warpgroup < WARPGROUPS)
    def _multiply():
        plgpu.set_max_registers(MULTIPLYING, action="increase")
        height = ROWS // WARPGROUPS
        mine = pl.ds(warpgroup * height, height)

        def summed(sums):
            def step(i, _):
                slot = lax.rem(i, np.int32(STAGES))
                plgpu.barrier_wait(full.at[slot])
                plgpu.wgmma(sums, a_smem.at[slot, mine], b_smem.at[slot])
                plgpu.wgmma_wait(0)  # it is asynchronous too; until then it reads the slot
                plgpu.barrier_arrive(empty.at[slot])

            lax.fori_loop(0, steps, step, None)
            return sums[...]

        c = pl.run_scoped(summed, plgpu.ACC((height, columns), jnp.float32)).astype(c_gmem.dtype)
        top = row * ROWS + warpgroup * height
        for start in range(0, columns, STRIP):
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)  # the strip before has left
            c_smem[mine] = c[:, start : start + STRIP]
            plgpu.commit_smem()  # shared memory as threads see it, and as the TMA sees it, are two views
            there = c_gmem.at[batch, pl.ds(top, height), pl.ds(left + start, STRIP)]
            plgpu.copy_smem_to_gmem(c_smem.at[mine], there)
        plgpu.wait_smem_to_gmem(0)


# The launcher -----------------------------------------------------------------------------------------------


def matmul_hopper(a: jax.Array, b: jax.Array, *, out_dtype: Any, interpret: Any = None) -> jax.Array:
    """a (..., m, k) times b (..., k, n) with the same leading dimensions, if any: (..., m, n) in `out_dtype`.

    a and b: both float16 or both bfloat16, summed in float32. out_dtype: float16, bfloat16 or float32.
    Sizes are free; where m is not a multiple of 8, or k or n of 64, operands are copied once to pad them.
    interpret: a `plgpu.InterpretGPUParams` (JAX 0.12) runs the kernel on a CPU, step by step.
    Raises `Unsupported` with the sentence that `refusal` gives.
    """
    reason = refusal(a, b, out_dtype)
    if reason:
        raise Unsupported(reason)
    *leading, m, k = a.shape
    n, batch = b.shape[-1], math.prod(leading)
    a, b = a.reshape(batch, m, k), b.reshape(batch, k, n)
    a = filled_up(filled_up(a, 1, 8), 2, DEPTH)
    b = filled_up(filled_up(b, 1, DEPTH), 2, STRIP)
    padded = (batch, a.shape[1], b.shape[2])
    c = _launch(a, b, jax.ShapeDtypeStruct(padded, out_dtype), interpret)
    return c[:, :m, :n].reshape(*leading, m, n)


def _launch(a: jax.Array, b: jax.Array, c: jax.ShapeDtypeStruct, interpret: Any) -> jax.Array:
    plgpu = mosaic_gpu()
    columns = min(COLUMNS, c.shape[2])
    return plgpu.kernel(
        _kernel,
        out_type=c,
        # The last axis runs fastest, so blocks that run at the same time share rows of A.
        grid=(c.shape[0], pl.cdiv(c.shape[1], ROWS), pl.cdiv(c.shape[2], columns)),
        grid_names=("batch", "row", "column"),
        num_threads=WARPGROUPS + 1,  # Mosaic's threads are warpgroups
        thread_name="warpgroup",
        scratch_types=dict(
            a_smem=swizzled((STAGES, ROWS, DEPTH), a.dtype),
            b_smem=swizzled((STAGES, DEPTH, columns), b.dtype),
            c_smem=swizzled((ROWS, STRIP), c.dtype),
            full=plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),  # two copies
            empty=plgpu.Barrier(num_arrivals=WARPGROUPS, num_barriers=STAGES),
        ),
        compiler_params=compiler_params(),
        interpret=interpret,
        kernel_name="matmul_hopper",
    )(a, b)


def refusal(a: Any, b: Any, out_dtype: Any) -> str | None:
    """Why this kernel cannot multiply a and b (anything with shape and dtype), in one sentence, or None."""
    given = f"a {a.dtype}{list(a.shape)} and b {b.dtype}{list(b.shape)}"
    if a.dtype != b.dtype or a.dtype not in (jnp.float16, jnp.bfloat16):
        return f"matmul's Hopper kernel multiplies float16 by float16 or bfloat16 by bfloat16, got {given}."
    if jnp.dtype(out_dtype) not in (jnp.float16, jnp.bfloat16, jnp.float32):
        return f"matmul's Hopper kernel gives float16, bfloat16 or float32, not {jnp.dtype(out_dtype)}."
    if len(a.shape) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1:] != b.shape[-2:-1]:
        return (
            "matmul's Hopper kernel expects a (..., m, k) and b (..., k, n) of the same leading dimensions, "
            f"got {given}."
        )
    if 0 in (*a.shape, *b.shape):
        return f"matmul's Hopper kernel expects at least one element in each operand, got {given}."
    if math.prod(a.shape[:-2]) > GRID_LIMIT or pl.cdiv(a.shape[-2], ROWS) > GRID_LIMIT:
        return (
            f"matmul's Hopper kernel does at most {GRID_LIMIT} products of {GRID_LIMIT * ROWS} rows at once, "
            f"got {given}."
        )
    return not_here("matmul's Hopper kernel")
