"""The picture of where a learner stands: a shelf for each level, a mark and a name for each exercise."""

from __future__ import annotations

import html

import pandas as pd

COLUMNS = {"level", "exercise", "task", "state"}
MARKS = {"solved": "●", "tried": "◐", "new": "○"}  # a shape each, for those who see no colours
_STYLES = {
    "solved": "background:rgba(0,158,115,.22)",
    "tried": "background:rgba(230,159,0,.22)",
    "new": "background:rgba(128,128,128,.12)",
}


class Shelf(pd.DataFrame):
    """A table of exercises with their states, drawn as shelves."""

    @property
    def _constructor(self) -> type:
        return Shelf

    def __repr__(self) -> str:
        if not COLUMNS <= set(self):
            return repr(pd.DataFrame(self))
        shelves = [f"{level}\n" + "\n".join(f"  {MARKS[b.state]} {b.exercise}" for b in books.itertuples())
                   for level, books in pd.DataFrame(self).groupby("level")]
        return "\n".join([*shelves, _tally(self)])

    def _repr_html_(self) -> str:
        if not COLUMNS <= set(self):
            return pd.DataFrame(self)._repr_html_()
        shelves = []
        for level, books in pd.DataFrame(self).groupby("level"):
            items = "".join(
                f'<li style="display:inline-block;margin:.2em;padding:.3em .7em;border-radius:4px;'
                f'{_STYLES[b.state]}" title="{html.escape(b.task)}">'
                f'<span aria-hidden="true">{MARKS[b.state]}</span> {html.escape(b.exercise)}'
                f'<span style="opacity:.75"> {b.state}</span></li>' for b in books.itertuples())
            shelves.append(f'<p style="margin:.6em 0 0"><strong>{html.escape(level)}</strong></p>'
                           f'<ul style="list-style:none;margin:0;padding:0">{items}</ul>')
        return f"<div>{''.join(shelves)}<p>{_tally(self)}</p></div>"


def _tally(table: pd.DataFrame) -> str:
    solved = int((table["state"] == "solved").sum())
    return f"{solved} of {len(table)} solved."
