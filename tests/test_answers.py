"""The folded answers of the notebooks' exercises run, each after all the cells of its notebook.

An answer that is code stands between ```python and ``` inside <details>; most of them end in an assert.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from oplab.tools.notebooks import execute

ANSWER = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def answers(notebook):
    folded = [cell.source for cell in notebook.cells if "<details" in cell.source]
    return [code for text in folded for code in ANSWER.findall(text)]


def with_answers(notebook):
    """What a learner runs who unfolds every answer: the code cells, and after them the answers."""
    cells = [cell for cell in notebook.cells
             if cell.cell_type == "code" and "nbval-skip" not in cell.metadata.get("tags", [])]
    return v4.new_notebook(cells=cells + [v4.new_code_cell(code) for code in answers(notebook)])


def read(file):
    return nbformat.read(file, as_version=4)


@pytest.mark.parametrize("file", [f for f in NOTEBOOKS if answers(read(f))], ids=lambda file: file.stem)
def test_answers_run(file, monkeypatch):
    monkeypatch.setenv("OPLAB_STABLE", "1")  # nothing is recorded as solved, and little is measured
    assert execute(with_answers(read(file)), file.parent) is None


def test_a_wrong_answer_is_found(tmp_path):
    folded = "**1.** Add.\n\n<details><summary>Answer</summary>\n\n```python\nassert x == 2\n```\n</details>"
    notebook = v4.new_notebook(cells=[v4.new_code_cell("x = 1"), v4.new_markdown_cell(folded)])
    assert "cell 2 raised AssertionError" in execute(with_answers(notebook), tmp_path)
