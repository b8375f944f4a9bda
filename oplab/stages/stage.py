"""The one record that every stage hands out: the compiler's own words, and a table of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def read(table: dict[str, Any]) -> pd.DataFrame:
    """A table out of a document: columns and rows, whose lists are tuples again."""
    rows = [[tuple(v) if isinstance(v, list) else v for v in row] for row in table["rows"]]
    return frame(rows, table["columns"])


@dataclass(frozen=True)
class Stage:
    """One stage of a walk.

    name: "script", "jaxpr", "stablehlo", "passes", "hlo", "kernels" or "execution".
    text: the compiler's own text, without what is oplab's (tags), this machine's (folders, addresses) or one
        run's (numbers given by chance), and without tables of stack frames: the script stage has them.
    table: one row per line, equation, op, instruction, kernel or executed thunk. A row that stands in the
        text has its line there in `text_line`, counted from 1.
    """

    name: str
    text: str
    table: pd.DataFrame

    @classmethod
    def read(cls, name: str, part: dict[str, Any]) -> Stage:
        """A stage out of a document, which holds its text and its table."""
        return cls(name, part["text"], read(part["table"]))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return _head(self.text)


def _head(text: str, lines: int = 100) -> str:
    """The first lines of a long text, and how many more there are."""
    head = text.split("\n", lines)
    if len(head) <= lines:
        return text
    return "\n".join(head[:lines]) + f"\n... {head[lines].count(chr(10)) + 1} more lines in .text"
