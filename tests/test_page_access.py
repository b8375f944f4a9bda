"""The page for everybody: no serious fault by axe-core in any view, light and dark; all by the keyboard."""

import pytest
from browser import line, lit
from page_walk import walk

GRAVE = {"serious", "critical"}
VIEWS = ("stages", "fates", "passes", "summary")


def faults(shown):
    """What axe-core finds serious or critical: rule, and the first elements that break it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with it").Axe()
    found = axe.run(shown.tab).response["violations"]
    return [(v["id"], [node["html"][:120] for node in v["nodes"][:3]]) for v in found if v["impact"] in GRAVE]


def all_views(shown):
    return shown.run("[...document.querySelectorAll('#tabs button')].map((tab) => tab.id.slice(4))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_any_view(page, scheme):
    shown = page(walk())
    shown.tab.emulate_media(color_scheme=scheme)
    views = all_views(shown)
    assert set(VIEWS) <= set(views)
    for view in views:
        shown.run(f"document.getElementById('tab-{view}').click()")
        for selected in ("", "e1", "hlo:copy.1", "e2"):  # nothing, exact, the compiler's own, inferred
            shown.run(f"location.hash = {selected!r}")
            shown.tab.wait_for_timeout(50)
            assert faults(shown) == [], (scheme, view, selected)
    shown.tab.emulate_media(color_scheme="light")


def test_larger_text_for_those_at_the_back(page):
    shown = page(walk())
    height = "document.querySelector('#view-hlo .line').getBoundingClientRect().height"
    small = shown.run(height)
    shown.press("+")
    shown.press("+")
    assert shown.run(height) >= 1.4 * small
    shown.tab.wait_for_timeout(100)
    assert shown.run("document.querySelector('#status').getBoundingClientRect().bottom") == 768
    shown.click(line("script", "relu(c)"))
    assert lit(shown, "hlo") == [5, 11]
    shown.press("-")
    shown.press("-")
    assert shown.run(height) == small


def test_every_control_can_be_reached_and_seen_with_the_keyboard_alone(page):
    shown = page(walk())
    reached, unseen = [], []
    for _ in range(60):
        shown.press("Tab")
        name, outline = shown.run("((e) => [e === document.body ? '' : e.id || e.textContent, "
                                  "getComputedStyle(e).outlineStyle])(document.activeElement)")
        reached.append(name)
        if outline == "none" and name:  # between the last control and the first, the page itself is in turn
            unseen.append(name)
    assert not unseen
    assert {"query", "larger", "tab-stages", "LLVM", "longest first", "Optimised HLO"} <= set(reached)
    panes = ("script", "jaxpr", "stablehlo", "hlo", "kernels", "time")
    assert {f"view-{pane}" for pane in panes} <= set(reached)
    shown.run("document.getElementById('tab-stages').focus()")
    for view in all_views(shown)[1:]:  # the arrows go from tab to tab
        shown.press("ArrowRight")
        assert shown.run("document.activeElement.id") == f"tab-{view}"
        assert shown.run(f"document.getElementById('tab-{view}').getAttribute('aria-selected')") == "true"


def test_enter_goes_from_one_hit_to_the_next_and_escape_clears(page):
    shown = page(walk())
    shown.press("/")
    shown.type("max")
    first = shown.run("document.querySelector('#found').textContent")
    shown.press("Enter")
    second = shown.run("document.querySelector('#found').textContent")
    assert first.startswith("1 of") and second.startswith("2 of")
    shown.press("Escape")
    assert shown.run("document.querySelector('#query').value") == ""
    assert shown.run("document.querySelector('#found').textContent") == ""


def test_without_scripts_a_readable_table_and_every_text_are_left(browser, tmp_path):
    from oplab.views.page import render

    file = tmp_path / "walk.html"
    file.write_text(render(walk()), encoding="utf-8")
    context = browser.chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(file.as_uri())
    seen = tab.inner_text("body")
    assert "max_fusion" in seen and "5.0" in seen and "%dot.1 = f32" in seen and "stablehlo.maximum" in seen
    assert "press /" not in seen
    context.close()


def test_without_scripts_the_programs_picture_is_left(browser, tmp_path):
    """Its style has to pass the page's policy: boxes without it would be black."""
    import jax.numpy as jnp

    import oplab

    def scaled(x):
        return jnp.maximum(x @ x, 0) * 2

    walked = oplab.walk(scaled, jnp.ones((8, 8)))
    files = [tmp_path / f"{n}.html" for n in range(2)]
    for file in files:
        walked.save(file)
    assert files[0].read_bytes() == files[1].read_bytes()
    said = []
    context = browser.chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.goto(files[0].as_uri())
    assert tab.locator("noscript svg .node").count() >= 3 and "dot_general" in tab.inner_text("noscript")
    assert tab.locator("noscript svg .node").first.bounding_box()["width"] > 20
    assert not said
    context.close()
