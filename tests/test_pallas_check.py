"""The check of Pallas kernels: every seeded mistake is found, no good kernel is reported, JAX agrees."""

import logging
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_good import FACTORS, OWN, PRODUCT, RIGHT, ROWS, SCRATCH, SHIPPED, call, copy, f32, product
from pallas_mistakes import MISTAKES

from oplab import pallas


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_and_nothing_else(name):
    f, args, expected = MISTAKES[name]()
    found = pallas.check(f, *args)
    assert set(zip(found.finding, found.operand)) == expected, found.to_string()
    for detail in found.detail:
        assert len(detail.split()) > 10 and detail.endswith((".", "= ...")) and "\n" not in detail


@pytest.mark.parametrize("name", OWN)
def test_a_good_kernel_is_not_reported(name):
    f, args = OWN[name]()
    found = pallas.check(f, *args)
    assert found.empty, found.to_string()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_kernel_of_jax_s_own_is_not_reported(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are deprecated
        try:
            f, args = SHIPPED[name]()
        except ImportError as error:
            pytest.skip(f"this JAX has it no longer: {error}")
        found = pallas.check(f, *args)
    assert found.empty, found.to_string()


def test_there_are_enough_of_both():
    assert len(MISTAKES) >= 20 and len(OWN) >= 20 and len(SHIPPED) >= 20
    kinds = {finding for make in MISTAKES.values() for finding, _ in make()[2]}
    assert kinds == {"out of range", "element offsets", "never written", "written twice", "race",
                     "read before written"}  # fmt: skip


# JAX's own interpreter of TPU kernels fills fresh memory with NaN and refuses blocks that are out of range or
# returned to: what it says when it runs a kernel is held against what the check said without running it.

NOT_INTERPRETED = {
    "bounded_slices", "slice_beyond_the_end",  # it does not know pl.BoundedSlice
    "halo_with_padding",  # it forgets the padding before an array, which interpret=True does not
    "a_block_returned_to_on_purpose", "vmapped_twice"}  # nor RevisitMode.ANY, nor vmap beside semantics
SILENT = {  # mistakes whose wrong numbers look like any others
    "product_not_accumulated", "zeros_at_every_step", "zeros_at_every_other_step", "sum_over_a_parallel_axis",
    "output_zeroed_on_the_wrong_axis", "stored_in_the_first_row_of_blocks_only"}  # fmt: skip


def interpreted(make):
    """What JAX's interpreter says of a kernel: an error's last line, "nan", or ""."""
    pltpu.reset_tpu_interpret_mode_state()
    logging.disable(logging.CRITICAL)
    try:
        with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams()):
            f, args = make()[:2]
            results = jax.tree.leaves(f(*map(concrete, args)))
        return "nan" if any(np.isnan(result).any() for result in results) else ""
    except jax.errors.JaxRuntimeError as error:
        return re.findall(r"^\w+Error: (.*)", str(error), re.M)[-1]
    finally:
        logging.disable(logging.NOTSET)
        pltpu.reset_tpu_interpret_mode_state()


def concrete(value):
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    return np.arange(np.prod(value.shape)).reshape(value.shape).astype(value.dtype) % 2


@pytest.mark.parametrize("name", sorted(set(MISTAKES) - NOT_INTERPRETED - SILENT))
def test_the_interpreter_trips_over_a_mistake(name):
    f, args, _ = MISTAKES[name]()
    said, found = interpreted(MISTAKES[name]), pallas.check(f, *args)
    first = found.iloc[0]
    if first.finding in ("out of range", "element offsets"):
        where = r'index (\(.*?\)) for \w+ "(\w+)" in iteration (\(.*?\))'
        index, operand, place = re.search(where, said).groups()
        outside = found[(found.finding == first.finding) & (found.operand == operand)].iloc[0]
        steps = pallas.steps(f, *args, kernel=outside.kernel)
        row = steps[(steps.operand == operand) & (steps.step == outside.step)].iloc[0]
        assert (str(row.block), str(row.program)) == (index, place)
    elif first.finding == "written twice" and name != "an_axis_forgotten_in_the_output":
        assert "Revisited block" in said
    else:
        assert said == "nan"


@pytest.mark.parametrize("name", sorted(set(OWN) - NOT_INTERPRETED))
def test_the_interpreter_runs_a_good_kernel(name):
    assert interpreted(OWN[name]) == ""


# Finer points ----------------------------------------------------------------------------------------------


def findings(f, *args):
    found = pallas.check(f, *args)
    return list(zip(found.finding, found.operand))


