"""The timeline: which instruction ran when, and which operators share it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from oplab.views.picture import COLOURS, HATCHES, LOOK, Picture, listed, plain, ran_on

LANES = 12  # instructions shown by name, all panels together; the shorter ones share one lane a panel
OPERATOR_OF_PRIMITIVE = {"dot_general": "matmul", "conv_general_dilated": "conv2d",
                         "attention_tangent": "attention", "attention_backward": "attention"}


class Lane(NamedTuple):
    """One instruction: its bars as (start, duration) in microseconds, and the quartiles of its duration."""

    name: str
    bars: list[tuple[float, float]]
    operators: tuple[str, ...]
    spread: tuple[float, float] | None


@matplotlib.rc_context(LOOK)
def timeline(walks: Any, title: str = "What ran, and when") -> Picture:
    """The thunks of one run as bars on a time axis, one lane for each instruction.

    walks: a walk after `.execute()`, its execution table, or a dictionary of them: name -> walk. These stand
    one above the other on the same time axis. The run shown is the one of median length; a whisker at the end
    of a bar spans the middle half of all runs. A bar carries the colours of all operators that share its
    instruction, one above the other: time that several share is never divided among them.
    """
    named = walks if isinstance(walks, Mapping) else {"": walks}
    tables = {name: _execution(walk) for name, walk in named.items()}
    most = max(3, LANES // len(named))
    lanes = {name: _lanes(tables[name], _owners(walk), most) for name, walk in named.items()}
    shown = [o for o in COLOURS if any(o in lane.operators for rows in lanes.values() for lane in rows)]
    alt = f"{title}: a time axis with one lane for each instruction that ran; colours mark {listed(shown)}."
    if len(named) > 1:
        alt += f" One above the other: {listed(named)}."
    longest = max(_length(table).median() for table in tables.values())
    unit, scale = ("milliseconds", 1e3) if longest > 5e3 else ("microseconds", 1.0)
    picture = Picture(alt, 1.7 + sum(0.3 * len(rows) + 0.6 for rows in lanes.values()))
    axes = picture.subplots(len(named), 1, sharex=True, squeeze=False,
                            height_ratios=[len(rows) + 0.5 for rows in lanes.values()])[:, 0]
    for axis, (name, rows) in zip(axes, lanes.items(), strict=True):
        _draw(axis, rows)
        axis.set_title(f"{plain(name)}   {_length(tables[name]).median() / scale:,.3g} {unit}".strip())
    axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / scale:,g}"))
    axes[-1].set_xlabel(f"{unit} since the run began")
    axes[-1].set_xlim(left=0)
    key = [Patch(facecolor=COLOURS[o], hatch=HATCHES[o], edgecolor="black", label=o) for o in shown]
    picture.frame(title, key, ["Bars: the run of median length. Whiskers: the middle half of all runs.",
                               ran_on(tables.values())])
    return picture


def _execution(walk: Any) -> pd.DataFrame:
    if isinstance(walk, pd.DataFrame):
        table = walk
    else:
        stage = getattr(walk, "execution", None)
        if stage is None:
            raise TypeError(f"timeline expects walks, or tables of what ran, got {type(walk).__name__}.")
        table = stage.table.copy()
        table.attrs = dict(getattr(walk, "document", {}).get("versions", {}))  # a saved walk's own JAX
    if not len(table):
        raise ValueError("timeline expects a run with at least one thunk, and this profile holds none.")
    return table


def _length(table: pd.DataFrame) -> pd.Series:
    """Microseconds from the first start to the last end of each run."""
    end = (table["start_us"] + table["duration_us"]).groupby(table["run"]).max()
    return end - table.groupby("run")["start_us"].min()


def _lanes(table: pd.DataFrame, owners: Mapping[str, tuple[str, ...]], most: int = LANES) -> list[Lane]:
    """The lanes of the run of median length, in the order in which the instructions first ran."""
    lengths = _length(table).sort_values(kind="stable")
    one = table[table["run"] == lengths.index[(len(lengths) - 1) // 2]].sort_values("start_us", kind="stable")
    one = one.assign(start_us=one["start_us"] - one["start_us"].min())
    busy = one.groupby("instruction")["duration_us"].sum().sort_values(ascending=False, kind="stable")
    shorter = one["instruction"].isin(busy.index[most:] if len(busy) > most + 1 else [])
    lanes = []
    for name, rows in one[~shorter].groupby("instruction", sort=False):
        bars, spread = _bars(rows), None
        if len(bars) == 1:
            runs = table[table["instruction"] == name].groupby("run")
            spread = tuple(np.percentile([sum(took for _, took in _bars(run)) for _, run in runs], [25, 75]))
        lanes.append(Lane(str(name), bars, owners.get(name, ("other",)), spread))
    if shorter.any():
        lanes.append(Lane(f"{len(busy) - most} shorter ones", _bars(one[shorter]), ("other",), None))
    return lanes


def _bars(rows: pd.DataFrame) -> list[tuple[float, float]]:
    """(start, duration) of the time in which the rows were busy; threads of one kernel run side by side."""
    bars: list[tuple[float, float]] = []
    for start, took in sorted(zip(rows["start_us"], rows["duration_us"], strict=True)):
        if bars and start <= sum(bars[-1]):
            bars[-1] = (bars[-1][0], max(sum(bars[-1]), start + took) - bars[-1][0])
        else:
            bars.append((start, took))
    return bars


def _draw(axis: Any, lanes: list[Lane]) -> None:
    for at, lane in enumerate(lanes):
        height = 0.72 / len(lane.operators)
        for band, operator in enumerate(lane.operators):
            axis.broken_barh(lane.bars, (at - 0.36 + band * height, height), facecolor=COLOURS[operator],
                             hatch=HATCHES[operator], edgecolor="black", linewidth=0.7)
        if lane.spread:
            low, high = (lane.bars[0][0] + end for end in lane.spread)
            axis.errorbar((low + high) / 2, at, xerr=(high - low) / 2, color="black", linewidth=1.8)
    axis.set_yticks(range(len(lanes)), [plain(lane.name) for lane in lanes], fontsize=12)
    axis.set_ylim(len(lanes) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)


def _owners(walk: Any) -> dict[str, tuple[str, ...]]:
    """Instruction -> the operators that it computes, from the walk's own tables."""
    if isinstance(walk, pd.DataFrame):
        return {}
    equations = {row["equation"]: row for row in walk.jaxpr.table.to_dict("records")}
    owners = {}
    for row in walk.summary().to_dict("records"):
        found = dict.fromkeys(operator(e, equations) for e in row["equations"])
        owners[row["instruction"]] = tuple(o for o in found if o != "other") or ("other",)
    return owners


def operator(equation: str, equations: Mapping[str, Mapping]) -> str:
    """The operator that an equation is part of: by the functions or scopes around it, or by its primitive.

    equations: id -> row of the jaxpr table. `e7.jaxpr.e2` lies in `e7`, whose `params` name the function.
    """
    parts = equation.split(".")
    rows = [equations.get(".".join(parts[:end]), {}) for end in range(len(parts), 0, -1)]
    names = [name for row in rows for name in re.findall(r"\bname=(\w+)", str(row.get("params", "")))]
    names += reversed(re.findall(r"\w+", str(rows[0].get("scope", ""))))
    primitive = str(rows[0].get("primitive", ""))
    names.append(OPERATOR_OF_PRIMITIVE.get(primitive, primitive))
    return next((name.strip("_") for name in names if name.strip("_") in COLOURS), "other")
