"""Two hundred hostile names through every display: what comes out is text (see `hostile.py`)."""

import html
import json

import pandas as pd
import pytest
from hostile import HALVES, NAMES
from page_walk import Elements, hostile, walk

from oplab.display import Measured
from oplab.document import SavedWalk, Shown, save
from oplab.views.page import embed, render, visible
from oplab.views.picture import plain
from oplab.views.shelf import Shelf


def crowd():
    """One walk with every name in it: as a function, as lines of every text, as primitives, instructions,
    kernels, reasons, files, scopes and passes. What stands in a text is one line.
    """
    document, names = walk(), list(NAMES.values())
    lines = [name.replace("\n", " ")[:4000] for name in names]
    first = {name: part["text"].count("\n") + 2 for name, part in document["stages"].items()}
    for part in document["stages"].values():
        part["text"] += "".join("\n" + line for line in lines)
    add = {name: part["table"]["rows"].append for name, part in document["stages"].items()}
    for n, name in enumerate(names):
        equation = f"e{100 + n}"
        add["script"]([name, n, lines[n], [equation], first["script"] + n])
        add["jaxpr"]([equation, 0, name, name, n, first["jaxpr"] + n])
        add["stablehlo"]([name, name, equation, [equation], first["stablehlo"] + n])
        add["hlo"]([f"{n}{name}", name, "main", None, [equation], "inferred", name, first["hlo"] + n])
        add["kernels"]([f"{n}{name}", "library", name, [equation], [], name, name])
        add["passes"]([n, name, name, True, 1, 1, 1, first["passes"] + n])
        document["fates"]["rows"].append([equation, name, n, name if n % 2 else "fused", name, f"{n}{name}"])
        cost = [1, 1, 2, 1.0, 0.1, 0.01]
        document["summary"]["rows"].append([f"{n}{name}", name, [equation], [f"{name}:{n}"], *cost])
        document["code"][f"{n}{name}"] = {}
    document["options"] = dict(zip(names[:40], names[40:80], strict=True))
    return document


VIEWS = "[...document.querySelectorAll('#tabs button')].map(b => b.id)"
STRANGE = ("[...document.querySelectorAll('img, svg script, #panes script, #panes style, #panes link, "
           "iframe, object, embed, form:not(#search), base, a, [onerror], [onload], [href], [src]')].length")


def test_two_hundred_names_in_one_page_stay_text_and_reach_nothing(page):
    shown = page(crowd())
    assert len(NAMES) >= 200
    for pane in ("script", "jaxpr", "stablehlo", "hlo"):
        drawn = shown.run(f"document.querySelector('#view-{pane}').textContent")
        for name in NAMES.values():
            wanted = visible(name.replace("\n", " "))[:60]
            assert wanted in drawn or "\t" in wanted, (pane, name[:80])
    for view in shown.run(VIEWS):
        shown.run(f"document.getElementById('{view}').click()")
        for scrolled in range(0, 12_000, 600):
            shown.run(f"document.querySelectorAll('.view').forEach(v => v.scrollTop = {scrolled})")
            shown.tab.wait_for_timeout(20)
        assert shown.run(STRANGE) == 0, view
    shown.run("document.getElementById('tab-stages').click()")
    for n in range(0, len(NAMES), 3):  # each is selected once: the foot and the kernel's pane say its name
        shown.run(f"location.hash = 'e{100 + n}'")
        shown.tab.wait_for_timeout(5)
    assert shown.run(STRANGE) == 0
    assert shown.run("window.pwned") is None


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_notebooks_frame_a_table_and_json_keep_it_text(name, tmp_path):
    def shape(text):
        return [(tag, sorted(a)) for tag, a in Elements(text).found]

    document, plain_one = hostile(name), hostile("harmless")
    assert shape(embed(document)) == shape(embed(plain_one))
    assert Elements(embed(document)).found[0][1]["srcdoc"] == render(document).replace("\r\n", "\n")
    assert isinstance(repr(Shown(document)), str)
    if name not in HALVES:  # half a character cannot be written to any file; `save` says so
        saved = save(document, str(tmp_path / "walk.json"))
        assert json.loads(open(saved, encoding="utf-8").read()) == document
    summary = SavedWalk(document).summary()
    for frame in (summary, Measured(pd.DataFrame({name: [name]}))):
        assert "<script" not in frame._repr_html_().lower() and "<img" not in frame._repr_html_().lower()
    shelf = Shelf({"level": [name], "exercise": [name], "task": [name], "state": ["new"]})
    assert shape(shelf._repr_html_()) == shape(shelf.assign(level="a", exercise="b", task="c")._repr_html_())


@pytest.mark.filterwarnings("ignore:Glyph")  # a letter that the font lacks is drawn as a box
@pytest.mark.parametrize("names", [list(NAMES.values())[n:n + 24] for n in range(0, len(NAMES), 24)],
                         ids=lambda names: "")
def test_pictures_draw_the_names_as_they_are(names):
    from test_plots import table as bench_table
    from test_plots import walk as bars

    from oplab.views.plots import times
    from oplab.views.timeline import timeline

    for drawn in (times({names[0]: bench_table(dict.fromkeys(names[:8], 0), None)}),
                  timeline(bars([(name, 10.0 + n, ["e0"]) for n, name in enumerate(names)]))):
        bundle, _ = drawn._repr_mimebundle_()
        assert [tag for tag, _ in Elements(bundle["text/html"]).found] == ["img"]
        assert html.escape(drawn.alt) in bundle["text/html"]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("names", [list(NAMES.values())[n:n + 24] for n in range(0, len(NAMES), 24)],
                         ids=lambda names: "")
def test_the_roof_and_the_matrix_keep_names_as_text(names):
    from oplab.views.matrix import Support
    from oplab.views.roof import roofline

    rows = pd.DataFrame({"instruction": names, "flops": 10.0, "bytes": 10.0, "intensity": 1.0,
                         "flops_per_s": 2e6, "attainable_flops_per_s": 4e6, "share_of_limit": 0.5})
    rows.attrs["peaks"] = {"device": names[0], "dtype": names[-1], "measured": False,
                           "flops_per_s": 8e6, "bytes_per_s": 4e6}
    bundle, _ = roofline({names[0]: rows})._repr_mimebundle_()
    assert [tag for tag, _ in Elements(bundle["text/html"]).found] == ["img"]

    def matrix(words):
        return Support({"operator": words, "implementation": words, "platform": "cpu", "supported": False,
                        "reason": words, "nearest": words, "note": words})

    def shape(table):
        return [(tag, sorted(a)) for tag, a in Elements(table._repr_html_()).found]

    assert {tag for tag, _ in shape(matrix(names))} == {tag for tag, _ in shape(matrix(["plain"]))}
    assert not [a for _, attributes in shape(matrix(names)) for a in attributes if a.startswith("on")]
    assert isinstance(repr(matrix(names)), str)


def test_a_label_starts_no_formula():
    for name in NAMES.values():
        label = plain(name)
        assert "$" not in label.replace(r"\$", "") and len(label) <= 40 + label.count("$")
        assert all(c.isprintable() for c in label)