def test_offsets_are_told_apart_from_other_ways_to_miss():
    def blocks(index_map, grid=8, size=8):
        f = call(copy, (grid,), [((size, 32), index_map)], ((size, 32), lambda i: (0, 0)))
        return [finding for finding, operand in findings(f, f32(64, 32)) if operand == "x_ref"]
    assert blocks(lambda i: (8 * i, 0)) == ["element offsets"]
    assert blocks(lambda i: (8 * (7 - i), 0)) == ["element offsets"]
    assert blocks(lambda i: (16 * i, 0)) == ["out of range"]  # not the block size
    assert blocks(lambda i: (8 * i + 1, 0)) == ["out of range"]
    assert blocks(lambda i: (8 * i, 0), grid=9) == ["out of range"]  # divided, it would still be
    assert blocks(lambda i: (i, 0), grid=64) == ["out of range"]
    assert blocks(lambda i: (8 * i, 0), grid=1) == []
    assert blocks(lambda i: (-8 * i, 0)) == ["out of range"]


def test_a_first_step_said_in_other_words():
    def guarded(first):
        def kernel(x_ref, y_ref, o_ref):
            @pl.when(first(pl.program_id(2)))
            def _():
                o_ref[...] = jnp.zeros_like(o_ref)
            o_ref[...] += x_ref[...] @ y_ref[...]
        return findings(*tuple_of(product(kernel)))
    assert guarded(lambda k: k < 1) == guarded(lambda k: k * 7 // 5 == 0) == guarded(lambda k: ~(k > 0)) == []
    both = [("written twice", "o_ref"), ("read before written", "o_ref")]
    assert guarded(lambda k: k == 1) == guarded(lambda k: pl.multiple_of(k, 1) == 1) == both
    assert guarded(lambda k: k <= 1) == [("written twice", "o_ref")]
    assert guarded(lambda k: k == pl.num_programs(2)) == [("read before written", "o_ref")]


def tuple_of(made):
    f, args = made
    return f, *args


def test_a_condition_on_data_is_not_guessed_at():
    def zeros(x_ref, y_ref, o_ref):
        @pl.when(x_ref[0, 0] > 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[...] += x_ref[...] @ y_ref[...]

    def sums(x_ref, y_ref, o_ref):
        @pl.when(x_ref[0, 0] > 0)
        def _():
            o_ref[...] += x_ref[...] @ y_ref[...]
    assert findings(*tuple_of(product(zeros))) == findings(*tuple_of(product(sums))) == []


def test_a_loop_that_may_not_run_is_not_counted_on():
    def kernel(trips):
        def body(x_ref, y_ref, o_ref):
            def zero(i, _):
                o_ref[...] = jnp.zeros_like(o_ref)
            jax.lax.fori_loop(0, trips(), zero, None)
            o_ref[...] += x_ref[...] @ y_ref[...]
        return findings(*tuple_of(product(body)))
    assert kernel(lambda: pl.program_id(2)) == []
    assert kernel(lambda: 3) == [("written twice", "o_ref")]
    assert kernel(lambda: 0) == [("read before written", "o_ref")]


def test_the_same_value_again_is_no_loss():
    def kernel(value):
        def body(x_ref, y_ref, o_ref):
            o_ref[...] = value(x_ref, y_ref)
        f = call(body, (4, 3, 4), [((16, 32), lambda i, j, k: (i, 0)), RIGHT], PRODUCT, (64, 48))
        return findings(f, *FACTORS)
    assert kernel(lambda x, y: x[:, :16]) == []
    assert kernel(lambda x, y: x[:, :16] * pl.program_id(1)) == []
    assert kernel(lambda x, y: jnp.full((16, 16), 1.5)) == []
    assert kernel(lambda x, y: x[:, :16] * pl.program_id(2)) == [("written twice", "o_ref")]
    assert kernel(lambda x, y: x[:, :8] @ y[...]) == [("written twice", "o_ref")]


def test_a_value_that_lives_on_elsewhere_is_not_lost():
    def kept_first(x_ref, y_ref, o_ref, kept_ref):
        kept_ref[...] = o_ref[...]
        o_ref[...] = x_ref[...] @ y_ref[...]

    def kept_on_the_way(x_ref, y_ref, o_ref, kept_ref):
        @pl.when(pl.program_id(2) % 2 == 0)
        def _():
            o_ref[...] = jnp.zeros_like(o_ref)
        before = o_ref[...]
        kept_ref[...] = before
        o_ref[...] = before + x_ref[...] @ y_ref[...]

    def in_scratch_all_along(x_ref, y_ref, o_ref, sum_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)
        sum_ref[...] += x_ref[...] @ y_ref[...]
        o_ref[...] = sum_ref[...] + x_ref[0, 0]

    def counted_to(x_ref, y_ref, o_ref, _):
        count = jax.lax.while_loop(lambda i: i < o_ref[0, 0], lambda i: i + 1.0, 0.0)
        o_ref[...] = x_ref[...] @ y_ref[...] + count
    for kernel in (kept_first, kept_on_the_way, in_scratch_all_along, counted_to):
        assert findings(*tuple_of(product(kernel, scratch_shapes=[SCRATCH]))) == []


def test_part_of_a_block_is_not_the_whole():
    def stored(where):
        def kernel(x_ref, y_ref, o_ref):
            o_ref[where()] = (x_ref[...] @ y_ref[...])[where()]
        return findings(*tuple_of(product(kernel)))
    assert stored(lambda: slice(0, 8)) == []
    assert stored(lambda: (slice(0, 16), slice(None))) == [("written twice", "o_ref")]


def test_long_sums_are_followed_in_good_time():
    def kernel(x_ref, o_ref):
        x = x_ref[...]
        for _ in range(60):  # 2 ** 60 ways through
            x = x + x
        o_ref[...] = x + o_ref[...]
    assert findings(call(kernel, (8,), [ROWS], ROWS), f32(64, 32)) == [("read before written", "o_ref")]


def test_gaps_that_data_decide_may_be_meant():
    def kernel(table_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]
    spec = pl.BlockSpec((8, 32), lambda i, table: (table[i], 0))
    grid = pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=1, grid=(3,), in_specs=[spec], out_specs=spec)
    f = pl.pallas_call(kernel, grid_spec=grid, out_shape=f32(64, 32))
    assert findings(f, np.array([1, 3, 7], np.int32), f32(64, 32)) == []
    assert findings(f, np.array([1, 3, 1], np.int32), f32(64, 32)) == [("written twice", "o_ref")]

    def sized(n, x):
        return call(copy, (n,), [ROWS], ROWS)(x)
    assert findings(sized, np.zeros((), np.int32) + 5, f32(64, 32)) == []


def test_an_axis_of_one_step_is_never_a_race():
    semantics = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))
    spec = (8, 32), lambda i, j: (i, 0)
    assert findings(call(copy, (8, 1), [spec], spec, compiler_params=semantics), f32(64, 32)) == []


