"""One measured run as the page draws it: the run of median length, its thunks as bars in lanes.

A lane is not a thread: threads have other names in every version. Bars lie in one lane when they follow
one another, and in several when they overlap: parts of a kernel on several threads, or a loop and what runs
in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from oplab.display import stable


def timeline(execution: list[dict[str, Any]], hlo: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the timeline pane reads; None where nothing was executed, or where what varies is not shown.

    bars: [row of the HLO, start, duration, lane, which time it started in this run], in microseconds.
    """
    if not execution or stable():
        return None
    runs: dict[int, list[dict[str, Any]]] = {}
    for row in execution:
        runs.setdefault(row["run"], []).append(row)
    by_length = sorted(runs, key=lambda run: (_length(runs[run]), run))
    number = by_length[(len(by_length) - 1) // 2]
    rows = {row["label"]: n for n, row in enumerate(hlo)}
    bars = _bars([row for row in runs[number] if str(row["instruction"]) in rows], rows)
    lanes = 1 + max((bar[3] for bar in bars), default=0)
    return {"bars": bars, "lanes": lanes, "length": _length(runs[number]), "run": number, "runs": len(runs)}


def _length(rows: list[dict[str, Any]]) -> float:
    end = max(row["start_us"] + row["duration_us"] for row in rows)
    return end - min(row["start_us"] for row in rows)


def lanes(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows with start_us and duration_us in the order of their starts, each with the lowest lane that is free
    then; of two that begin together the longer one is lower.
    """
    free: list[float] = []  # lane -> when its last bar ended
    for row in sorted(rows, key=lambda row: (row["start_us"], -row["duration_us"])):
        lane = next((n for n, ended in enumerate(free) if ended <= row["start_us"] + 1e-3), len(free))
        free[lane:lane + 1] = [row["start_us"] + row["duration_us"]]
        yield row, lane


def _bars(run: list[dict[str, Any]], rows: dict[str, int]) -> list[list[Any]]:
    begin = min((row["start_us"] for row in run), default=0.0)
    times: Counter[str] = Counter()
    bars = []
    for row, lane in lanes(run):
        name = str(row["instruction"])
        times[name] += 1
        start, length = row["start_us"] - begin, row["duration_us"]
        bars.append([rows[name], round(start, 3), round(length, 3), lane, times[name]])
    return bars
