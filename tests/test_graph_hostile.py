"""Hostile names (see `hostile.py`) in a program's picture come out as text."""

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest
from hostile import NAMES
from page_walk import Elements, hostile, walk

import oplab
from oplab.document import SavedWalk
from oplab.views.graph import Graph

KNOWN = {"svg", "title", "desc", "style", "defs", "marker", "path", "rect", "text", "g"}


def crowd():
    """A picture with every name as an id, a label, a shape, a scope and a box around others."""
    empty = {"operator": "other", "line": None, "half": "", "parent": ""}
    nodes = [
        empty | {"node": f"{n}{name}", "label": name, "shape": name, "scope": name}
        for n, name in enumerate(NAMES.values())
    ]
    nodes += [
        empty
        | {"node": f"{node['node']}.{n}", "label": "in", "shape": "", "scope": "", "parent": node["node"]}
        for node in nodes
        for n in range(2)
    ]
    names = [node["node"] for node in nodes]
    pairs = [*zip(names, names[1:], strict=False), *zip(names, names[40:], strict=False)]
    return Graph(
        "".join(NAMES.values())[:5000],
        nodes,
        [{"source": a, "target": b, "shape": a, "bytes": 0} for a, b in pairs],
    )


def test_two_hundred_names_stay_text():
    graph = crowd()
    root = ET.fromstring(graph.svg)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} == KNOWN
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not any(name.startswith("on") or "href" in name for name in attributes)
    assert len(graph.svg) < 3_000_000  # a name of 100,000 characters is clipped
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff\x00-\x08]", graph.svg)
    graph.svg.encode("utf-8")
    repr(graph).encode("utf-8", "replace")


def test_a_notebook_gets_a_frame_and_the_same_as_text():
    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.seen = []

        def handle_starttag(self, tag, attrs):
            self.seen.append((tag, dict(attrs)))

    tags = Tags()
    tags.feed(crowd()._repr_mimebundle_()["text/html"])
    assert [tag for tag, _ in tags.seen] == ["iframe", "details", "summary", "pre"]  # and no name's markup
    assert tags.seen[0][1]["sandbox"] == ""
    assert set(tags.seen[0][1]) == {"sandbox", "title", "srcdoc", "width", "height", "style"}
    assert Elements


def test_a_function_and_scopes_with_hostile_names_are_walked_and_drawn():
    for name in ("<b>x</b>", "a = b", "} in { lambda ; q:f32[2]. let", "\u202ex", "\"'`", "行列积 🙂"):

        def function(x, name=name):
            with jax.named_scope(name):
                return jax.jit(jnp.sin)(x) * 2

        function.__name__ = name
        for stage in ("jaxpr", "stablehlo", "hlo"):
            ET.fromstring(oplab.walk(function, jnp.ones(3)).graph(stage).svg)


def test_documents_with_hostile_names_are_drawn():
    for name in [*NAMES.values()][::5]:
        saved = SavedWalk(hostile(name))
        for stage in ("jaxpr", "stablehlo", "hlo"):
            ET.fromstring(saved.graph(stage).svg)
    assert len(SavedWalk(walk()).graph().nodes) >= 4


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_hundred_names_reach_nothing_in_a_browser(browser, tmp_path, scheme):
    graph = crowd()
    file, frame = tmp_path / "graph.html", tmp_path / "frame.html"
    graph.save(file)
    picture = graph._repr_mimebundle_()["text/html"]
    frame.write_text(f'<!doctype html><html lang="en"><title>notebook</title><main>{picture}</main>', "utf-8")
    browser.errors.clear()
    browser.tab.emulate_media(color_scheme=scheme)
    for path in (file, frame):
        browser.tab.goto(path.as_uri())
        shown = browser.tab.frames[-1]
        assert shown.locator("svg .node").count() > 200
        assert shown.locator("script, img, iframe, a, object, link").count() == 0
    browser.tab.goto(file.as_uri())
    assert browser.run("window.pwned === undefined")
    assert not browser.errors
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core comes with it").Axe()
    found = axe.run(browser.tab).response["violations"]
    assert not [v["id"] for v in found if v["impact"] in {"serious", "critical"}]
    browser.tab.emulate_media(color_scheme="light")
