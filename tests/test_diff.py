"""walk.diff: names do not count, what was compiled does, and what was measured never by itself."""

import copy
import json
import re

import jax
import jax.numpy as jnp
import pytest

import oplab
from oplab.diff import STAGES, renamed
from oplab.diff.changes import asm_counts, verdict

x, W, b = jnp.ones((128, 64)), jnp.ones((64, 32)), jnp.ones(32)


def inside(x, W, b):
    return jax.nn.relu(x @ W + b)


def outside(x, W, b):
    return jax.nn.relu(x @ W) + b


def curve(x):
    return jnp.tanh(x) * 2 + x


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    return oplab.walk(inside, x, W, b)


@pytest.fixture(scope="module")
def saved(left, tmp_path_factory):
    return oplab.load_walk(left.save(tmp_path_factory.mktemp("walk") / "walk.json"))


def changed(walk, edit):
    """A saved walk whose document was edited."""
    document = copy.deepcopy(walk.to_json())
    edit(document)
    return oplab.SavedWalk(document)


def test_nothing_differs_between_a_walk_and_itself_live_or_saved(left, saved):
    for one, other in ((left, left), (left, saved), (saved, left), (left, oplab.walk(inside, x, W, b))):
        d = one.diff(other)
        assert not d and d.table.empty and "Nothing differs" in d.summary
        assert not any(d.text(stage) for stage in STAGES)
        assert not any(d.code(name) for name in left.kernels.table["instruction"])


def test_a_renamed_function_with_other_variables_is_the_same_program(left):
    def named_otherwise(features, weights, bias):
        return jax.nn.relu(features @ weights + bias)

    d = left.diff(oplab.walk(named_otherwise, x, W, b))
    assert not d, d.table
    assert d.heads[0].startswith("inside") and d.heads[1].startswith("named_otherwise")


def test_the_same_operators_joined_otherwise(left):
    d = left.diff(oplab.walk(outside, x, W, b))
    assert {"jaxpr", "stablehlo", "hlo", "kernels"} <= set(d.table["stage"])
    assert "same primitives" in d.summary
    moved = d.text("jaxpr")
    assert re.search(r"^-.* = add ", moved, re.M) and re.search(r"^\+.* = add ", moved, re.M)
    assert not re.search(r"^[-+].*dot_general", moved, re.M)  # what did not move is not shown as changed


def test_an_option_that_only_reaches_the_assembly():
    one = oplab.walk(curve, x, options={"xla_cpu_prefer_vector_width": 128})
    other = oplab.walk(curve, x, options={"xla_cpu_prefer_vector_width": 256})
    d = one.diff(other)
    if not d:
        pytest.skip("this processor has one width of vectors")
    assert set(d.table["stage"]) == {"code"} and not d.text("hlo")
    assert "Same HLO, other machine code" in d.summary and "xla_cpu_prefer_vector_width" in d.summary
    kernel = one.kernels.table["instruction"].iloc[0]
    code = d.code(kernel)
    assert code and not re.search(r"^[-+ ] *[0-9a-f]+:  ", code, re.M)  # no addresses


def test_a_kernel_that_goes_from_a_library_to_the_compiler(left):
    w = oplab.walk(inside, x, W, b, options={"xla_cpu_experimental_ynn_fusion_type": ""})
    d = left.diff(w)
    hands = d.table[d.table["what"].str.endswith("whose code")]
    if "YNNPACK" in set(left.kernels.table["library"]):
        assert list(hands["left"]) == ["YNNPACK"] and "was YNNPACK's" in d.summary
    assert "xla_cpu_experimental_ynn_fusion_type: not set against ''" in d.summary


def test_other_types_and_shapes_are_named(left):
    small = jnp.bfloat16
    d = left.diff(oplab.walk(inside, x.astype(small), W.astype(small), b.astype(small)))
    row = d.table[d.table["what"] == "arguments"].iloc[0]
    assert row.left == "f32[128,64] f32[64,32] f32[32]" and row.right.startswith("bf16[128,64]")
    d = left.diff(oplab.walk(inside, x[:16], W, b))
    flops = d.table[d.table["what"] == "FLOPs of all kernels"].iloc[0]
    assert flops.left == 8 * flops.right


def test_donated_arguments_show():
    keep = oplab.walk(curve, x)
    d = keep.diff(oplab.walk(curve, x, donate_argnums=0))
    assert "results written into a donated argument" in set(d.table["what"]), d.table


def test_hlo_that_was_only_renumbered_is_the_same(saved):
    def renumber(document):
        hlo = document["stages"]["hlo"]
        hlo["text"] = re.sub(r"%([\w.\-]+)", r"%\1.77", hlo["text"])
        place = hlo["table"]["columns"].index("instruction")
        for row in hlo["table"]["rows"]:
            row[place] += ".77"

    d = saved.diff(changed(saved, renumber))
    assert not d.text("hlo") and "hlo" not in set(d.table["stage"])


