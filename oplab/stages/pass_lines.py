"""Which equation each line of the passes' text belongs to, by the tags in the compiler's own lines.

The passes' text is shown without tags, so what they said is kept beside it: it lets a line that a pass took
out or put in light up its equation.
"""

from __future__ import annotations

import pandas as pd

from ..provenance import Tagged
from .hlo import parse_line
from .passes import Dump
from .stage import frame

COLUMNS = ["text_line", "equations"]


def table(dump: Dump, tagged: Tagged) -> pd.DataFrame:
    """One row per line of `passes.text` that carries a tag: text_line (from 1), equations."""
    rows, at = [], 0
    for index, (added, removed, _) in enumerate(dump.changes):
        if index and not added and not removed:
            continue
        at += 1  # the heading
        if not index:
            continue
        for line in (*removed, *added):
            at += 1
            parts = parse_line(line, dump.known) if "#" in line else None
            if parts and (owners := tagged.of(parts.op_name)):
                rows.append((at, tuple(e.id for e in owners)))
    return frame(rows, COLUMNS)
