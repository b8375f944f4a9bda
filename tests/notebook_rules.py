"""What every notebook in notebooks/ must hold to, beyond running.

Each rule takes a notebook and yields a line for each fault in it. tests/test_notebooks_meta.py tries every
rule on the notebooks, and on bad ones made for it.
"""

import copy
import getpass
import platform
import re
from statistics import median

import nbformat

LONGEST_CELL = 12  # lines
FEW_WORDS, MANY_WORDS, MOST_WORDS = 15, 45, 80  # of prose in a cell: between these in the middle, never more
SHORTEST_WORDS = 20  # characters that say what a picture shows
MOST_SKIPPED, MOST_IGNORED = 1, 8  # cells in one notebook

MARKER = re.compile(r"^\s*#\s*(NBVAL_[A-Z_]+)\s*$", re.MULTILINE)
PATH = re.compile(
    r"(?<![\w.:/~-])/(?:home|Users|root|tmp|work|opt|usr|var|private|mnt|srv|content)/[^\s'\"<>]+"
    r"|\b[A-Za-z]:\\[^\s'\"<>]+"
)
TIMING = re.compile(
    r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?\s?"
    r"(?:ns|us|µs|μs|ms|s|sec|(?:milli|micro|nano)?seconds?)\b(?!\s*=)"
)
MARKUP = re.compile(r"<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL)
NOT_PROSE = re.compile(r"<details>.*?</details>|^```.*?^```|^#+ [^\n]*", re.DOTALL | re.MULTILINE)
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")
NO_WORDS = re.compile(r"<[\w. ]+( at 0x\w+| size )")  # <Figure size 640x480 with 1 Axes>


def marks(cell):
    """The tags and comments that tell nbval to skip or ignore: {"skip", "ignore-output", ...}."""
    tags = [tag for tag in cell.metadata.get("tags", []) if tag.startswith("nbval-")]
    comments = [comment.lower().replace("_", "-") for comment in MARKER.findall(cell.source)]
    return {name.removeprefix("nbval-") for name in (*tags, *comments)}


def code_cells(notebook):
    """(number, cell), numbered from 1 over all cells, as a reader counts them."""
    return [(number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]


def html_of(cell):
    """The HTML that a cell shows: its outputs', or its prose, where Markdown lets it through."""
    if cell.cell_type == "markdown":
        yield cell.source
    for output in cell.get("outputs", ()):
        yield output.get("data", {}).get("text/html", "")


def words_of(cell):
    """What a cell says: its prose, or the text of its outputs; of HTML what stands between the tags."""
    if cell.cell_type == "markdown":
        yield cell.source
    for output in cell.get("outputs", ()):
        if output.output_type == "error":
            yield "\n".join([output.ename, output.evalue, *output.traceback])
        yield output.get("text", "")
        for kind, data in output.get("data", {}).items():
            if kind.startswith("text/"):
                yield MARKUP.sub(" ", data) if kind == "text/html" else data


def stripped(notebook):
    """A cell without a run is compared with nothing, so nbval passes it whatever it does now."""
    for number, cell in code_cells(notebook):
        if cell.source.strip() and cell.execution_count is None and "skip" not in marks(cell):
            yield f"cell {number} has no stored run: make outputs"


def much_ignored(notebook):
    cells = code_cells(notebook)
    for mark, most in (("skip", MOST_SKIPPED), ("ignore-output", MOST_IGNORED)):
        numbers = [number for number, cell in cells if mark in marks(cell)]
        if len(numbers) > most:
            yield f"{len(numbers)} cells are marked nbval-{mark}, at most {most} may be: {numbers}"
    if cells and not any(cell.outputs and not marks(cell) & {"skip", "ignore-output"} for _, cell in cells):
        yield "no cell's output is compared"


def personal(notebook):
    """Paths, users and hosts of the machine where the outputs were stored."""
    names = [name for name in (getpass.getuser(), platform.node()) if len(name) > 4]
    for number, cell in code_cells(notebook):
        for text in (*words_of(cell), *html_of(cell)):
            yield from (f"cell {number} shows the path {path}" for path in PATH.findall(text))
            yield from (f"cell {number} shows the name {name}" for name in names if name in text)


def timings(notebook):
    """A time is true on one machine only. Plots show them; text, stored or in prose, does not."""
    for number, cell in enumerate(notebook.cells, 1):
        for text in words_of(cell):
            yield from (f"cell {number} states a time, {time!r}" for time in TIMING.findall(text))


def ill_formed(notebook):
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        yield f"the format is {notebook.nbformat}.{notebook.nbformat_minor}, not 4.5: make outputs"
    identities = [cell.get("id") for cell in notebook.cells]
    if len(set(identities)) < len(identities) or None in identities:
        yield "cells need an id each, no two the same"
    try:
        nbformat.validate(copy.deepcopy(notebook))
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {error.message}"
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernel must be python3, which every Jupyter has"
    if "widgets" in notebook.metadata:
        yield "the state of widgets is stored, which only the machine that made it can show"


def long_cells(notebook):
    for number, cell in code_cells(notebook):
        lines = len(cell.source.strip().splitlines())
        if lines > LONGEST_CELL:
            yield f"cell {number} has {lines} lines, at most {LONGEST_CELL} are read"


def mute_pictures(notebook):
    """A picture needs words for those who do not see it: in its metadata, its cell's, or as its text."""
    for number, cell in enumerate(notebook.cells, 1):
        for words in _spoken(cell):
            if len(words.strip()) < SHORTEST_WORDS:
                yield f"cell {number} shows a picture and says only {words!r}, not what there is to see"


def _spoken(cell):
    """For each picture in a cell, the words that stand for it."""
    for output in cell.get("outputs", ()):
        data, metadata = output.get("data", {}), output.get("metadata", {})
        text = data.get("text/plain", "")
        words = [metadata.get("alt"), cell.metadata.get("alt"), "" if NO_WORDS.match(text) else text]
        words += [metadata.get(kind, {}).get("alt") for kind in PICTURES]
        if any(kind in data for kind in PICTURES):
            yield max(filter(None, words), key=len, default="")
    if cell.cell_type == "markdown":
        yield from re.findall(r"!\[(.*?)\]\(", cell.source, re.DOTALL)
    for html in html_of(cell):
        for tag in re.findall(r"<img\b[^>]*>", html):
            alt = re.search(r"""\balt\s*=\s*(?:"([^"]*)"|'([^']*)')""", tag)
            yield alt[1] or alt[2] or "" if alt else ""


def missing_glyphs(notebook):
    """matplotlib draws an empty box for a letter that its font lacks, and warns."""
    for number, cell in code_cells(notebook):
        for text in words_of(cell):
            yield from (f"cell {number}: {found}" for found in re.findall(r"Glyph \d+ .*missing.*", text))


def idle_predictions(notebook):
    """A prediction is put to the test by the very next cell."""
    after = [*notebook.cells[1:], None]
    for number, (cell, following) in enumerate(zip(notebook.cells, after), 1):
        predicts = cell.cell_type == "markdown" and "### Predict" in cell.source
        if predicts and (following is None or following.cell_type != "code"):
            yield f"cell {number} asks for a prediction, and no code cell follows that would test it"


def quiet_failures(notebook):
    """A cell that is allowed to fail is there to show an error: where it shows none, its lesson is lost."""
    for number, cell in code_cells(notebook):
        allowed = "raises-exception" in cell.metadata.get("tags", [])
        if allowed and not any(output.output_type == "error" for output in cell.outputs):
            yield f"cell {number} should fail, and nothing failed"


def uneven_prose(notebook):
    """Neither a lecture nor a telegram between two cells that run. Folded answers and code do not count."""
    lengths = {n: len(_prose(cell).split()) for n, cell in enumerate(notebook.cells, 1)
               if cell.cell_type == "markdown"}
    for number, words in lengths.items():
        if words > MOST_WORDS:
            yield f"cell {number} has {words} words, at most {MOST_WORDS} are read in one go"
    if lengths and not FEW_WORDS <= median(lengths.values()) <= MANY_WORDS:
        yield (f"the cells of prose have {median(lengths.values()):.0f} words in the middle, "
               f"{FEW_WORDS} to {MANY_WORDS} are wanted")


def _prose(cell):
    return MARKUP.sub(" ", NOT_PROSE.sub("", cell.source))


RULES = [stripped, much_ignored, personal, timings, ill_formed, long_cells, mute_pictures, missing_glyphs,
         idle_predictions, quiet_failures, uneven_prose]
