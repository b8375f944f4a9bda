"""The map from operators to kernels as a picture: operators down the side, platforms along the top.

Each place holds the implementations that the map knows: a filled box for an entry, a dotted frame for a hole.
"""

from __future__ import annotations

import matplotlib
import pandas as pd

from oplab.views.picture import LOOK, WIDTH, Picture, listed, plain

COLUMNS = ["operator", "implementation", "platform", "supported"]
ROW, HEAD = 0.5, 1.2  # inches: height of an operator's row, and of what stands above them
_YES = {"fc": "#8FD3B6", "ls": "-"}
_NO = {"fc": "white", "ls": ":"}


@matplotlib.rc_context(LOOK)
def support(table: pd.DataFrame, title: str = "The map from operators to kernels") -> Picture:
    """The table of `oplab.support()`, or some of its rows, with a box for every cell of it.

    Raises TypeError for another table, and ValueError for an empty one.
    """
    if not isinstance(table, pd.DataFrame) or not set(COLUMNS) <= set(table):
        raise TypeError("support expects the table that oplab.support() returns for operators.")
    if table.empty:
        raise ValueError("This table has no row, so there is nothing to draw.")
    operators, kinds, platforms = (list(table[column].unique()) for column in COLUMNS[:3])
    picture = Picture(f"{title}. {_alt(table, kinds)}", HEAD + ROW * len(operators))
    picture.frame(title, [], ["Filled: an entry. Dotted: a hole."])
    axes = picture.subplots()
    axes.set(xlim=(-0.5, len(platforms) - 0.5), ylim=(len(operators) - 0.5, -0.5))
    widest = max(len(str(kind)) for kind in kinds)
    letters = len(platforms) * len(kinds) * (widest + 2.5)
    size = min(14.0, 104 * WIDTH / letters)  # points: what fits side by side
    for cell in table.itertuples():
        aside = (kinds.index(cell.implementation) + 0.5) / len(kinds) - 0.5
        axes.text(platforms.index(cell.platform) + 0.96 * aside, operators.index(cell.operator),
                  plain(f"{cell.implementation:^{widest}}"), family="monospace", fontsize=size,
                  ha="center", va="center", color="black" if cell.supported else "#6E6E6E",
                  bbox={"boxstyle": "round", **(_YES if cell.supported else _NO)})
    axes.set_xticks(range(len(platforms)), [plain(p) for p in platforms])
    axes.set_yticks(range(len(operators)), [plain(o) for o in operators])
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return picture


def _alt(table: pd.DataFrame, kinds: list[str]) -> str:
    counts = [f"{int(rows['supported'].sum())} of {len(rows)} by {kind!r}"
              for kind, rows in ((kind, table[table["implementation"] == kind]) for kind in kinds)]
    return (f"Operators by platforms ({listed(table['platform'].unique())}), with a filled box for each entry"
            f" of the map and a dotted frame for each hole: {', '.join(counts)}.")
