"""The walk over a Pallas kernel's grid: blocks and bytes, held against plain loops and the interpreter."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_good import OWN, ROWS, call, copy, f32, i32, matmul_with_scratch

from oplab import pallas
from oplab.cost import equations


def fill(x_ref, o_ref):
    o_ref[...] = jnp.zeros(o_ref.shape, o_ref.dtype)


class Cut:
    """How one array is cut: its shape and dtype, a block shape and an index map in plain integers."""

    def __init__(self, shape, block, index_map, dtype="float32"):
        self.shape, self.block, self.index_map, self.dtype = shape, block, index_map, jnp.dtype(dtype)

    @property
    def struct(self):
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def spec(self):
        return pl.BlockSpec(self.block, self.index_map)

    def elements(self, index):
        """For each axis of the array, every element of the block, those beyond the edge too."""
        for position, size in zip(index, self.block):
            if isinstance(size, pl.Element):
                yield range(position - size.padding[0], position - size.padding[0] + size.block_size)
            else:
                yield range(position * (size or 1), (position + 1) * (size or 1))

    def inside(self, index):
        """How many elements of the block the array has, counted one by one on each axis."""
        axes = zip(self.elements(index), self.shape)
        return math.prod(sum(0 <= element < size for element in elements) for elements, size in axes)

    def size(self, index):
        return math.prod(len(elements) for elements in self.elements(index))


def plain(grid, cut, out):
    """What a plain loop over the grid says: (block, bytes moved, bytes re-used, padding) at each step."""
    blocks = [tuple(int(i) for i in cut.index_map(*place)) for place in np.ndindex(*grid)]
    bits = jax.dtypes.itemsize_bits(cut.dtype)
    for step, block in enumerate(blocks):
        neighbour = step + 1 if out else step - 1
        same = 0 <= neighbour < len(blocks) and blocks[neighbour] == block
        size = math.ceil(cut.inside(block) * bits / 8)
        yield block, (0 if same else size), (size if same else 0), cut.size(block) - cut.inside(block)


def compare(grid, x, o):
    """`steps` and `traffic` of a kernel with one input and one output, against plain loops."""
    f = pl.pallas_call(fill, grid=grid, in_specs=[x.spec], out_specs=o.spec, out_shape=o.struct)
    steps, totals = pallas.steps(f, x.struct), pallas.traffic(f, x.struct).set_index("operand")
    assert list(steps.program) == [place for place in np.ndindex(*grid) for _ in range(2)]
    assert list(steps.operand) == ["x_ref", "o_ref"] * math.prod(grid)
    for name, cut in (("x_ref", x), ("o_ref", o)):
        rows, expected = steps[steps.operand == name], list(plain(grid, cut, name == "o_ref"))
        columns = ["block", "moved_bytes", "reused_bytes", "padding"]
        assert list(rows[columns].itertuples(index=False, name=None)) == expected
        assert list(totals.loc[name, ["moved_bytes", "reused_bytes", "moves", "blocks"]]) == [
            sum(moved for _, moved, _, _ in expected), sum(reused for _, _, reused, _ in expected),
            moves(expected, name == "o_ref"), len({block for block, *_ in expected})]


def moves(expected, out):
    """How often the block changes on the walk, the beginning (of an output: the end) included."""
    blocks = [block for block, *_ in expected]
    return sum(a != b for a, b in zip(blocks, blocks[1:])) + bool(blocks)


SETTINGS = {
    "rows": ((8,), Cut((64, 32), (8, 32), lambda i: (i, 0)), Cut((64, 32), (8, 32), lambda i: (i, 0))),
    "left factor, output kept": (
        (4, 3, 2), Cut((64, 16), (16, 8), lambda i, j, k: (i, k)),
        Cut((64, 48), (16, 16), lambda i, j, k: (i, j))),
    "right factor, reduction first": (
        (2, 4, 3), Cut((16, 48), (8, 16), lambda k, i, j: (k, j), "bfloat16"),
        Cut((64, 48), (16, 16), lambda k, i, j: (i, j), "bfloat16")),
    "left factor kept over columns": (
        (4, 3), Cut((64, 16), (16, 16), lambda i, j: (i, 0)), Cut((64, 48), (16, 16), lambda i, j: (i, j))),
    "ragged on both axes": (
        (3, 3), Cut((20, 33), (8, 16), lambda i, j: (i, j)), Cut((20, 33), (8, 16), lambda i, j: (i, j))),
    "squeezed batch and head": (
        (2, 3, 4), Cut((2, 64, 3, 8), (None, 16, None, 8), lambda b, h, i: (b, i, h, 0)),
        Cut((2, 3, 64), (None, None, 16), lambda b, h, i: (b, h, i))),
    "one row for all": (
        (8,), Cut((1, 32), (1, 32), lambda i: (0, 0)), Cut((64, 32), (8, 32), lambda i: (i, 0), "int8")),
    "transposed": (
        (4, 2), Cut((32, 32), (8, 16), lambda i, j: (i, j)), Cut((32, 32), (16, 8), lambda i, j: (j, i))),
    "there and back": (
        (3, 4), Cut((64, 8), (16, 8), lambda i, j: (j + i % 2 * (3 - 2 * j), 0)),
        Cut((3, 64), (1, 16), lambda i, j: (i, j + i % 2 * (3 - 2 * j)))),
    "windows that overlap": (
        (8,), Cut((64, 32), (pl.Element(10, (1, 1)), pl.Element(32)), lambda i: (8 * i, 0)),
        Cut((64, 32), (8, 32), lambda i: (i, 0))),
    "half a byte each": (
        (5,), Cut((33,), (8,), lambda i: (i,), "int4"), Cut((33,), (8,), lambda i: (i,), "int4")),
    "no grid": ((), Cut((7, 5), (7, 5), lambda: (0, 0)), Cut((3,), (4,), lambda: (0,), "bool")),
    "every other block, backwards": (
        (2, 4), Cut((64, 16), (8, 16), lambda i, j: (7 - 2 * j, 0)),
        Cut((64, 16), (8, 16), lambda i, j: (7 - 2 * j - i, 0))),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_bytes_are_those_of_a_plain_loop(name):
    compare(*SETTINGS[name])


@st.composite
def cuts(draw, axes):
    """An array of one to three axes, cut by an index map that is linear in the place in the grid."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    block = tuple(draw(st.sampled_from([None, 1, 2, 3, 4, size])) for size in shape)
    rows = [[draw(st.sampled_from([0, 0, 1, 1, 2, -1])) for _ in range(axes + 1)] for _ in shape]

    def index_map(*place):
        return tuple(sum((a * i for a, i in zip(row, place)), row[-1]) for row in rows)
    return Cut(shape, block, index_map, draw(st.sampled_from(["float32", "bfloat16", "int8"])))


