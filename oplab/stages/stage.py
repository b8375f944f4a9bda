"""The one record that every stage hands out: the compiler's own words, and a table of them."""

from __future__ import annotations

import html
from dataclasses import dataclass

import pandas as pd

_INTEGERS = {
    "line",
    "column",
    "library_line",
    "trips",
    "depth",
    "text_line",
    "index",
    "instructions",
    "added",
    "removed",
    "run",
}


def frame(rows: list, columns: list[str]) -> pd.DataFrame:
    """A table whose cells stay what they are: None stays None, and line numbers stay integers where one is
    missing.
    """
    table = pd.DataFrame(rows, columns=columns, dtype=object)
    for column in _INTEGERS & set(columns):
        table[column] = table[column].astype("Int64")
    return table


@dataclass(frozen=True)
class Stage:
    """One stage of a walk.

    name: "script", "jaxpr", "stablehlo", "passes", "hlo", "kernels" or "execution".
    text: the compiler's own text. A few things are taken out of it, ours, this machine's or a run's: the
    tags that
        oplab put in, memory addresses, and the folders that files lie in.
    table: one row per line, equation, op, instruction, kernel or executed thunk. A row that stands in the
    text has its
        line there in `text_line`, counted from 1.
    """

    name: str
    text: str
    table: pd.DataFrame

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        lines = self.text.count("\n") + 1
        return f"Stage({self.name!r}: {lines} lines, {len(self.table)} rows)\n{_head(self.text)}"

    def _repr_html_(self) -> str:
        return f'<pre style="line-height:1.25;font-size:12px">{html.escape(_head(self.text, 400))}</pre>'


def _head(text: str, lines: int = 60) -> str:
    """The first lines of a long text, and how many more there are."""
    head = text.split("\n", lines)
    if len(head) <= lines:
        return text
    return "\n".join(head[:lines]) + f"\n... {head[lines].count(chr(10)) + 1} more lines in .text"
