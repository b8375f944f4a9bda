"""Memory as the page draws it: every buffer as a rectangle, from its first step to its last, where it lies.

The blocks of memory that the compiler planned stand on one another, arguments at the bottom and temporaries
on top, so that a height is always the same bytes: what is reused shows as several rectangles in one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = ("argument", "constant", "output", "temporary")  # from the bottom up


def memory(buffers: list[dict[str, Any]], hlo: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the memory pane reads, from the document's `buffers` and the page's rows of the HLO; None without.

    buffers: [name, row of the HLO or -1, bytes, kind, first step, last step, bottom, at the peak, in use].
    """
    if not buffers:
        return None
    rows = {row["label"]: n for n, row in enumerate(hlo)}
    bottom, blocks, total = _stacked(buffers)
    drawn = [[str(b["buffer"]), rows.get(str(b["instruction"]), -1), b["bytes"], KINDS.index(b["kind"]),
              b["first"], b["last"], bottom[b["allocation"]] + b["offset"], int(b["at_peak"]),
              b["in_use_bytes"], ", ".join(map(str, b["shares_with"]))]
             for b in buffers]
    steps = 1 + max(b["last"] for b in buffers)
    return {"buffers": drawn, "kinds": KINDS, "blocks": blocks, "total": total, "steps": steps,
            "peak": max(b["in_use_bytes"] for b in buffers)}


def _stacked(buffers: list[dict[str, Any]]) -> tuple[Mapping[int, int], list[int], int]:
    """Where each allocation begins, how many bytes of each kind there are, and how many in all."""
    sizes = {b["allocation"]: (KINDS.index(b["kind"]), b["allocation_bytes"]) for b in buffers}
    bottom, blocks, total = {}, [0] * len(KINDS), 0
    for allocation in sorted(sizes, key=lambda a: (sizes[a][0], a)):
        kind, size = sizes[allocation]
        bottom[allocation] = total
        blocks[kind] += size
        total += size
    return bottom, blocks, total