def test_one_changed_constant_is_found(saved):
    def edit(document):
        hlo = document["stages"]["hlo"]
        assert "constant(0)" in hlo["text"]
        hlo["text"] = hlo["text"].replace("constant(0)", "constant(7)", 1)

    d = saved.diff(changed(saved, edit))
    assert re.findall(r"^[-+][^-+].*constant\((\d)\)", d.text("hlo"), re.M) == ["0", "7"]


def test_names_follow_their_lines():
    left = ["%a = f32[] parameter(0)", "%b = f32[] add(%a, %a)", "ROOT %c = f32[] tanh(%b)"]
    right = ["%p = f32[] parameter(0)", "%n = f32[] negate(%p)", "%q = f32[] add(%p, %p)",
             "ROOT %b = f32[] tanh(%q)"]
    assert renamed.same_names(left, right, "hlo") == [left[0], "%n = f32[] negate(%a)", *left[1:]]


def test_jumps_get_labels_for_addresses():
    lines = renamed.cleaned("f:\n     0:  xor        eax, eax\n     2:  jne        0x0\n     4:  ret", "asm")
    assert lines == ["@f:", ".L1:", "    xor        eax, eax", "    jne        .L1", "    ret", ""]


def test_vector_instructions_are_counted():
    text = "f:\n  0:  vaddps     ymm0, ymm1, ymm2\n  4:  vaddss     xmm0, xmm1, xmm2\n  8:  ret"
    assert asm_counts(text) == {"instructions": 3, "vector instructions": 1, "widest vector, bits": 256}


@pytest.mark.parametrize("right, spread, word", [
    (10.5, 1.0, "within noise"), (20.0, 30.0, "within noise"),
    (20.0, 1.0, "right takes 2 times"), (5.0, 1.0, "left takes 2 times")])
def test_a_time_differs_only_where_the_spreads_do_not_overlap(right, spread, word):
    assert verdict(10.0, 1.0, right, spread).startswith(word)
    assert verdict(10.0, 1.0, right, spread, fewest=2).startswith("too few runs")


def test_measured_times_stand_apart_and_make_no_difference(monkeypatch):
    one, other = oplab.walk(curve, x).execute(6), oplab.walk(curve, x).execute(6)
    d = one.diff(other)
    assert not d and d.times["what"].iloc[0] == "all kernels"
    assert "Measured, a call" in d.summary
    monkeypatch.setenv("OPLAB_STABLE", "1")
    shown = repr(one.diff(other))
    assert not re.search(r"\d\.\d", shown) and jax.__version__ not in shown


HOSTILE = "<script>alert(1)</script>\u202e&\"'`$\\frac{"


def test_hostile_names_come_out_as_text(saved, tmp_path):
    def edit(document):
        document["function"] = HOSTILE
        document["options"] = {HOSTILE: HOSTILE}
        document["stages"]["jaxpr"]["text"] += "\n" + HOSTILE
        document["stages"]["kernels"]["table"]["rows"][0][0] += HOSTILE

    d = saved.diff(changed(saved, edit))
    page = open(d.save(tmp_path / "diff.html"), encoding="utf-8").read()
    for text in (page, d._repr_mimebundle_()["text/html"]):
        assert "<script" not in text and "\u202e" not in text
        assert "&lt;script&gt;" in text and "[U+202E]" in text
    assert "default-src 'none'; style-src 'sha256-" in page
    assert " style=" not in page and "http://" not in page


def test_the_page_is_the_same_on_every_run(left, tmp_path):
    other = oplab.walk(outside, x, W, b)
    pages = [open(left.diff(other).save(tmp_path / f"{n}.html")).read() for n in range(2)]
    assert pages[0] == pages[1] and "−" in pages[0] and "+" in pages[0]


def test_mistakes_are_one_sentence(left, tmp_path):
    with pytest.raises(TypeError, match="diff expects two walks, got int"):
        left.diff(3)
    d = left.diff(left)
    mistakes = [(lambda: d.text("x"), "stage"), (lambda: d.code("nobody"), "name of a kernel"),
                (lambda: d.code("a", form="x"), "form"), (lambda: d.save(tmp_path / "a.txt"), ".html")]
    for call, word in mistakes:
        with pytest.raises(ValueError, match=word):
            call()


def test_compare_is_two_walks_and_their_difference():
    d = oplab.compare(inside, outside, x, W, b)
    assert d and [h.split(" on ")[0] for h in d.heads] == ["inside", "outside"]
    assert not oplab.compare(inside, inside, x, W, b)


def test_the_command_says_it_too(saved, tmp_path, capsys):
    from oplab.cli import main

    file = saved.save(tmp_path / "a.json")
    assert main(["diff", file, file, "-o", str(tmp_path / "d.html")]) == 0
    assert "Nothing differs" in capsys.readouterr().out and (tmp_path / "d.html").exists()
    (tmp_path / "b.json").write_text(json.dumps([]))
    assert main(["diff", file, str(tmp_path / "b.json")]) == 2
    assert "load_walk expects" in capsys.readouterr().err
