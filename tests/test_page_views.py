"""The drawn views of the linked page: passes as a diff, timeline, memory, roofline; in a real browser."""

import copy
import json

import jax
import jax.numpy as jnp
import pytest
from browser import line, lit, text
from hostile import NAMES
from page_walk import hostile, table, walk

import oplab
from oplab.stages.pass_words import does
from oplab.views.page import render
from oplab.views.page.model import code, model
from oplab.views.page.model_roofline import roofs
from oplab.views.page.model_timeline import timeline

VIEWS = ["passes", "timeline", "memory", "roofline"]


def layer(x, w, b):
    return jax.nn.relu(x @ w + b)


def loop(x):
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, jnp.ones((3, 16, 16)))


@pytest.fixture(scope="module")
def document():
    w = oplab.walk(layer, jnp.ones((32, 16)), jnp.ones((16, 8)), jnp.ones(8)).execute(3)
    return json.loads(json.dumps(w.to_json()))


@pytest.fixture(scope="module")
def looped():
    return json.loads(json.dumps(oplab.walk(loop, jnp.ones((16, 16))).execute(3).to_json()))


def marks(shown, pane, look=""):
    return shown.run(f"document.querySelectorAll('#pane-{pane} svg .mark{look}').length")


def drawn(page, document, view, pane=None):
    shown = page(document, f"#view={view}")
    shown.until(f"document.querySelectorAll('#pane-{pane or view} .line').length")
    return shown


# ---- passes ----------------------------------------------------------------------------------------------


def test_a_line_of_the_diff_lights_its_equation(page, document):
    shown = drawn(page, document, "passes")
    shown.click(line("passes", " dot("))
    assert shown.until("document.querySelector('#view-jaxpr .lit')?.textContent").strip().startswith("e0")
    lines = shown.run("[...document.querySelectorAll('#view-passes .lit')].map(l => l.textContent)")
    assert any(" dot(" in one for one in lines)


def test_what_came_stands_under_what_went_and_its_words_are_marked(page):
    document = walk()
    document["stages"]["passes"]["text"] = (
        "=== 0: (from StableHLO)\n=== 3: algsimp   [simplification]\n- %a.1 = f32[8] add(%x, %one)\n"
        "- %b.2 = f32[8] multiply(%x, %two)\n+ %b.2 = f32[8] multiply(%y, %two)\n+ %c.3 = f32[8] negate(%y)")
    shown = drawn(page, document, "passes")
    found = shown.run("[...document.querySelectorAll('#view-passes .line')].map(l => [l.className,"
                      " l.textContent.trim(), [...l.querySelectorAll('.differs')].map(d => d.textContent)])")
    assert [one[1][:9] for one in found[1:]] == ["− %a.1 = ", "− %b.2 = ", "+ %b.2 = ", "+ %c.3 = "]
    assert [one[2] for one in found[1:]] == [[], ["%x"], ["%y"], []]


def test_a_pass_says_what_it_does(page, document):
    shown = drawn(page, document, "passes")
    table = document["stages"]["passes"]["table"]
    name, sentence = table["columns"].index("pass"), table["columns"].index("does")
    said = {row[name]: row[sentence] for row in table["rows"]}
    assert len(said["fusion"]) > 20 and not does("none such")
    lines = shown.run("[...document.querySelectorAll('#view-passes .line')]"
                      ".map(l => [l.className.trim(), l.textContent])")
    heads = [i for i, (look, text) in enumerate(lines) if "title" in look and text.startswith("fusion ")]
    assert heads and all(lines[i + 1] == ["line does", said["fusion"]] for i in heads)


def test_an_equation_is_followed_through_the_passes(page, document):
    shown = drawn(page, document, "passes")
    everything = shown.run("document.querySelectorAll('#view-passes .line').length")
    assert shown.run("[...document.querySelectorAll('#pane-passes .tools button')][0].disabled")
    shown.click(line("jaxpr", "dot_general"))
    shown.run("[...document.querySelectorAll('#pane-passes .tools button')][0].click()")
    lines = "[...document.querySelectorAll('#view-passes .line:not(.title)')]"
    followed = shown.run(f"{lines}.map(l => l.className)")
    assert 0 < len(followed) < everything and any("lit" in look for look in followed)
    hidden = "[...document.querySelectorAll('#pane-passes .index li')].filter(l => l.hidden).length"
    assert shown.run(hidden) > 0
    shown.run("[...document.querySelectorAll('#pane-passes .tools button')][1].click()")
    assert shown.run(hidden) == 0, "the switch names every pass"