def test_what_the_kernel_copies_itself_is_its_own_affair():
    there = pl.BlockSpec(memory_space=pl.ANY)

    def kernel(x_hbm, o_hbm, sem):
        rows = pl.ds(8 * pl.program_id(0), 8)
        pltpu.async_copy(x_hbm.at[rows], o_hbm.at[rows], sem).wait()
    f = call(kernel, (8,), [there], there, scratch_shapes=[pltpu.SemaphoreType.DMA],
             compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)))
    assert findings(f, f32(64, 32)) == []


def test_a_race_under_vmap_is_on_the_kernel_s_own_axis():
    f, args, _ = MISTAKES["sum_over_a_parallel_axis"]()
    found = pallas.check(jax.vmap(f, (0, None)), f32(2, *args[0].shape), args[1])
    assert list(found.finding) == ["race"] and "axis 3" in found.detail[0]


def test_all_kernels_or_one():
    good, bad = call(copy, (8,), [ROWS], ROWS), call(copy, (4,), [ROWS], ROWS)
    f, x = (lambda x: bad(good(bad(x)))), f32(64, 32)
    assert list(pallas.check(f, x).kernel) == ["k0", "k2"]
    assert pallas.check(f, x, kernel="k1").empty and len(pallas.check(f, x, kernel="k2")) == 1


def test_too_many_steps_are_not_checked():
    f = call(copy, (9,), [ROWS], ROWS)
    (row,) = pallas.check(f, f32(64, 32), limit=8).to_dict("records")
    assert row["finding"] == "not checked" and "limit=8" in row["detail"]


def test_an_empty_table_has_its_columns():
    f, args = OWN["ragged_edge"]()
    found = pallas.check(f, *args)
    assert list(found) == ["kernel", "finding", "operand", "step", "detail"]
    assert "detail" in found._repr_html_()


def test_findings_are_shown_whole_and_their_absence_is_said():
    shifted = pl.BlockSpec((8, 128), lambda i: (i * 8, 0))

    def kernel(x_ref, y_ref):
        y_ref[...] = x_ref[...]

    def f(x):
        right = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(kernel, grid=(4,), in_specs=[shifted], out_specs=right, out_shape=x)(x)

    found = pallas.check(f, jax.ShapeDtypeStruct((32, 128), jnp.float32))
    advice = found["detail"].iloc[0]
    assert advice.endswith("i in place of i * 8.") and advice in repr(found) and advice in found._repr_html_()
    assert found[["finding"]]._repr_html_().count("element offsets") == 1
    assert repr(found[:0]) == "No findings." and "No findings." in found[:0]._repr_html_()