@st.composite
def walks(draw):
    grid = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    return grid, draw(cuts(len(grid))), draw(cuts(len(grid)))


@settings(max_examples=60, deadline=None)
@given(walks())
def test_any_linear_walk_is_that_of_a_plain_loop(walk):
    compare(*walk)


@settings(max_examples=60, deadline=None)
@given(walks())
def test_findings_about_blocks_are_those_of_a_plain_loop(walk):
    grid, x, o = walk
    f = pl.pallas_call(fill, grid=grid, in_specs=[x.spec], out_specs=o.spec, out_shape=o.struct)
    found = pallas.check(f, x.struct)
    for name, cut in (("x_ref", x), ("o_ref", o)):
        said = set(found[found.operand == name].finding)
        blocks = [block for block, *_ in plain(grid, cut, name == "o_ref")]
        outside = any(cut.inside(block) == 0 for block in blocks)
        assert outside == bool(said & {"out of range", "element offsets"})
        if name == "o_ref" and "element offsets" not in said:
            every = math.prod(-(-size // (block or 1)) for size, block in zip(cut.shape, cut.block))
            visited = {block for block in blocks if cut.inside(block)}
            assert (len(visited) < every) == ("never written" in said)
            runs = [block for i, block in enumerate(blocks) if i == 0 or block != blocks[i - 1]]
            assert (len(runs) > len(set(runs))) == ("written twice" in said)


INTERPRETED = [name for name, (grid, x, o) in SETTINGS.items() if grid and x.dtype == o.dtype == np.float32]


@pytest.mark.parametrize("name", INTERPRETED)
def test_the_interpreter_visits_the_blocks_that_steps_says(name):
    grid, x, o = SETTINGS[name]
    seen = {}

    def kernel(x_ref, o_ref):
        place = [pl.program_id(axis) for axis in range(len(grid))]
        jax.debug.callback(lambda block, *at: seen.update({tuple(map(int, at)): block}), x_ref[...], *place)
        step = sum(i * math.prod(grid[axis + 1:]) for axis, i in enumerate(place))
        o_ref[...] = jnp.full(o_ref.shape, step, o_ref.dtype)
    options = dict(grid=grid, in_specs=[x.spec], out_specs=o.spec, out_shape=o.struct)
    array = np.arange(math.prod(x.shape), dtype=np.float32).reshape(x.shape)
    result = np.asarray(pl.pallas_call(kernel, interpret=True, **options)(array))
    jax.effects_barrier()
    steps = pallas.steps(pl.pallas_call(kernel, **options), array)
    assert len(seen) == math.prod(grid)
    last = steps[steps.role == "out"].groupby("block").step.max()
    for row in steps.itertuples():
        piece = eval(f"array{row.slice}", {"array": array if row.role == "in" else result})
        if row.role == "out":
            assert (piece == last[row.block]).all()
        else:  # beyond the edge the interpreter has NaN
            block = np.asarray(seen[row.program])
            assert (block[~np.isnan(block)] == piece.ravel()).all() and np.isnan(block).sum() == row.padding


def test_nothing_runs():
    ran = []

    def kernel(x_ref, o_ref):
        jax.debug.callback(lambda: ran.append(True))
        o_ref[...] = x_ref[...]
    f, x = call(kernel, (8,), [ROWS], ROWS, interpret=True), jnp.ones((64, 32))
    for read in (pallas.kernels, pallas.steps, pallas.traffic, pallas.check):
        read(f, x), read(jax.jit(f), x)
    jax.effects_barrier()
    assert ran == []
    f(x), jax.effects_barrier()
    assert len(ran) == 8


# The tables ------------------------------------------------------------------------------------------------


def test_kernels_names_what_is_there():
    f, args = matmul_with_scratch()
    (row,) = pallas.kernels(f, *args).to_dict("records")
    assert (row["kernel"], row["name"], row["grid"], row["steps"]) == ("k0", "kernel", (4, 3, 4), 48)
    assert row["operands"] == "x_ref, y_ref -> o_ref (acc_ref)"
    assert row["semantics"] == ("parallel", "parallel", "arbitrary")
    assert (row["equation"], row["file"], row["note"]) == ("e0", "pallas_good.py", "")


def nested(x):
    f = call(copy, (8,), [ROWS], ROWS)
    x = jax.jit(f)(x) + 1.0
    x = lax.scan(lambda c, _: (f(c), None), x, length=2)[0]
    x = lax.cond(x[0, 0] > 0, lambda x: f(f(x)), lambda x: x, x)
    x = lax.while_loop(lambda x: x[0, 0] < 9, jax.checkpoint(f), x)
    return jax.vmap(f)(x[None])


def gradient():
    f, args = OWN["in_a_scan_in_a_gradient"]()
    return jax.jit(lambda *args: f(*args)[None]), args


@pytest.mark.parametrize("make", [lambda: (nested, (f32(64, 32),)), lambda: (jax.jit(nested), (f32(64, 32),)),
                                  gradient], ids=["plain", "jitted", "gradient"])
def test_equations_are_those_of_the_jaxpr_stage(make):
    f, args = make()
    jitted = f if isinstance(f, jax.stages.Wrapped) else jax.jit(f)
    counted = equations(jitted.trace(*args).jaxpr)
    expected = [e.id for e in counted if e.eqn.primitive.name == "pallas_call"]
    found = pallas.kernels(f, *args)
    assert list(found.equation) == expected and len(expected) >= 2
    assert list(found.kernel) == [f"k{i}" for i in range(len(expected))]


def test_the_line_is_the_one_that_asked_for_the_kernel():
    def f(x):
        return call(copy, (8,), [ROWS], ROWS)(x)
    (row,) = pallas.kernels(f, f32(64, 32)).to_dict("records")
    assert (row["file"], row["line"]) == ("test_pallas_steps.py", f.__code__.co_firstlineno + 1)


def test_a_notebook_cell_has_the_same_name_on_every_run():
    names = {"call": call, "copy": copy, "ROWS": ROWS}
    cell = "def f(x):\n  return call(copy, (8,), [ROWS], ROWS)(x)"
    exec(compile(cell, "/somewhere/ipykernel_7/123.py", "exec"), names)
    (row,) = pallas.kernels(names["f"], f32(64, 32)).to_dict("records")
    assert (row["file"], row["line"]) == ("<cell>", 2)


def test_a_function_without_a_kernel_has_an_empty_table():
    table = pallas.kernels(jnp.sin, 1.0)
    assert table.empty and "operands" in table


def test_arguments_that_are_no_arrays_stay_what_they_are():
    def f(x, size, *, copies, note):
        assert note == "as it is" and isinstance(copies, int)
        spec = (size, 32), lambda i: (i, 0)
        return call(copy, (64 // size,), [spec], spec)(x) * copies
    for g in (f, jax.jit(f, static_argnums=1, static_argnames=("copies", "note"))):
        assert pallas.kernels(g, f32(64, 32), 16, copies=2, note="as it is").grid[0] == (4,)


def test_operands_that_the_pipeline_does_not_copy():
    f, args = OWN["copies_by_hand"]()
    steps = pallas.steps(f, *args)
    assert set(steps.moved_bytes) == {0} and steps.note.str.contains("the kernel copies").all()
    totals = pallas.traffic(f, *args).set_index("operand")
    assert list(totals.role) == ["in", "out", "scratch", "scratch"]
    assert totals.moved_bytes.sum() == 0 and totals.loc["buffer", "array_bytes"] == 8 * 32 * 4


def test_an_alias_is_named():
    f, args = OWN["in_place_on_some_blocks"]()
    steps = pallas.steps(f, *args)
    assert set(steps[steps.role == "out"].note) == {"takes over the memory of x_ref"}


def test_blocks_in_smem_move_too():
    small = pl.BlockSpec((1, 4), lambda i: (i, 0), memory_space=pltpu.SMEM)
    f = call(copy, (2,), [small], small, (2, 4))
    totals = pallas.traffic(f, f32(2, 4))
    assert list(totals.memory) == ["smem", "smem"] and list(totals.moved_bytes) == [32, 32]


def test_bounded_slices_move_what_they_say():
    spec = pl.BlockSpec((pl.BoundedSlice(16), 32), lambda i: (pl.ds(10 * i, jnp.where(i == 0, 4, 16)), 0))
    f = call(copy, (6,), [spec], ((16, 32), lambda i: (0, 0)))
    rows = pallas.steps(f, f32(56, 32))
    rows = rows[rows.role == "in"]
    assert list(rows.slice)[:2] == ["[0:4, 0:32]", "[10:26, 0:32]"] and rows.slice.iloc[5] == "[50:56, 0:32]"
    assert list(rows.moved_bytes)[:2] == [4 * 32 * 4, 16 * 32 * 4] and rows.padding.iloc[5] == 10 * 32


# What data decide ------------------------------------------------------------------------------------------


def test_a_table_of_pages_is_followed_through_arithmetic():
    f, (table, x) = OWN["pages_by_a_table"]()
    for g in (f, jax.jit(f), jax.jit(jax.jit(f)), jax.checkpoint(f), lambda t, x: lax.cond(True, f, f, t, x)):
        steps = pallas.steps(g, table, x, kernel="k0")
        assert list(steps[steps.operand == "x_ref"].block) == [(1, 0), (3, 0), (3, 0), (7, 0)]
    closed = pallas.steps(lambda x: f(jnp.asarray(table), x), x)
    assert list(closed[closed.role == "in"].moved_bytes) == [1024, 1024, 0, 1024]


def test_a_table_of_which_only_the_shape_is_known():
    f, (table, x) = OWN["pages_by_a_table"]()
    steps = pallas.steps(f, i32(4), x)
    unknown = steps[steps.operand == "x_ref"]
    assert unknown.block.isna().all() and unknown.moved_bytes.isna().all()
    assert unknown.note.str.contains("reads table_ref, whose values are not known: give a concrete").all()
    assert list(steps[steps.operand == "o_ref"].moved_bytes) == [1024] * 4
    totals = pallas.traffic(f, i32(4), x).set_index("operand")
    assert totals.loc["x_ref", "moved_bytes"] is pd.NA and totals.loc["table_ref", "moved_bytes"] == 16
    (row,) = pallas.check(f, i32(4), x).to_dict("records")
    assert (row["finding"], row["operand"]) == ("not checked", "x_ref") and "table_ref" in row["detail"]


def test_what_changes_from_trip_to_trip_is_not_known():
    f, (table, x) = OWN["pages_by_a_table"]()

    def constant(table, x):
        return lax.scan(lambda c, _: (c + f(table, x).sum(), None), 0.0, length=3)[0]

    def sliced(table, x):
        return lax.scan(lambda c, t: (c + f(t, x).sum(), None), 0.0, jnp.stack([table, table]))[0]

    def carried(table, x):
        return lax.scan(lambda t, _: (t + 1, f(t, x)), table, length=3)[1]

    def counted(table, x):
        return lax.fori_loop(0, table[1], lambda i, c: c + f(table + i, x).sum(), 0.0)
    assert pallas.steps(constant, table, x).block.notna().all()
    for varying in (sliced, carried, counted):
        assert pallas.steps(varying, table, x).block.isna().any()


def test_what_comes_from_another_kernel_or_a_callback_is_not_known():
    f, (table, x) = OWN["pages_by_a_table"]()
    whole = pl.pallas_call(copy, out_shape=i32(4), interpret=True)
    ran = []

    def pure(t):
        return jax.pure_callback(lambda t: ran.append("pure") or np.asarray(t), i32(4), t)

    def printing(t):
        def more(t):
            jax.debug.callback(lambda: ran.append("debug"))
            return t + 1
        return lax.cond(t[0] > 0, more, lambda t: t, t)
    for between in (whole, pure, printing, lambda t: lax.map(pure, t[None])[0]):
        g = jax.jit(lambda t, x, between=between: f(between(t), x))
        last = pallas.kernels(g, table, x).kernel.iloc[-1]
        assert pallas.steps(g, table, x, kernel=last).block.isna().any()
    jax.effects_barrier()
    assert ran == []


def by_size(n, x):
    return call(copy, (n,), [ROWS], ROWS)(x)


def test_a_grid_sized_by_data():
    n = np.zeros((), np.int32) + 8
    assert pallas.kernels(by_size, n, f32(64, 32)).grid[0] == (8,)
    assert len(pallas.steps(by_size, n, f32(64, 32))) == 16
    row = pallas.kernels(by_size, i32(), f32(64, 32)).iloc[0]
    assert row.grid == (None,) and row.steps is pd.NA and "computed from data" in row.note
    with pytest.raises(ValueError, match="axis 0 of the grid is computed from data: give concrete arrays"):
        pallas.steps(by_size, i32(), f32(64, 32))
    assert list(pallas.check(by_size, i32(), f32(64, 32)).finding) == ["not checked"]


def test_a_kernel_without_blocks_is_named_and_left_alone():
    plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu", exc_type=ImportError)
    try:
        f = plgpu.kernel(copy, out_type=f32(128), grid=(2,), grid_names=("i",))
    except TypeError:  # as it was called before
        f = plgpu.kernel(copy, out_shape=f32(128), grid=(2,), grid_names=("i",))
    row = pallas.kernels(f, f32(128)).iloc[0]
    assert row.grid is None and row.note.startswith("no grid of blocks")
    with pytest.raises(ValueError, match="no grid of blocks"):
        pallas.steps(f, f32(128))


# Errors, printing ------------------------------------------------------------------------------------------


def test_errors_are_one_sentence():
    f, x = call(copy, (8,), [ROWS], ROWS), f32(64, 32)
    wrong = {
        "Expected a function to read, got int": lambda: pallas.steps(3),
        "sin has no pallas_call": lambda: pallas.traffic(jnp.sin, 1.0),
        "Expected kernel= to say which of 2 kernels is meant: 'k0' \\(copy\\), 'k1'":
            lambda: pallas.steps(lambda x: f(f(x)), x),
        "Expected kernel= to be one of 'k0' \\(copy\\), got 'k7'": lambda: pallas.check(f, x, kernel="k7"),
        "Expected at most limit=9 rows, and k0 \\(copy\\) with its grid \\(8,\\) has 16: raise limit=":
            lambda: pallas.steps(f, x, limit=9),
        "Expected at most limit=7 steps": lambda: pallas.traffic(f, x, limit=7),
        "<lambda> could not be traced, TypeError": lambda: pallas.kernels(lambda x: f(x) @ x, x),
    }
    for message, do in wrong.items():
        with pytest.raises((ValueError, TypeError), match=message) as caught:
            do()
        assert "\n" not in str(caught.value)


def test_tables_print_in_a_notebook():
    f, args = matmul_with_scratch()
    steps = pallas.steps(f, *args)
    html = steps._repr_html_()
    assert "(0, 0, 1)" in html and "[0:16, 8:16]" in html and "moved_bytes" in html and "None" not in html
    assert pallas.traffic(f, *args).to_string().count("\n") == 4
    assert list(pallas.check(f, *args)) == ["kernel", "finding", "operand", "step", "detail"]


def test_bytes_are_shown_with_their_thousands_marked_and_stay_numbers():
    spec = (256, 256), lambda i: (i, 0)
    f = call(copy, (100,), [spec], spec, (25600, 256))
    steps = pallas.steps(f, f32(25600, 256))
    traffic = pallas.traffic(f, f32(25600, 256))
    for shown in (repr(steps), steps._repr_html_(), repr(steps.head(2)), repr(traffic)):
        assert "262,144" in shown or "26,214,400" in shown
    assert steps.moved_bytes.max() == 256 * 256 * 4
    assert repr(steps).count("\n") < 40 and "200 rows" in repr(steps) and "200 rows" in steps._repr_html_()


def test_a_hundred_thousand_steps_are_walked_at_once():
    spec = (8, 8), lambda i, j: (i, j)
    f = call(copy, (400, 250), [spec], spec, (3200, 2000))
    steps = pallas.steps(f, f32(3200, 2000))
    assert len(steps) == 200_000 and steps.moved_bytes.sum() == 2 * 3200 * 2000 * 4
