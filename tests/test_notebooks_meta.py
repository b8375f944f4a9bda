"""The notebooks keep tests/notebook_rules.py, and each rule finds what it is there for."""

from pathlib import Path

import nbformat
import pytest
from nbformat import v4
from notebook_rules import (
    RULES,
    idle_predictions,
    ill_formed,
    long_cells,
    missing_glyphs,
    much_ignored,
    mute_pictures,
    personal,
    quiet_failures,
    stripped,
    timings,
    uneven_prose,
)

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
BIGGEST_BYTES = 2_000_000


def by_name(rule):
    return rule.__name__


def test_there_are_notebooks():
    assert NOTEBOOKS, "notebooks/ holds no notebook, so nothing was tested"


@pytest.mark.parametrize("rule", RULES, ids=by_name)
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook(file, rule):
    assert not list(rule(nbformat.read(file, as_version=nbformat.NO_CONVERT)))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_is_small(file):
    assert file.stat().st_size < BIGGEST_BYTES


# Notebooks made to keep the rules, or to break one


def notebook(*cells):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = v4.new_notebook(cells=list(cells), metadata={"kernelspec": kernel})
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return made


def code(source="f()", *outputs, count=1, tags=(), **metadata):
    metadata |= {"tags": list(tags)} if tags else {}
    return v4.new_code_cell(source, outputs=list(outputs), execution_count=count, metadata=metadata)


ENOUGH = "And so many words more that somebody who opens this cell finds something to read in it."


def prose(text):
    """A cell with enough words, whatever the text."""
    return v4.new_markdown_cell(f"{text}\n\n{ENOUGH}")


def shown(data, **metadata):
    return v4.new_output("display_data", data=data, metadata=metadata)


def says(text):
    """A cell that prints."""
    return code("print(x)", v4.new_output("stream", text=text))


FIGURE = "<Figure size 640x480 with 1 Axes>"
GOOD = [
    prose("# A title\n\n20 minutes. The matrix has 64 rows and s = 3; see `/home` and 5 steps."),
    prose("![a graph with two boxes and an arrow](g.png)"),
    prose("### Predict\n\nHow many?"),
    code("x = 1"),
    says("1\nmedian_us  -\n12 instructions, 3 mul, 24.5 MiB\nx = 4s = 5\n"),
    code("plot()", shown({"image/png": "AAAA", "text/plain": "two bars, the second half as long"})),
    code("plot()", shown({"image/png": "AAAA", "text/plain": FIGURE}), alt="a line that falls to the right"),
    code("plot()", shown({"image/png": "AAAA"}, **{"image/png": {"alt": "a line that falls to the right"}})),
    code("page", shown({"text/html": "<table><td>3</td></table><img alt='a box between arrows' src='x'>"})),
    code("sleep()", count=None, tags=["nbval-skip"]),
    code("", count=None),
]


@pytest.mark.parametrize("rule", RULES, ids=by_name)
def test_a_good_notebook_passes(rule):
    assert list(rule(notebook(*GOOD))) == []


def ignored(times, source="f()", tags=("nbval-ignore-output",)):
    return [code(source, tags=tags) for _ in range(times)]


GLYPH = "oplab/views/plots.py:12: UserWarning: Glyph 8594 (\\N{RIGHTWARDS ARROW}) missing from font(s) X.\n"
TRACEBACK = v4.new_output("error", ename="E", evalue="e", traceback=['File "/usr/lib/x.py", line 3'])
BAD = [  # (what is wrong, the rule that must say so, the cells)
    ("stripped", stripped, [code("print(1)", count=None)]),
    ("skipped by a comment", much_ignored, ignored(2, "# NBVAL_SKIP\nf()", ())),
    ("ignored by a tag", much_ignored, ignored(9)),
    ("ignored both ways", much_ignored, ignored(5) + ignored(5, "#NBVAL_IGNORE_OUTPUT\nf()", ())),
    ("a path in a stream", personal, [says("saved /home/ada/walk.html")]),
    ("a path of a Mac", personal, [code("f()", shown({"text/plain": "'/Users/ada/x'"}))]),
    ("a path of Windows", personal, [says(r"C:\Users\ada\x")]),
    ("a temporary path", personal, [code("f()", shown({"text/html": "<a href='/tmp/x/y.html'>page</a>"}))]),
    ("a path in a traceback", personal, [code("f()", TRACEBACK)]),
    ("milliseconds", timings, [says("took 12.3 ms")]),
    ("microseconds in a table", timings, [code("f()", shown({"text/html": "<td>1,200 µs</td>"}))]),
    ("seconds in prose", timings, [prose("It takes 0.5 s here.")]),
    ("seconds in words", timings, [prose("It takes 3 seconds here.")]),
    ("a long cell", long_cells, [code("x\n" * 13)]),
    ("a mute figure", mute_pictures, [code("f()", shown({"image/png": "AA", "text/plain": FIGURE}))]),
    ("a mute drawing", mute_pictures, [code("f()", shown({"image/svg+xml": "<svg/>"}))]),
    ("a mute tag", mute_pictures, [code("f()", shown({"text/html": "<img src='x' alt=''>"}))]),
    ("a mute picture in prose", mute_pictures, [prose("![](graph.png)")]),
    ("a picture with one word", mute_pictures, [code("f()", shown({"image/png": "AA"}), alt="plot")]),
    ("a tag with one word", mute_pictures, [code("f()", shown({"text/html": "<img src='x' alt=\"plot\">"}))]),
    ("a letter the font lacks", missing_glyphs, [says(GLYPH)]),
    ("a prediction answered in prose", idle_predictions, [prose("### Predict"), prose("Two."), code()]),
    ("a prediction at the end", idle_predictions, [prose("## Fusion\n\n### Predict\n\nHow many?")]),
    ("a failure that does not fail", quiet_failures, [code(tags=["raises-exception"])]),
    ("a lecture", uneven_prose, [prose(""), prose(""), prose("word " * 90)]),
    ("only long cells", uneven_prose, [prose("word " * 50)]),
    ("telegrams", uneven_prose, [v4.new_markdown_cell("Two. Why?")]),
]


@pytest.mark.parametrize("rule, cells", [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_one_fault_trips_its_rule_and_no_other(rule, cells):
    bad = notebook(says("1"), *cells)
    assert [other.__name__ for other in RULES if list(other(bad))] == [rule.__name__]


def test_a_notebook_that_compares_nothing_is_refused():
    assert list(much_ignored(notebook(code("x = 1"), *ignored(1))))


@pytest.mark.filterwarnings("ignore")  # nbformat warns of what it will refuse one day
@pytest.mark.parametrize("spoil", [
    lambda bad: bad.metadata.pop("kernelspec"),
    lambda bad: bad.metadata.kernelspec.update(name="my-env"),
    lambda bad: bad.metadata.update(widgets={}),
    lambda bad: bad.update(nbformat_minor=4),
    lambda bad: bad.cells[0].update(id=bad.cells[1].id),
    lambda bad: bad.cells[0].pop("id"),
    lambda bad: bad.cells[0].pop("metadata"),
])
def test_an_ill_formed_notebook_is_refused(spoil):
    bad = notebook(says("1"), says("2"))
    assert not list(ill_formed(bad))
    spoil(bad)
    assert list(ill_formed(bad))
