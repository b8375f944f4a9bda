"""The buffers: XLA's own plan of the memory, read from its texts, and its sums against the compiler's own."""

import json

import jax
import jax.numpy as jnp
import pandas as pd
import pytest

import oplab
from oplab.stages import buffers
from oplab.stages.passes import read
from oplab.views.page.model_memory import memory

# One loop, as the two versions write it: the newer one adds the page.
OLDER = """BufferAssignment:
allocation 0: size 24, parameter 0, shape |f32[6]| at ShapeIndex {}:
 value: <36 x.1 @0> (size=24,offset=0): f32[6]{0}
allocation 1: size 24, output shape is |(f32[6])|, maybe-live-out:
 value: <37 copy.1 @0> (size=24,offset=0): f32[6]{0}
 value: <52 while.6{1} (phi) @0> (size=24,offset=0): f32[6]{0}
allocation 2: size 4, thread-local:
 value: <2 reduce_sum.5 @0> (size=4,offset=0): f32[]
allocation 3: size 4, constant:
 value: <38 constant.12 @0> (size=4,offset=0): s32[]
allocation 4: size 96, preallocated-temp:
 value: <24 wrapped_add @0> (size=16,offset=64): f32[4]{0}
 value: <46 tuple{} @0> (size=8,offset=0): (s32[], f32[6]{0})
"""
NEWER = OLDER.replace(", parameter", ", page 0, parameter").replace(", maybe", ", page 0, maybe").replace(
    ", constant", ", page 0, constant").replace(", prealloc", ", page 0, prealloc")
LIVE = """HloLiveRange (max 6):
  InstructionSequence:
    0:x.1
    1:constant.12
  BufferLiveRange:
    x.1{}:0-6
    constant.12{}:1-4
    copy.1{}:2-3
    while.6{1}:3-6
    wrapped_add{}:3-5
    tuple{}:4-4
  Live ranges at 4 (peak):
    x.1{}: 24 bytes (cumulative: 24 bytes)
"""


@pytest.mark.parametrize("text", [OLDER, NEWER], ids=["older", "newer"])
def test_what_the_texts_say(text):
    table = buffers.table(text, LIVE).set_index("buffer")
    assert list(table.index) == ["x.1", "constant.12", "copy.1", "while.6{1}", "wrapped_add", "tuple"]
    assert list(table["kind"]) == ["argument", "constant", "output", "output", "temporary", "temporary"]
    assert table.loc["while.6{1}", ["instruction", "first", "last"]].tolist() == ["while.6", 3, 6]
    assert table.loc["wrapped_add", ["bytes", "allocation_bytes", "offset"]].tolist() == [16, 96, 64]
    assert table.loc["copy.1", "shares_with"] == ("while.6{1}",), "both at step 3, in the same bytes"
    assert table["in_use_bytes"].tolist() == [24, 28, 52, 68, 68, 76], "shared bytes count once"
    assert list(table.index[table["at_peak"]]) == ["x.1", "constant.12", "while.6{1}", "wrapped_add", "tuple"]


def test_missing_texts_give_no_rows():
    for table in (buffers.table("", ""), buffers.table(NEWER, ""), buffers.table("", LIVE)):
        assert list(table.columns) == buffers.COLUMNS and not len(table)


def test_names_may_hold_anything_but_a_space():
    text = NEWER.replace("copy.1 ", "<b>&.1 ")
    assert "<b>&.1" in set(buffers.table(text, LIVE.replace("copy.1{", "<b>&.1{"))["buffer"])


def layer(x, w):
    return jax.nn.relu(x @ w)


def table_of_scores(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def loop(x):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, jnp.ones((3, 16, 16)))


