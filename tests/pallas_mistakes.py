"""Kernels with one mistake each, and what the check must say about it.

`MISTAKES` maps a name to a function that returns (f, args, expected), where `expected` is the set of
(finding, operand) that the check must report, and it must report nothing else.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_good import FACTORS, LEFT, PRODUCT, ROWS, SCRATCH, call, copy, f32, first, last, product

MISTAKES = {}
X = (f32(64, 32),)


def mistake(*expected):
    def keep(make):
        MISTAKES[make.__name__] = lambda: (*make(), set(expected))
        return make
    return keep


# Index maps ------------------------------------------------------------------------------------------------


@mistake(("element offsets", "x_ref"), ("element offsets", "o_ref"))
def offsets_of_rows():  # jax issue 31395
    spec = (8, 32), lambda i: (i * 8, 0)
    return call(copy, (8,), [spec], spec), X


@mistake(("element offsets", "x_ref"), ("element offsets", "o_ref"))
def offsets_on_the_last_axis():  # jax issue 38497
    spec = (8, 128), lambda j: (0, j * 128)
    return call(copy, (3,), [spec], spec, (8, 384)), (f32(8, 384),)


@mistake(("element offsets", "y_ref"))
def offsets_in_one_operand_of_a_matmul():
    f = call(matmul_kernel, (4, 3, 4), [LEFT, ((8, 16), lambda i, j, k: (k * 8, j))], PRODUCT, (64, 48),
             scratch_shapes=[SCRATCH])
    return f, FACTORS


@mistake(("element offsets", "k_ref"))
def offsets_beside_squeezed_axes():
    def kernel(q_ref, k_ref, o_ref):
        o_ref[...] = q_ref[...] + k_ref[...]
    right, wrong = (((None, 16, None, 8), lambda b, h, i, s=s: (b, s * i, h, 0)) for s in (1, 16))
    return call(kernel, (2, 3, 4), [right, wrong], right, (2, 64, 3, 8)), (f32(2, 64, 3, 8),) * 2


@mistake(("element offsets", "o_ref"))
def offsets_in_the_output_under_vmap():
    f = jax.vmap(call(copy, (8,), [ROWS], ((8, 32), lambda i: (pl.multiple_of(i * 8, 8), 0))))
    return f, (f32(2, 64, 32),)


@mistake(("out of range", "x_ref"))
def one_too_far():
    return call(copy, (8,), [((8, 32), lambda i: (i + 1, 0))], ROWS), X


@mistake(("out of range", "o_ref"), ("never written", "o_ref"))
def output_one_too_far():
    return call(copy, (8,), [ROWS], ((8, 32), lambda i: (i + 1, 0))), X


@mistake(("out of range", "x_ref"))
def one_before_the_first():
    return call(copy, (8,), [((8, 32), lambda i: (i - 1, 0))], ROWS), X


@mistake(("out of range", "y_ref"))
def transposed_operand():
    f = call(matmul_kernel, (4, 3, 4), [LEFT, ((8, 16), lambda i, j, k: (j, k))], PRODUCT, (64, 48),
             scratch_shapes=[SCRATCH])
    return f, FACTORS


@mistake(("out of range", "x_ref"))
def one_where_the_only_block_is_zero():  # jax issue 23181
    right, wrong = (((1, 8, 1, 32), lambda i, n=n: (n, i, n, 0)) for n in (0, 1))
    return call(copy, (8,), [wrong], right, (1, 64, 1, 32)), (f32(1, 64, 1, 32),)


@mistake(("out of range", "x_ref"))
def squeezed_axis_counts_too_far():
    return call(copy, (3, 8), [((None, 8, 32), lambda b, i: (b + 1, i, 0))],
                ((None, 8, 32), lambda b, i: (b, i, 0)), (3, 64, 32)), (f32(3, 64, 32),)


@mistake(("out of range", "x_ref"))
def window_beyond_the_end():
    window = (pl.Element(8), pl.Element(32)), lambda i: (8 * (i + 1), 0)
    return call(copy, (8,), [window], ROWS), X


@mistake(("out of range", "x_ref"))
def slice_beyond_the_end():
    spec = (pl.BoundedSlice(16), 32), lambda i: (pl.ds(16 * i + 16, 16), 0)
    return call(copy, (4,), [spec], ((16, 32), lambda i: (i, 0))), X


@mistake(("out of range", "x_ref"))
def table_with_a_page_that_is_not_there():
    def kernel(table_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,),
        in_specs=[pl.BlockSpec((8, 32), lambda i, table: (table[i] - 1, 0))],
        out_specs=pl.BlockSpec((8, 32), lambda i, table: (i, 0)))
    f = jax.jit(pl.pallas_call(kernel, grid_spec=spec, out_shape=f32(32, 32)))
    return (lambda table, x: f(table + 1, x)), (np.array([0, 7, 8, 2], np.int32), *X)


@mistake(("out of range", "x_ref"), ("out of range", "o_ref"))
def grid_sized_by_data_too_large():
    def f(n, x):
        return call(copy, (n,), [ROWS], ROWS)(x)
    return f, (np.int32(9) + np.zeros((), np.int32), *X)


# Grids -----------------------------------------------------------------------------------------------------


@mistake(("out of range", "x_ref"), ("out of range", "o_ref"))
def one_step_too_many():
    return call(copy, (64 // 8 + 1,), [ROWS], ROWS), X


@mistake(("never written", "o_ref"))
def ragged_edge_forgotten():
    spec = (8, 32), lambda i: (i, 0)
    return call(copy, (20 // 8,), [spec], spec, (20, 32)), (f32(20, 32),)


@mistake(("never written", "o_ref"))
def grid_without_a_step():
    return call(copy, (8 // 64,), [ROWS], ROWS), X


@mistake(("out of range", "x_ref"), ("out of range", "o_ref"), ("never written", "o_ref"))
def axes_of_the_grid_swapped():
    spec = (8, 16), lambda i, j: (i, j)
    return call(copy, (32 // 16, 64 // 8), [spec], spec), X


@mistake(("out of range", "x_ref"), ("out of range", "o_ref"))
def in_a_scan_in_a_jitted_function():
    spec = (8, 16), lambda i, j: (i, j)
    f = jax.jit(call(copy, (9, 2), [spec], spec))
    return (lambda x: lax.scan(lambda c, _: (f(c), None), x, length=3)[0]), X


@mistake(("never written", "o_ref"))
def in_the_backward_pass():
    good, short = call(copy, (8,), [ROWS], ROWS), call(copy, (4,), [ROWS], ROWS)

    @jax.custom_vjp
    def same(x):
        return good(x)
    same.defvjp(lambda x: (good(x), None), lambda _, g: (short(g),))
    return jax.grad(lambda x: same(x).sum()), X


@mistake(("never written", "o_ref"), ("written twice", "o_ref"))
def an_axis_forgotten_in_the_output():
    return call(copy, (8, 2), [((8, 16), lambda i, j: (i, j))], ((8, 16), lambda i, j: (i, 0))), X


# Stores ----------------------------------------------------------------------------------------------------


def matmul_kernel(x_ref, y_ref, o_ref, acc_ref):
    @first(2)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)
    acc_ref[...] += x_ref[...] @ y_ref[...]

    @last(2)
    def _():
        o_ref[...] = acc_ref[...]


@mistake(("written twice", "o_ref"))
def product_not_accumulated():
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] @ y_ref[...]
    return product(kernel)


@mistake(("written twice", "o_ref"))
def zeros_at_every_step():
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...] @ y_ref[...]
    return product(kernel)


@mistake(("written twice", "o_ref"))
def zeros_at_every_other_step():
    def kernel(x_ref, y_ref, o_ref):
        @pl.when(pl.program_id(2) % 2 == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...] @ y_ref[...]
    return product(kernel)


@mistake(("written twice", "o_ref"))
def sum_over_the_first_axis():  # the example in "Software Pipelining"
    def kernel(x_ref, o_ref):
        @first(0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...]
    f = call(kernel, (4, 8), [((None, 8, 32), lambda k, i: (k, i, 0))], ((8, 32), lambda k, i: (i, 0)))
    return f, (f32(4, 64, 32),)


@mistake(("race", "o_ref"))
def sum_over_a_parallel_axis():
    def kernel(x_ref, y_ref, o_ref):
        @first(2)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...] @ y_ref[...]
    return product(kernel, compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",) * 3))


@mistake(("read before written", "o_ref"))
def output_never_zeroed():
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] += x_ref[...] @ y_ref[...]
    return product(kernel)


@mistake(("read before written", "o_ref"), ("written twice", "o_ref"))
def output_zeroed_on_the_wrong_axis():
    def kernel(x_ref, y_ref, o_ref):
        @first(1)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] = o_ref[...] + x_ref[...] @ y_ref[...]
    return product(kernel)


@mistake(("read before written", "acc_ref"))
def scratch_never_zeroed():
    def kernel(x_ref, y_ref, o_ref, acc_ref):
        acc_ref[...] += x_ref[...] @ y_ref[...]

        @last(2)
        def _():
            o_ref[...] = acc_ref[...]
    return product(kernel, scratch_shapes=[SCRATCH])


@mistake(("read before written", "acc_ref"))
def scratch_zeroed_too_late():
    def kernel(x_ref, y_ref, o_ref, acc_ref):
        acc_ref[...] += x_ref[...] @ y_ref[...]

        @last(2)
        def _():
            o_ref[...] = acc_ref[...]
            acc_ref[...] = jnp.zeros_like(acc_ref)
    return product(kernel, scratch_shapes=[SCRATCH])


@mistake(("never written", "o_ref"))
def stored_after_the_last_step():
    def kernel(x_ref, y_ref, o_ref, acc_ref):
        @first(2)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)
        acc_ref[...] += x_ref[...] @ y_ref[...]

        @pl.when(pl.program_id(2) == pl.num_programs(2))
        def _():
            o_ref[...] = acc_ref[...]
    return product(kernel, scratch_shapes=[SCRATCH])


@mistake(("never written", "o_ref"))
def stored_in_the_first_row_of_blocks_only():
    def kernel(x_ref, o_ref):
        @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) >= 0))
        def _():
            o_ref[...] = x_ref[...]
    spec = (8, 16), lambda i, j: (i, j)
    return call(kernel, (8, 2), [spec], spec), X


@mistake(("never written", "max_ref"))
def second_output_forgotten():
    def kernel(x_ref, o_ref, max_ref):
        o_ref[...] = x_ref[...]
    outs, shapes = [ROWS, ((8, 1), lambda i: (i, 0))], [f32(64, 32), f32(64, 1)]
    return call(kernel, (8,), [ROWS], outs, out_shape=shapes), X


@mistake(("never written", "o_ref"))
def stored_to_the_input():
    def kernel(x_ref, o_ref):
        x_ref[...] = x_ref[...] + o_ref[...]
    return call(kernel, (8,), [ROWS], ROWS), X