def test_the_code_of_the_page_says_whose_each_line_is(document):
    passes = code(document)
    assert passes["pass_lines"] and all(owners for owners in passes["pass_lines"].values())
    old = {key: value for key, value in document.items() if key not in ("pass_lines", "buffers")}
    assert code(old)["pass_lines"] == {} and model(old)["memory"] is None


# ---- timeline --------------------------------------------------------------------------------------------


def test_bars_light_their_instruction_and_can_be_zoomed(page, looped):
    shown = drawn(page, looped, "timeline")
    many = marks(shown, "timeline")
    assert many > 5
    shown.run("document.querySelector('#pane-timeline svg .mark')"
              ".dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert shown.until("document.querySelectorAll('#view-hlo .lit').length")
    assert marks(shown, "timeline", ".lit") >= 1
    shown.run("document.querySelector('#pane-timeline .plot').focus()")
    for _ in range(8):
        shown.press("+")
    shown.press("ArrowRight")
    assert 0 < marks(shown, "timeline") < many
    shown.press("0")
    assert marks(shown, "timeline") >= many
    assert "1 of 3" in text(shown, "#view-timeline"), "the loop's iterations are told apart"


@pytest.mark.parametrize("larger", [0, 2])
def test_a_drag_moves_the_bars_as_far_as_the_hand(page, looped, larger):
    shown = drawn(page, looped, "timeline")
    for _ in range(larger):
        shown.press("+")
    shown.run("document.querySelector('#pane-timeline .plot').focus()")
    for _ in range(4):
        shown.press("+")
    ticks = """Object.fromEntries([...document.querySelectorAll('#pane-timeline svg text.tick')]
        .map((tick) => [tick.textContent, tick.getBoundingClientRect().x]))"""
    box = shown.run("(({x, y, width, height}) => [x, y, width, height])"
                    "(document.querySelector('#pane-timeline .plot').getBoundingClientRect())")
    x, y = box[0] + box[2] / 2, box[1] + box[3] / 2
    before = shown.run(ticks)
    shown.tab.mouse.move(x, y)
    shown.tab.mouse.down()
    shown.tab.mouse.move(x + 60, y, steps=3)
    shown.tab.mouse.up()
    after = shown.run(ticks)
    moved = [after[tick] - before[tick] for tick in before.keys() & after.keys()]
    assert moved and all(abs(by - 60) < 2 for by in moved), moved


def test_an_unexecuted_walk_says_what_to_do(page):
    document = walk()
    del document["stages"]["execution"]
    shown = page(document, "#view=timeline")
    assert "walk.execute()" in text(shown, "#pane-timeline .told")


def test_nothing_measured_is_drawn_in_the_stable_mode(page, document, monkeypatch):
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert model(document)["timeline"] is None
    peaks = {"device": "x", "dtype": "float32", "flops_per_s": 1e9, "bytes_per_s": 1e9, "measured": True}
    measured = {**document, "peaks": peaks}
    assert render(measured) == render(document)
    shown = page(document, "#view=timeline")
    assert "OPLAB_STABLE" in text(shown, "#pane-timeline .told")
    assert "walk.execute()" in text(shown, "#pane-roofline .foot")


def test_lanes_hold_what_overlaps_and_the_run_is_the_median():
    def row(run, name, start, took):
        return {"run": run, "instruction": name, "start_us": start, "duration_us": took}

    rows = [row(0, "a", 0.0, 90.0), row(1, "a", 5.0, 10.0), row(1, "b", 6.0, 2.0), row(1, "b", 9.0, 1.0),
            row(1, "nowhere", 9.0, 1.0), row(1, "a", 16.0, 1.0), row(2, "a", 0.0, 1.0)]
    found = timeline(rows, [{"label": "a"}, {"label": "b"}])
    assert found["run"] == 1 and found["length"] == 12.0 and found["lanes"] == 2
    assert found["bars"] == [[0, 0.0, 10.0, 0, 1], [1, 1.0, 2.0, 1, 1], [1, 4.0, 1.0, 1, 2],
                             [0, 11.0, 1.0, 0, 2]]


# ---- memory ----------------------------------------------------------------------------------------------


def test_memory_shows_the_peak_and_lights_the_line(page, looped):
    shown = drawn(page, looped, "memory")
    peak = max(row[looped["buffers"]["columns"].index("in_use_bytes")] for row in looped["buffers"]["rows"])
    assert shown.run("document.querySelector('#pane-memory svg .peak') !== null")
    assert f"{peak / 1024:.3g} KiB in use" in text(shown, "#pane-memory svg")
    shown.click(line("memory", "dot_general"))
    assert shown.until("document.querySelectorAll('#view-hlo .lit').length")
    assert marks(shown, "memory", ".lit") >= 1 and marks(shown, "memory", ".faded") >= 1
    rows = "document.querySelectorAll('#view-memory .line').length"
    at_peak = shown.run(rows)
    shown.run("[...document.querySelectorAll('#pane-memory .tools button')][1].click()")
    assert shown.run(rows) == len(looped["buffers"]["rows"]) > at_peak


def test_a_walk_without_buffers_says_so(page):
    shown = page(walk(), "#view=memory")
    assert "no buffers" in text(shown, "#pane-memory .told")


# ---- roofline --------------------------------------------------------------------------------------------


def test_kernels_stand_under_the_roof_that_is_chosen(page, document):
    shown = drawn(page, document, "roofline")
    assert shown.run("document.querySelector('#pane-roofline .roof')") is None, "nothing was asked for"
    number = next(n for n, roof in enumerate(roofs(None)) if roof["name"] == "TPU v5e")
    shown.run(f"document.querySelector('#pane-roofline select').selectedIndex = {number + 1}")
    shown.run("document.querySelector('#pane-roofline select').dispatchEvent(new Event('change'))")
    assert shown.run("document.querySelector('#pane-roofline .roof') !== null")
    roof = roofs(None)[number]
    assert f"ridge at {roof['flops_per_s'] / roof['bytes_per_s']:.3g}" in text(shown, "#pane-roofline .told")
    assert "memory" in text(shown, "#view-roofline")
    shown.run("document.querySelector('#pane-roofline .dot')"
              ".dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert lit(shown, "roofline") and shown.until("document.querySelectorAll('#view-hlo .lit').length")


def test_a_walk_without_times_is_drawn_under_the_first_roof(page):
    w = oplab.walk(layer, jnp.ones((32, 16)), jnp.ones((16, 8)), jnp.ones(8))
    shown = drawn(page, json.loads(json.dumps(w.to_json())), "roofline")
    assert shown.run("document.querySelector('#pane-roofline .roof') !== null")
    assert roofs(None)[0]["name"] in text(shown, "#pane-roofline .told")


def test_measured_peaks_come_only_when_they_were_asked_for(page):
    w = oplab.walk(layer, jnp.ones((32, 16)), jnp.ones((16, 8)), jnp.ones(8))
    assert "peaks" not in w.to_json()
    w.roofline("NVIDIA T4")
    document = json.loads(json.dumps(w.to_json()))
    assert document["peaks"]["device"] == "NVIDIA T4" and model(document)["roofs"][0]["name"] == "NVIDIA T4"
    timed = json.loads(json.dumps(w.execute(3).to_json()))
    assert "NVIDIA T4" in text(drawn(page, timed, "roofline"), "#pane-roofline .told"), "it was asked for"
    mine = {**document["peaks"], "device": "this one", "measured": True}
    shown = drawn(page, {**document, "peaks": mine}, "roofline")
    assert "this one" in text(shown, "#pane-roofline .told"), "a measured roof is drawn at once"


# ---- all of them -----------------------------------------------------------------------------------------


def full(name="max_fusion"):
    """The walk by hand, with buffers of a name, and lines of passes that belong to an equation."""
    document = hostile(name) if name != "max_fusion" else copy.deepcopy(walk())
    document["buffers"] = table(
        "buffer instruction bytes kind first last shares_with at_peak in_use_bytes allocation offset "
        "allocation_bytes",
        [name, name, 512, "temporary", 0, 3, [name], True, 512, 0, 0, 512],
        ["p", "p", 256, "argument", 1, 2, [], False, 512, 1, 0, 256])
    document["pass_lines"] = table("text_line equations", [3, ["e2"]])
    document["peaks"] = {"device": name, "dtype": name, "flops_per_s": 1e11, "bytes_per_s": 1e10,
                         "measured": True, "source": name}
    return document


@pytest.mark.parametrize("name", list(NAMES.values())[::20], ids=range(len(list(NAMES)[::20])))
def test_hostile_text_stays_text_in_a_browser(page, name):
    shown = page(full(name))
    for view in VIEWS:
        shown.run(f"document.getElementById('tab-{view}').click()")
        shown.until(f"document.querySelectorAll('#view-{view} .line').length")
        shown.run(f"document.querySelectorAll('#view-{view} .line, #pane-{view} svg .mark').forEach("
                  "m => m.dispatchEvent(new PointerEvent('pointerover', {bubbles: true})))")
        assert shown.run("window.pwned") is None
        assert shown.run("document.querySelectorAll('#panes :is(img, script, iframe, style, a)').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_views_are_accessible(page, looped, scheme):
    """axe-core finds nothing wrong, in either colour scheme."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with it")
    for view in VIEWS:
        shown = page(looped, f"#view={view}")
        shown.tab.emulate_media(color_scheme=scheme)
        shown.tab.wait_for_timeout(200)
        found = axe.Axe().run(shown.tab).response["violations"]
        assert not found, [(view, v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found]
    shown.tab.emulate_media(color_scheme="light")


def test_the_views_are_reached_by_keyboard(page, looped):
    shown = drawn(page, looped, "memory")
    shown.run("document.querySelector('#view-memory').focus()")
    shown.press("ArrowDown")
    assert lit(shown, "memory"), "the table's first line is selected"
    assert marks(shown, "memory", ".lit") >= 1


def test_a_stage_can_make_room_for_another_view(page):
    """In the stages' tab each pane has a list of all panes: choose one, and it stands in that place."""
    shown = page(walk())
    order = ("[...document.querySelectorAll('#panes > .pane:not([hidden])')]"
             ".sort((a, b) => a.style.order - b.style.order).map((pane) => pane.id.slice(5))")
    first = shown.run(order)
    assert first == ["script", "jaxpr", "stablehlo", "hlo", "kernels", "time"]
    shown.tab.locator("#pane-stablehlo .swap").select_option("passes")
    assert shown.run(order) == ["script", "jaxpr", "passes", "hlo", "kernels", "time"]
    assert shown.run("document.activeElement.closest('.pane').id") == "pane-passes"
    shown.until("document.querySelectorAll('#pane-passes .line').length")
    shown.tab.locator("#pane-hlo .swap").select_option("script")  # it is shown already: they change places
    assert shown.run(order) == ["hlo", "jaxpr", "passes", "script", "kernels", "time"]
    shown.run("document.getElementById('tab-passes').click()")
    assert not shown.run("document.querySelector('#pane-passes .swap').offsetParent")
    shown.run("document.getElementById('tab-stages').click()")
    assert shown.run(order) == ["hlo", "jaxpr", "passes", "script", "kernels", "time"]


# ---- large programs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    """A program with so many arguments that their names fill every pane."""
    def f(large, xs):
        return sum(jnp.sin(x).sum() for x in xs) + large.sum()

    args = jnp.ones((32, 1024)), [jnp.ones((8, 4))] * 300
    return json.loads(json.dumps(oplab.walk(f, *args).execute(2).to_json()))


def test_panes_begin_where_something_is_computed(page, many):
    shown = page(many)
    first = ("[...document.querySelectorAll('#view-{} .line')]"
             ".filter(l => l.offsetTop >= l.closest('.view').scrollTop)")
    for pane, word in (("jaxpr", "sin"), ("hlo", "(")):
        shown.until(f"document.querySelector('#view-{pane}').scrollTop > 0")
        seen = shown.run(f"{first.format(pane)}.slice(0, 4).map(l => l.textContent)")
        assert any(word in line for line in seen) and not any("parameter(" in line for line in seen[1:]), seen


def test_a_small_program_begins_at_its_head(page, document):
    shown = page(document)
    assert shown.run("document.querySelector('#view-jaxpr').scrollTop") == 0


def test_thin_buffers_fill_their_block_together(page, many):
    """300 small arguments are together as tall as their bytes, beside the large one's."""
    shown = drawn(page, many, "memory")
    shown.until("!!document.querySelector('#pane-memory rect.kind-argument')")
    edges = shown.run("[...document.querySelectorAll('#pane-memory rect.kind-argument')]"
                      ".map(r => r.getBoundingClientRect()).map(r => [r.top, r.bottom])")
    covered, reached = 0.0, float("inf")
    for top, bottom in sorted(edges, key=lambda edge: -edge[1]):
        covered += max(0.0, min(bottom, reached) - top)
        reached = min(reached, top)
    large = max(bottom - top for top, bottom in edges)
    assert covered / large == pytest.approx(1 + 300 * 8 * 4 / (32 * 1024), rel=0.03)


def test_no_column_without_a_loop(page, document, looped):
    heads = "[...document.querySelectorAll('#pane-timeline .head .cell')].map(c => c.textContent)"
    assert "which time" not in drawn(page, document, "timeline").run(heads)
    assert "which time" in drawn(page, looped, "timeline").run(heads)
