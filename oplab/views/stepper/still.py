"""A few telling steps of a kernel side by side, as a picture: for where no page with a slider shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import matplotlib
from matplotlib.patches import Patch, Rectangle

from oplab.views.picture import LOOK, Picture, plain

FETCHED, KEPT, HELD, WRITTEN, WRONG = "#0072B2", "#9AD0F2", "#E69F00", "#7FCFB4", "#C43C00"
STEPS, OPERANDS = 4, 4  # columns and rows of the picture, at most
BLOCKS = 400  # drawn as written, at most: of more, this many at even distances
SPACE = 0.06  # of the picture of an array: left free around it


def strip(document: Mapping[str, Any]) -> Picture | None:
    """The first kernel that can be drawn, at up to four steps; None where there is none."""
    for kernel in document["kernels"]:
        rows = [operand for operand in kernel.get("operands", ()) if operand.get("at")]
        if kernel["steps"] and rows:
            return _picture(kernel, rows)
    return None


@matplotlib.rc_context(LOOK)
def _picture(kernel: Mapping[str, Any], operands: list[Mapping[str, Any]]) -> Picture:
    outs = [operand for operand in operands if operand["role"] == "out"][:2]
    ins = [operand for operand in operands if operand["role"] == "in"][: OPERANDS - len(outs)]
    rows = [_Row(operand) for operand in [*ins, *outs]]
    steps = telling(kernel, [row.at for row in rows])
    picture = Picture(_alt(kernel, rows, steps), 1.35 + 1.25 * len(rows))
    axes = picture.subplots(len(rows), len(steps), squeeze=False)
    for line, row in zip(axes, rows):
        for axis, step in zip(line, steps):
            _draw(axis, row, step)
        line[0].set_ylabel(plain(row.operand["name"], 14), rotation=0, ha="right", va="center")
    for axis, step in zip(axes[0], steps):
        axis.set_title(f"step {step}", fontsize=14, loc="center")
    keys = [(FETCHED, "", "fetched"), (KEPT, "..", "re-used"), (HELD, "", "output"),
            (WRITTEN, "//", "written")]
    if any(row.wrong for row in rows):
        keys.append((WRONG, "xx", "outside"))
    handles = [Patch(facecolor=c, hatch=h, edgecolor="black", label=name) for c, h, name in keys]
    title = f"{kernel['name']}: grid {' × '.join(map(str, kernel['grid'])) or 'of one step'}"
    picture.frame(title, handles, [])
    return picture


class _Row:
    """One operand, its columns unrolled. at: the block of each step. low, size: of each block, by axis."""

    def __init__(self, operand: Mapping[str, Any]) -> None:
        self.operand = operand
        self.at = list(accumulate(operand["at"]))
        self.low = [list(accumulate(column)) for column in operand["start"]]
        self.size = [list(accumulate(column)) for column in operand["size"]]
        self.axes = operand["drawn"]
        self.wrong = any(self.outside(block) for block in set(self.at))

    def extent(self, axis: int) -> int:
        return max(1, self.operand["shape"][axis])

    def outside(self, block: int) -> bool:
        spans = zip(self.low, self.size, self.operand["shape"])
        return any(low[block] >= whole or low[block] + size[block] <= 0 for low, size, whole in spans)

    def beside(self, block: int) -> list[tuple[int, int]]:
        """Where a block lies along the axes that are not drawn."""
        return [(low[block], size[block]) for axis, (low, size) in enumerate(zip(self.low, self.size))
                if axis not in self.axes]

    def written(self, step: int) -> list[int]:
        """The blocks that were left before a step, of the slice that is drawn there."""
        there = self.beside(self.at[step])
        left = {block for block, after in zip(self.at[:step], self.at[1:]) if block != after}
        return [block for block in sorted(left) if self.beside(block) == there and not self.outside(block)]

    def box(self, block: int) -> tuple[float, float, float, float]:
        """x, y, width, height of a block, in parts of the array; one axis alone is a bar."""
        ends = []
        for axis in self.axes:
            whole = self.extent(axis)
            low = min(max(0, self.low[axis][block]), whole)
            high = min(max(low, self.low[axis][block] + self.size[axis][block]), whole)
            ends.append((low / whole, (high - low) / whole))
        (y, h), (x, w) = [(0.0, 1.0)] * (2 - len(ends)) + ends
        return x, y, w, h


def telling(kernel: Mapping[str, Any], columns: Sequence[Sequence[int]]) -> list[int]:
    """The first step, the last, one with a finding or else the next, and one in the middle."""
    last = kernel["steps"] - 1
    found = [finding["step"] for finding in kernel["findings"] if finding["step"] is not None]
    change = next((s for s in range(1, last) if sum(c[s] != c[s - 1] for c in columns) > 1), 1)
    wanted = [0, *found[:1], change - 1 if change > 1 else 1, change, last // 2, last]
    kept: list[int] = []
    for step in [0, last, *wanted]:
        if 0 <= step <= last and step not in kept and len(kept) < STEPS:
            kept.append(step)
    return sorted(kept)


def _draw(axis: Any, row: _Row, step: int) -> None:
    axis.set(xlim=(-SPACE, 1 + SPACE), ylim=(1 + SPACE, -SPACE), xticks=[], yticks=[])
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    axis.set_box_aspect(_aspect(row))
    axis.add_patch(Rectangle((0, 0), 1, 1, facecolor="#ECE9E1", edgecolor="#5D5A53"))
    block, out = row.at[step], row.operand["role"] == "out"
    for done in _thinned(row.written(step)) if out else ():
        x, y, w, h = row.box(done)
        axis.add_patch(Rectangle((x, y), w, h, facecolor=WRITTEN, hatch="//", edgecolor="#5D5A53", lw=0.4))
    if row.outside(block):
        axis.add_patch(Rectangle((0, 0), 1, 1, facecolor="none", hatch="xx", edgecolor=WRONG, linewidth=2.5))
        return
    fresh = step == 0 or row.at[step - 1] != block
    colour, hatch = (HELD, "") if out else (FETCHED, "") if fresh else (KEPT, "..")
    x, y, w, h = row.box(block)
    axis.add_patch(Rectangle((x, y), w, h, facecolor=colour, hatch=hatch, edgecolor="black", linewidth=2))


def _thinned(blocks: list[int]) -> list[int]:
    return blocks[:: -(-len(blocks) // BLOCKS) or 1]


def _aspect(row: _Row) -> float:
    """Height over width: the array's own, within what a strip can show."""
    if len(row.axes) < 2:
        return 0.18
    return min(2.0, max(0.18, row.extent(row.axes[0]) / row.extent(row.axes[1])))


def _alt(kernel: Mapping[str, Any], rows: list[_Row], steps: list[int]) -> str:
    names = ", ".join(row.operand["name"] for row in rows)
    found = [finding["detail"] for finding in kernel["findings"]]
    said = f" Found: {found[0]}" if found else ""
    shown = ", ".join(map(str, steps))
    return f"The Pallas kernel {kernel['name']} at steps {shown}: which block of {names} it works on.{said}"
