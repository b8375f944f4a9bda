"""The picture of a support table: what runs down the side, platforms along the top, and in each cell a word.

The table itself is long, one row a cell, so that people can filter it. Its picture is the matrix that they
have in mind. A cell that says no carries a number, and the sentence with that number stands below: a reason
that is only seen by pointing at it is not seen on paper, in a terminal or by a screen reader.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

import pandas as pd

LABELS = (["operator", "implementation"], ["equation", "primitive", "line", "text"])
CELL = ["platform", "supported", "reason", "nearest", "note"]
MOST_ROWS = 24  # of a longer matrix only the rows with a no are drawn

_LEFT = "text-align:left;white-space:nowrap;"
_STYLES = {  # translucent, for light and dark pages alike; the word in the cell says the same
    "yes": "background:rgba(0,158,115,.16)",
    "no": "background:rgba(213,94,0,.22);font-weight:600",
    "?": "background:rgba(128,128,128,.2)",
    "": "",
}


class Support(pd.DataFrame):
    """A table of who runs where, drawn as a matrix. Filter it as any DataFrame: `t[~t.supported]`."""

    @property
    def _constructor(self) -> type:
        return Support

    def __repr__(self) -> str:
        return _Matrix(self).text() if _drawable(self) else repr(pd.DataFrame(self))

    def _repr_html_(self) -> str:
        return _Matrix(self).html() if _drawable(self) else pd.DataFrame(self)._repr_html_()


def _labels(table: pd.DataFrame) -> list[str]:
    return next((labels for labels in LABELS if {*labels, *CELL} <= set(table)), [])


def _drawable(table: pd.DataFrame) -> bool:
    """A table of which columns were cut away, or cells stand twice, is pandas' to print."""
    labels = _labels(table)
    return bool(labels) and len(table) > 0 and not table.duplicated([*labels, "platform"]).any()


class _Matrix:
    """The cells by row and platform, and the sentences in the order in which the cells first need them."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.labels = _labels(table)
        self.platforms = list(dict.fromkeys(table["platform"]))
        self.rows: dict[tuple[str, ...], dict[str, str]] = {}
        self.reasons: dict[tuple[str, str], int] = {}
        for cell in table.itertuples():
            label = tuple("" if pd.isna(v) else str(v) for v in (getattr(cell, name) for name in self.labels))
            self.rows.setdefault(label, {})[cell.platform] = self._word(cell)
        self.left_out = 0
        if len(self.rows) > MOST_ROWS:
            kept = {label: row for label, row in self.rows.items()
                    if label[0] == "whole" or any(not word.startswith("yes") for word in row.values())}
            self.left_out, self.rows = len(self.rows) - len(kept), kept

    def _word(self, cell) -> str:
        known = not pd.isna(cell.supported)
        if known and cell.supported:
            said = [words for words in cell.note.split("; ") if not words.startswith("calls ") and words]
            return ", ".join(["yes", *said])
        # The cell says whose reason it is and where, so that one sentence serves many cells.
        reason = cell.reason.removeprefix(f"{getattr(cell, 'operator', '')} has ")
        sentence = _there(reason, cell.platform), _there(cell.nearest, cell.platform)
        return f"{'no' if known else '?'} [{self.reasons.setdefault(sentence, len(self.reasons) + 1)}]"

    def _below(self) -> Iterable[str]:
        if self.left_out:
            rows = "row says" if self.left_out == 1 else "rows say"
            yield f"{self.left_out} more {rows} yes on every platform here."
        for (reason, nearest), number in self.reasons.items():
            yield f"[{number}] {_sentence(reason, nearest)}"

    def _grid(self) -> list[list[str]]:
        """Row by row; a label that repeats the one above is left blank, as in a book."""
        grid, above = [], ()
        for label, row in self.rows.items():
            repeated = bool(above) and label[0] == above[0]
            grid.append(["" if repeated else label[0], *label[1:], *(row.get(p, "") for p in self.platforms)])
            above = label
        return grid

    def text(self) -> str:
        lines = [[*self.labels, *self.platforms], *self._grid()]
        lines = [[cell if len(cell) <= 40 else f"{cell[:39]}…" for cell in line] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        drawn = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        below = list(self._below())
        return "\n".join([*drawn, *([""] if below else []), *below])

    def html(self) -> str:
        names = self.labels + self.platforms
        head = "".join(f'<th scope="col" style="{_LEFT}">{_safe(name)}</th>' for name in names)
        body = "".join(self._html_row(line) for line in self._grid())
        below = "".join(f'<p style="margin:.3em 0;max-width:60em">{_safe(s)}</p>' for s in self._below())
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f'<div><table style="margin-bottom:.8em">{table}</table>{below}</div>'

    def _html_row(self, line: list[str]) -> str:
        many = len(self.labels)
        sentences = {f"[{number}]": _sentence(*said) for said, number in self.reasons.items()}
        cells = [f'<th scope="row" style="{_LEFT}">{_safe(line[0])}</th>']
        for name, value in zip(self.labels[1:], line[1:many], strict=True):
            shown = f"<code>{_safe(value)}</code>" if name == "text" else _safe(value)
            cells.append(f'<td style="{_LEFT}">{shown}</td>')
        for word in line[many:]:
            verdict, _, number = word.partition(" ")
            style = _LEFT + _STYLES[verdict.rstrip(",")]
            hint = f' title="{_safe(sentences[number])}"' if number in sentences else ""
            cells.append(f'<td style="{style}"{hint}>{_safe(word)}</td>')
        first = self.labels[0] == "operator" and line[0]  # of an operator's rows, which get a rule above them
        style = ' style="border-top:1px solid rgba(128,128,128,.5)"' if first else ""
        return f"<tr{style}>{''.join(cells)}</tr>"


def _sentence(reason: str, nearest: str) -> str:
    reason = f"N{reason[1:]}" if reason.startswith("no ") else reason  # a name keeps its first letter
    return f"{reason}. Instead: {nearest}." if nearest else f"{reason}."


def _there(text: str, platform: str) -> str:
    name = re.escape(platform)
    return re.sub(rf"\bnamed '{name}'", "of that name", re.sub(rf"\bon {name}(?![\w-])", "there", text))


def _safe(text: str) -> str:
    return html.escape(text)
