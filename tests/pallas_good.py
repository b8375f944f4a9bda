"""Kernels without a mistake, each with arguments to read it with: none may be reported.

`OWN` are small ones that come close to a mistake without making it; `SHIPPED` are JAX's own, from
`jax.experimental.pallas.ops`. An entry is a function that returns (f, args).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

OWN, SHIPPED = {}, {}


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def good(make):
    OWN[make.__name__] = make
    return make


def call(kernel, grid, ins, out, shape=(64, 32), **more):
    """A pallas_call with float32 output; `ins` and `out` are (block shape, index map) or block specs."""
    def spec(given):
        return given if isinstance(given, pl.BlockSpec) else pl.BlockSpec(*given)
    more.setdefault("out_shape", f32(*shape))
    outs = [spec(o) for o in out] if isinstance(out, list) else spec(out)
    return pl.pallas_call(kernel, grid=grid, in_specs=[spec(i) for i in ins], out_specs=outs, **more)


def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def first(axis):
    return pl.when(pl.program_id(axis) == 0)


def last(axis):
    return pl.when(pl.program_id(axis) == pl.num_programs(axis) - 1)


ROWS = ((8, 32), lambda i: (i, 0))
LEFT, RIGHT = ((16, 8), lambda i, j, k: (i, k)), ((8, 16), lambda i, j, k: (k, j))
PRODUCT = ((16, 16), lambda i, j, k: (i, j))
SCRATCH = pltpu.VMEM((16, 16), jnp.float32)
FACTORS = f32(64, 32), f32(32, 48)


def product(kernel, **more):
    """64 x 32 times 32 x 48, in a grid of 4 x 3 x 4."""
    return call(kernel, (4, 3, 4), [LEFT, RIGHT], PRODUCT, (64, 48), **more), FACTORS


@good
def matmul_with_scratch():
    def kernel(x_ref, y_ref, o_ref, acc_ref):
        @first(2)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)
        acc_ref[...] += x_ref[...] @ y_ref[...]

        @last(2)
        def _():
            o_ref[...] = acc_ref[...]
    semantics = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))
    return product(kernel, scratch_shapes=[SCRATCH], compiler_params=semantics)


@good
def matmul_in_the_output():
    def kernel(x_ref, y_ref, o_ref):
        @first(2)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...] @ y_ref[...]
    return product(kernel)


@good
def matmul_that_stores_at_every_step():
    def kernel(x_ref, y_ref, o_ref, acc_ref):  # the last store has it all
        @first(2)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)
        acc_ref[...] += x_ref[...] @ y_ref[...]
        o_ref[...] = acc_ref[...]
    return product(kernel, scratch_shapes=[SCRATCH])


@good
def sum_that_selects_its_start():
    def kernel(x_ref, y_ref, o_ref):
        before = jnp.where(pl.program_id(2) == 0, 0.0, o_ref[...])
        o_ref[...] = before + x_ref[...] @ y_ref[...]
    return product(kernel)


@good
def sum_with_two_branches():
    def kernel(x_ref, y_ref, o_ref):
        part = x_ref[...] @ y_ref[...]

        def start():
            o_ref[...] = part

        def go_on():
            o_ref[...] += part
        lax.cond(pl.program_id(2) == 0, start, go_on)
    return product(kernel)


@good
def store_at_one_step_of_many():
    def kernel(x_ref, y_ref, o_ref):
        @pl.when(pl.program_id(2) // 2 == 1)  # the third and fourth of four: idempotent
        def _():
            o_ref[...] = jnp.full_like(o_ref, pl.program_id(0))
    return product(kernel)


@good
def no_grid_and_no_specs():
    return pl.pallas_call(copy, out_shape=f32(8, 32)), (f32(8, 32),)


@good
def ragged_edge():
    spec = (8, 16), lambda i, j: (i, j)
    return call(copy, (3, 3), [spec], spec, (20, 33)), (f32(20, 33),)


@good
def block_larger_than_its_array():
    spec = (8, 128), lambda i: (i, 0)
    return call(copy, (1,), [spec], spec, (5, 100)), (f32(5, 100),)


@good
def squeezed_batch_and_head():
    spec = (None, 16, None, 8), lambda b, h, i: (b, i, h, 0)
    return call(copy, (2, 3, 4), [spec], spec, (2, 64, 3, 8)), (f32(2, 64, 3, 8),)


@good
def transpose():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...].T
    there, back = ((8, 16), lambda i, j: (i, j)), ((16, 8), lambda i, j: (j, i))
    return call(kernel, (4, 2), [there], back, (32, 32)), (f32(32, 32),)


@good
def one_row_at_a_time_into_a_whole_output():
    def kernel(x_ref, o_ref):
        o_ref[pl.ds(pl.program_id(0), 1), :] = x_ref[...]
    whole = (8, 32), lambda i: (0, 0)
    return call(kernel, (8,), [((1, 32), lambda i: (i, 0))], whole, (8, 32)), (f32(8, 32),)


@good
def the_same_statistics_at_every_step():
    def kernel(x_ref, o_ref, norm_ref):  # norm_ref depends on the row only: each column block stores the same
        o_ref[...] = x_ref[:, :16]
        norm_ref[...] = x_ref[...] @ jnp.ones((32, 1))
    outs = [((8, 16), lambda i, j: (i, j)), ((8, 1), lambda i, j: (i, 0))]
    shapes = [f32(64, 32), f32(64, 1)]
    return call(kernel, (8, 2), [((8, 32), lambda i, j: (i, 0))], outs, out_shape=shapes), (f32(64, 32),)


@good
def halo_with_padding():
    def kernel(x_ref, o_ref):
        row = 8 * pl.program_id(0) - 1 + lax.broadcasted_iota(jnp.int32, (10, 32), 0)
        x = jnp.where((row >= 0) & (row < 64), x_ref[...], 0.0)
        o_ref[...] = x[:-2] + x[1:-1] + x[2:]
    window = (pl.Element(10, (1, 1)), pl.Element(32)), lambda i: (8 * i, 0)
    return call(kernel, (8,), [window], ROWS), (f32(64, 32),)


@good
def last_window_shifted_back():
    window = (pl.Element(8), pl.Element(32)), lambda i: (jnp.minimum(8 * i, 12), 0)
    return call(copy, (3,), [window], window, (20, 32)), (f32(20, 32),)


@good
def bounded_slices():
    spec = (pl.BoundedSlice(16), 32), lambda i: (pl.ds(16 * i, 16), 0)
    return call(copy, (4,), [spec], spec), (f32(64, 32),)


@good
def pages_by_a_table():
    def kernel(table_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,), in_specs=[pl.BlockSpec((8, 32), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((8, 32), lambda i, table: (i, 0)))
    f = pl.pallas_call(kernel, grid_spec=spec, out_shape=f32(32, 32))
    return lambda table, x: f(table % 8, x), (np.array([9, 3, 3, 7], np.int32), f32(64, 32))


@good
def copies_by_hand():
    def kernel(x_hbm, o_hbm, buffer, sem):
        rows = pl.ds(8 * pl.program_id(0), 8)
        pltpu.async_copy(x_hbm.at[rows], buffer, sem).wait()
        pltpu.async_copy(buffer, o_hbm.at[rows], sem).wait()
    there = pl.BlockSpec(memory_space=pl.ANY)
    return call(kernel, (8,), [there], there,
                scratch_shapes=[pltpu.VMEM((8, 32), jnp.float32), pltpu.SemaphoreType.DMA]), (f32(64, 32),)


@good
def in_place_on_some_blocks():
    spec = (8, 32), lambda i: (3 * i, 0)
    return call(copy, (2,), [spec], spec, input_output_aliases={0: 0}), (f32(64, 32),)


@good
def a_block_returned_to_on_purpose():
    def kernel(x_ref, o_ref):
        @first(0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...]
    out = pl.BlockSpec((8, 32), lambda k, i: (i, 0), pipeline_mode=pl.Buffered(1, revisit=pl.RevisitMode.ANY))
    return call(kernel, (4, 2), [((8, 32), lambda k, i: (2 * k + i, 0))], out, (16, 32)), (f32(64, 32),)


@good
def every_axis_parallel():
    semantics = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))
    spec = (16, 16), lambda i, j: (i, j)
    return call(copy, (4, 2), [spec], spec, compiler_params=semantics), (f32(64, 32),)


@good
def vmapped_twice():
    f, (x, y) = matmul_with_scratch()
    return jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (f32(2, *x.shape), f32(3, *y.shape))


@good
def running_total_over_all_steps():
    def kernel(x_ref, o_ref, total_ref):
        @first(0)
        def _():
            total_ref[0] = 0.0
        o_ref[...] = x_ref[...] + total_ref[0]
        total_ref[0] += 1.0
    return call(kernel, (8,), [ROWS], ROWS, scratch_shapes=[pltpu.SMEM((1,), jnp.float32)]), (f32(64, 32),)


@good
def online_softmax():
    def kernel(x_ref, o_ref, top_ref, sum_ref):
        @first(1)
        def _():
            top_ref[...] = jnp.full_like(top_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)
        top = jnp.maximum(top_ref[...], x_ref[...].max(1, keepdims=True))
        more = jnp.exp(x_ref[...] - top).sum(1, keepdims=True)
        sum_ref[...] = sum_ref[...] * jnp.exp(top_ref[...] - top) + more
        top_ref[...] = top

        @last(1)
        def _():
            o_ref[...] = top_ref[...] + jnp.log(sum_ref[...])
    return call(kernel, (8, 4), [((8, 8), lambda i, j: (i, j))], ((8, 1), lambda i, j: (i, 0)), (64, 1),
                scratch_shapes=[pltpu.VMEM((8, 1), jnp.float32)] * 2), (f32(64, 32),)


@good
def rows_in_a_loop():
    def kernel(x_ref, o_ref):
        def row(i, _):
            o_ref[pl.ds(i, 1), :] = 2.0 * x_ref[pl.ds(i, 1), :]
        lax.fori_loop(0, 8, row, None)
    return call(kernel, (8,), [ROWS], ROWS), (f32(64, 32),)


@good
def started_when_the_data_say_so():
    def kernel(start_ref, x_ref, o_ref):
        @pl.when(start_ref[pl.program_id(0)] == 1)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...]
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(8,), in_specs=[pl.BlockSpec((8, 32), lambda i, start: (i, 0))],
        out_specs=pl.BlockSpec((8, 32), lambda i, start: (i // 4, 0)))
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=f32(16, 32)), (i32(8), f32(64, 32))


@good
def in_a_scan_in_a_gradient():
    f, (x,) = squeezed_batch_and_head()

    @jax.custom_vjp
    def twice(x):
        return f(x)
    twice.defvjp(lambda x: (f(x), None), lambda _, g: (f(g),))
    loss = jax.jit(lambda x: lax.scan(lambda c, _: (twice(c), None), x, length=3)[0].sum())
    return jax.grad(loss), (x,)


@good
def nobody_takes_the_second_output():
    def kernel(x_ref, o_ref, work_ref):
        work_ref[...] = x_ref[...] * 2.0
        o_ref[...] = work_ref[...]
    f = call(kernel, (8,), [ROWS], [ROWS, ((8, 32), lambda i: (0, 0))], out_shape=[f32(64, 32), f32(8, 32)],
             compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)))
    return (lambda x: f(x)[0]), (f32(64, 32),)


# JAX's own -------------------------------------------------------------------------------------------------


def shipped(make):
    SHIPPED[make.__name__] = make
    return make


GROUPS = np.array([100, 200, 0, 212], np.int32)
HEADS = (f32(2, 2, 512, 128),) * 3
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


def loss(f, arguments=(0, 1, 2)):
    return jax.grad(lambda *args: f(*args).sum(), arguments)


@shipped
def tpu_matmul():
    from jax.experimental.pallas.ops.tpu.matmul import matmul
    return functools.partial(matmul, block_shape=(256, 256)), (f32(512, 512), f32(512, 1024))


@shipped
def tpu_example():
    from jax.experimental.pallas.ops.tpu.example_kernel import double
    return double, (f32(8, 128),)


@shipped
def tpu_flash_attention():
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
    sizes = BlockSizes(block_q=128, block_k_major=128, block_k=128, block_b=1)
    return functools.partial(flash_attention, causal=True, block_sizes=sizes), HEADS


@shipped
def tpu_flash_attention_gradient():
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention
    sizes = BlockSizes.get_default(2, 2, 512, 512, 128)
    return loss(functools.partial(flash_attention, block_sizes=sizes)), HEADS


@shipped
def tpu_grouped_matmul():
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm
    return gmm, (f32(512, 256), f32(4, 256, 256), GROUPS)


@shipped
def tpu_grouped_matmul_into_an_array():
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    def f(x, w, groups, old):
        return gmm(x, w, groups, group_offset=jnp.array(1, jnp.int32), existing_out=old)
    return f, (f32(512, 256), f32(2, 256, 256), GROUPS, f32(512, 256))


@shipped
def tpu_grouped_matmul_gradient():
    from jax.experimental.pallas.ops.tpu.megablox.ops import gmm
    return (jax.grad(lambda x, w, groups: gmm(x, w, groups, jnp.float32).sum(), (0, 1)),
            (f32(512, 256), f32(4, 256, 256), GROUPS))


def paged(**options):
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
    pages = np.arange(4 * 8, dtype=np.int32).reshape(4, 8)
    lengths = np.array([10, 64, 100, 30], np.int32)
    return (functools.partial(paged_attention, pages_per_compute_block=4, **options),
            (f32(4, 8, 128), f32(2, 64, 16, 128), f32(2, 64, 16, 128), lengths, pages))


@shipped
def tpu_paged_attention():
    return paged()


@shipped
def tpu_paged_attention_over_two_cores():
    return paged(megacore_mode="batch", inline_seq_dim=False)


@shipped
def tpu_ragged_paged_attention():
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
    queries, pages = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((32, 8, 128), (64, 16, 4, 128)))
    table = np.arange(16, dtype=np.int32).reshape(4, 4)
    lengths, starts = np.array([20, 30, 16, 16], np.int32), np.arange(0, 40, 8, dtype=np.int32)
    return (functools.partial(ragged_paged_attention, num_kv_pages_per_block=2, num_queries_per_block=8),
            (queries, pages, lengths, table, starts, np.array([4], np.int32)))


def splash(mask="causal", multi_query=False):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
    make = {"causal": lambda: masks.CausalMask((512, 512)),
            "local": lambda: masks.LocalMask((512, 512), (64, 64), 0)}[mask]
    names = "q kv kv_compute q_dkv kv_dkv kv_dkv_compute q_dq kv_dq".split()
    sizes = kernels.BlockSizes(**{f"block_{name}": 128 for name in names})
    heads = masks.MultiHeadMask([make(), make()])
    if multi_query:
        f = kernels.make_splash_mqa_single_device(heads, block_sizes=sizes)
        return f, (f32(2, 512, 128), f32(512, 128), f32(512, 128))
    return kernels.make_splash_mha_single_device(heads, block_sizes=sizes), (f32(2, 512, 128),) * 3


@shipped
def tpu_splash_attention():
    return splash()


@shipped
def tpu_splash_attention_multi_query():
    return splash(multi_query=True)


@shipped
def tpu_splash_attention_local_gradient():
    f, args = splash("local")
    return loss(f), args


@shipped
def tpu_philox():
    from jax.experimental.pallas.ops.tpu.random.philox import philox_random_bits
    return (lambda key: philox_random_bits(key, 32, (512, 512))), (KEY,)


@shipped
def tpu_threefry():
    from jax.experimental.pallas.ops.tpu.random.threefry import plthreefry_random_bits
    return (lambda key: plthreefry_random_bits(key, 32, (512, 512))), (KEY,)


@shipped
def gpu_softmax():
    from jax.experimental.pallas.ops.gpu.softmax import softmax
    return softmax, (f32(8, 128),)


@shipped
def gpu_layer_norm_gradient():
    from jax.experimental.pallas.ops.gpu.layer_norm import layer_norm
    return loss(layer_norm), (f32(2, 64, 128), f32(128), f32(128))


@shipped
def gpu_rms_norm_gradient():
    from jax.experimental.pallas.ops.gpu.rms_norm import rms_norm
    return loss(rms_norm), (f32(2, 64, 128), f32(128), f32(128))


@shipped
def gpu_attention_gradient():
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha
    sizes = BlockSizes(*(64,) * 6)
    return (loss(functools.partial(mha, segment_ids=None, block_sizes=sizes, backward_pass_impl="triton")),
            (f32(2, 256, 2, 64),) * 3)


@shipped
def gpu_decode_attention():
    from jax.experimental.pallas.ops.gpu.decode_attention import gqa
    return gqa, (f32(2, 8, 64), f32(2, 256, 2, 64), f32(2, 256, 2, 64))


@shipped
def gpu_paged_attention():
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention
    return (functools.partial(paged_attention, k_splits=4),
            (f32(2, 8, 64), f32(2, 32, 16, 64), f32(2, 32, 16, 64), i32(2, 8), i32(2)))
