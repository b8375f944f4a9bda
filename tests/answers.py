"""Runs a notebook's code cells and, where they stand, the answers that are folded away in its prose.

    python tests/answers.py notebooks/04_where_did_it_go.ipynb

An answer is a Python block in a `<details>`; it may use whatever the notebook has defined above it.
"""

import os
import re
import sys
from pathlib import Path

import matplotlib
import nbformat
from IPython.core.interactiveshell import InteractiveShell

ANSWER = re.compile(r"```python\n(.*?)```", re.DOTALL)
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)


def pieces(notebook):
    """(where, source, whether it may raise): the cells of code, and between them the answers."""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code":
            yield f"cell {number}", cell.source, "raises-exception" in cell.metadata.get("tags", [])
            continue
        for folded in FOLDED.findall(cell.source):
            for source in ANSWER.findall(folded):
                yield f"the answer in cell {number}", source, False


def main(file):
    notebook = nbformat.read(file, as_version=4)
    os.chdir(Path(file).parent)
    matplotlib.use("agg")
    shell = InteractiveShell.instance()
    answers = 0
    for where, source, may_raise in pieces(notebook):
        found = shell.run_cell(source, silent=True)
        if found.error_in_exec and not may_raise or found.error_before_exec:
            sys.exit(f"{where} raises {found.error_in_exec or found.error_before_exec!r}")
        answers += where.startswith("the answer")
    print(f"{answers} answers run")


if __name__ == "__main__":
    main(sys.argv[1])