PROGRAMS = {
    "layer": (layer, ((32, 16), (16, 8))), "scores": (table_of_scores, ((64, 16),) * 3),
    "loop": (loop, ((16, 16),)), "gradient": (jax.grad(lambda x, w: layer(x, w).sum()), ((32, 16), (16, 8))),
    "sort": (lambda x: jnp.sort(x), ((64,),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_blocks_are_what_the_compiler_says_it_needs(name):
    """Arguments, outputs and temporaries add up to the bytes of `memory_analysis()`, exactly; the peak lies
    within them, and holds at least the arguments."""
    function, shapes = PROGRAMS[name]
    w = oplab.walk(function, *(jnp.ones(shape) for shape in shapes))
    table, planned = w.buffers, w.compiled.memory_analysis()
    blocks = table.drop_duplicates("allocation").groupby("kind")["allocation_bytes"].sum().to_dict()
    assert blocks.get("argument", 0) == planned.argument_size_in_bytes
    assert blocks.get("output", 0) == planned.output_size_in_bytes
    assert blocks.get("temporary", 0) == planned.temp_size_in_bytes
    peak = table["in_use_bytes"].max()
    assert planned.argument_size_in_bytes < peak <= sum(blocks.values())
    assert ((table["offset"] + table["bytes"]) <= table["allocation_bytes"]).all()
    assert set(table["instruction"]) <= set(w.hlo.table["instruction"])
    held = table[table["at_peak"]].drop_duplicates(["allocation", "offset"])["bytes"].sum()
    assert held == peak, "what lives at the peak, shared bytes once, is the peak"


def test_the_peak_of_attention_is_the_table_of_scores():
    w = oplab.walk(table_of_scores, *(jnp.ones((512, 64)),) * 3)
    peak = w.buffers[w.buffers["at_peak"]]
    largest = peak.loc[peak["bytes"].astype(int).idxmax()]
    if w.compiled.memory_analysis().temp_size_in_bytes:  # newer compilers may keep no table at all
        assert largest["bytes"] == 4 * 512 * 512 and largest["kind"] == "temporary"


def test_a_donated_argument_stays_an_argument():
    w = oplab.walk(lambda x: x + 1, jnp.ones(64), donate_argnums=0)
    kinds = dict(zip(w.buffers["instruction"], w.buffers["kind"], strict=True))
    assert set(kinds.values()) == {"argument"}, "the result lies in the argument's bytes"


def test_buffers_travel_in_the_document_and_old_documents_load(tmp_path):
    w = oplab.walk(layer, jnp.ones((8, 4)), jnp.ones((4, 2)))
    loaded = oplab.load_walk(w.save(str(tmp_path / "walk.json")))
    pd.testing.assert_frame_equal(loaded.buffers, w.buffers, check_dtype=False)
    pd.testing.assert_frame_equal(loaded.pass_lines, w.pass_lines, check_dtype=False)
    old = {key: value for key, value in w.to_json().items() if key not in ("buffers", "pass_lines")}
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.raises(ValueError, match="walk and save it again"):
        _ = oplab.load_walk(tmp_path / "old.json").buffers
    assert "oplab" in old["schema"] and oplab.load_walk(tmp_path / "old.json").name == "layer"


def test_lines_of_the_passes_know_their_equations():
    w = oplab.walk(layer, jnp.ones((8, 4)), jnp.ones((4, 2)))
    lines = w.passes.text.split("\n")
    dots = [row.equations for row in w.pass_lines.itertuples() if " dot(" in lines[row.text_line - 1]]
    assert dots and set(dots) == {("e0",)}
    assert all(lines[n - 1][0] in "+-" for n in w.pass_lines["text_line"])


def test_where_buffers_lie_in_the_drawing():
    rows = buffers.table(NEWER, LIVE).to_dict("records")
    drawn = memory(rows, [{"label": "x.1"}, {"label": "while.6"}])
    assert drawn["total"] == 24 + 4 + 24 + 96 and drawn["blocks"] == [24, 4, 24, 96]
    bottoms = {b[0]: b[6] for b in drawn["buffers"]}
    assert bottoms == {"x.1": 0, "constant.12": 24, "copy.1": 28, "while.6{1}": 28, "wrapped_add": 116,
                       "tuple": 52}
    assert [b[1] for b in drawn["buffers"]] == [0, -1, -1, 1, -1, -1] and memory([], []) is None


def test_a_dump_without_them_has_no_buffers(tmp_path):
    (tmp_path / "m.before_optimizations.txt").write_text("HloModule m\n")
    (tmp_path / "m.after_optimizations.txt").write_text("HloModule m\n}")
    dump = read(str(tmp_path))
    assert not len(buffers.table(dump.buffers, dump.live_ranges))
