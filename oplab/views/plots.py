"""Plots of what was measured: time, speed-up, processor time, memory, share of the limit; roofline; timeline.

Every function takes the table that bench returns, or a dictionary of such tables, which then stand side by
side under their names, and returns a `Picture`; `support` alone takes the table of oplab.support(). Points
with whiskers are measured; thin lines are certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from oplab.display import stable
from oplab.views.entries import support
from oplab.views.picture import COLOURS, LOOK, STYLES, Picture, listed, plain, ran_on
from oplab.views.roof import roofline
from oplab.views.timeline import timeline

__all__ = ["COLOURS", "Picture", "memory", "processor_time", "roofline", "share_of_limit", "speedup",
           "support", "timeline", "times", "work"]

Tables = pd.DataFrame | Mapping[str, pd.DataFrame]
HOLLOW = "Hollow: a noisy measurement, see the column `noise`."


@matplotlib.rc_context(LOOK)
def times(tables: Tables, title: str = "Time of one call") -> Picture:
    """Median wall time of every variant, with whiskers over the middle half of its rounds."""
    return _chart(_named(tables), title, "milliseconds", _quartiles(1e-3), log=True, timed=True,
                  foot="Points: median. Whiskers: the middle half of the rounds.")


@matplotlib.rc_context(LOOK)
def memory(tables: Tables, title: str = "Memory that one call needs") -> Picture:
    """Peak memory read from the process (points), and temporaries that the compiler planned (thin lines)."""
    named = _named(tables)
    for table in named.values():
        if "peak_bytes" not in table:
            raise ValueError("This table holds no memory; run oplab.bench with memory=True.")
    return _chart(named, title, "MiB", _peak, log=True, planned="temp_bytes",
                  foot="Points: read from the process. Thin lines: temporaries the compiler planned, if any.")


@matplotlib.rc_context(LOOK)
def speedup(tables: Tables, over: str | None = None, title: str | None = None) -> Picture:
    """How many times as fast each variant is as the variant `over` (the first one), round by round."""
    named = _named(tables)
    over = _variants(named)[0] if over is None else over
    for table in named.values():
        if over not in set(table["variant"]):
            raise ValueError(f"speedup expects over= to be one of {listed(_variants(named))}, got {over!r}.")
    return _chart({name: _ratios(table, over) for name, table in named.items()},
                  title or f"How many times as fast as {over}", "times as fast", _quartiles(1.0), timed=True,
                  line=1.0, foot="Points: median of the ratios, round by round. Whiskers: their middle half.")


@matplotlib.rc_context(LOOK)
def share_of_limit(tables: Tables, title: str = "Share of what the machine could do") -> Picture:
    """How much of its limit each variant reaches: the column `share_of_limit`, as oplab.roofline gives it."""
    named = _named(tables)
    for table in named.values():
        if "share_of_limit" not in table:
            raise ValueError("This table holds no share_of_limit; pass it through oplab.roofline first.")
    return _chart(named, title, "percent of the limit", _shares, line=100.0,
                  foot="Line: the limit. Whiskers, if any: the middle half of the rounds.")


@matplotlib.rc_context(LOOK)
def processor_time(tables: Tables, title: str = "Where the processors' time went") -> Picture:
    """User and system time of one call, at the largest size that the table has."""
    named = {name: _largest(table) for name, table in _named(tables).items()}
    alt = (f"Bar chart: {title}. One bar for each of {listed(_variants(named))}, split into time in the "
           "program and time in the operating system, with a mark at the wall time.")
    picture = Picture(alt, 2.1 + 0.65 * len(_variants(named)))
    axes = picture.subplots(1, len(named), sharey=True, squeeze=False)[0]
    for axis, (name, rows) in zip(axes, named.items(), strict=True):
        at, user, system = np.arange(len(rows))[::-1], rows["user_us"] / 1e3, rows["system_us"] / 1e3
        bars = [axis.barh(at, user, 0.6, color="#9A9A9A", edgecolor="black", label="in the program (user)"),
                axis.barh(at, system, 0.6, left=user, color="white", edgecolor="black", hatch="//",
                          label="in the operating system")]
        wall = axis.plot(rows["median_us"] / 1e3, at, "|", color="#CC3311", markersize=26, markeredgewidth=4,
                         label="wall time")
        axis.set_yticks(at, [plain(v) for v in rows["variant"]])
        axis.grid(axis="y", visible=False)
        axis.set_xlabel("milliseconds")
        label = _label(rows)
        axis.set_title(plain(f"{name}   {label} = {rows[label].iloc[0]}" if label else name).strip())
    picture.frame(title, [*bars, *wall], ["All threads added up, so a bar may be longer than the wall time.",
                                          ran_on(named.values())])
    return picture


@matplotlib.rc_context(LOOK)
def work(walks: Mapping[str, Any], title: str = "What has to be done") -> Picture:
    """FLOPs, and bytes read and written, of each walk: as written, and in the kernels that are left of it.

    As written means one operator at a time, each reading its operands from memory and writing its result
    there. Nothing here is measured: it follows from the program.
    """
    panels = {"bytes": ("MiB read and written", 2**20), "flops": ("million FLOPs", 1e6)}
    alt = (f"Bar chart: {title}, in bytes moved and in FLOPs. Two bars for each of {listed(walks)}: as "
           "written, and in the kernels that are left.")
    picture = Picture(alt, 2.3 + 0.8 * len(walks))
    axes = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    at = np.arange(len(walks))[::-1]
    for axis, (column, (unit, scale)) in zip(axes, panels.items(), strict=True):
        written = [_as_written(walk.jaxpr.table)[column].sum() / scale for walk in walks.values()]
        left = [walk.summary()[column].sum() / scale for walk in walks.values()]
        bars = [axis.barh(at + 0.2, written, 0.36, color="white", edgecolor="black", hatch="..",
                          label="as written, one operator at a time"),
                axis.barh(at - 0.2, left, 0.36, color="#9A9A9A", edgecolor="black",
                          label="in the kernels that are left")]
        axis.set_yticks(at, [plain(name) for name in walks])
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
        axis.grid(axis="y", visible=False)
        axis.set_xlabel(unit)
    picture.frame(title, bars, ["Certain, not measured: counted from the program.", ran_on([])])
    return picture


def _as_written(jaxpr: pd.DataFrame) -> pd.DataFrame:
    """The equations that hold no others; those in a loop already count as often as they run."""
    holders = {equation.rpartition(".")[0].rpartition(".")[0] for equation in jaxpr["equation"]}
    return jaxpr[~jaxpr["equation"].isin(holders)]


# ---- what the charts share -----------------------------------------------------------------------------


def _chart(named: dict[str, pd.DataFrame], title: str, unit: str, value: Callable, foot: str,
           log: bool = False, timed: bool = False, planned: str = "", line: float | None = None) -> Picture:
    """One panel for each table: a line for each variant over the sizes, or points where there are no sizes.

    `value(rows)` gives the arrays (low, middle, high), in `unit`; `planned` names a column of bytes.
    """
    label = _label(next(iter(named.values())))
    places = sorted({s for t in named.values() for s in t[label]}) if label else _variants(named)
    picture = Picture(_alt(named, title, unit, label, places, value), 5.4)
    axes = picture.subplots(1, len(named), sharey=True, squeeze=False)[0]
    for axis, (name, table) in zip(axes, named.items(), strict=True):
        for order, variant in enumerate(_variants(named)):
            rows = table[table["variant"] == variant]
            at = np.array([places.index(x) for x in rows[label or "variant"]], float)
            if len(rows):
                _draw(axis, at, value(rows), variant, order, _noisy(rows) & timed)
            if planned:
                axis.plot(at, _mib(rows[planned]), color=_style(order)[0], linewidth=1)
        if line is not None:
            axis.axhline(line, color="#555555", linewidth=1)
        axis.set_xticks(range(len(places)), [plain(p, 18) for p in places])
        axis.set(title=plain(name), xlabel=plain(label), xlim=(-0.4, len(places) - 0.6))
    _scale(axes[0], log and bool(label))
    axes[0].set_ylabel(unit)
    handles = axes[0].get_legend_handles_labels()[0] if label else []
    noise = [HOLLOW] if timed and any(_noisy(table).any() for table in named.values()) else []
    picture.frame(title, handles, [" ".join([foot, *noise]), ran_on(named.values())])
    return picture


def _draw(axis: Any, at: np.ndarray, value: np.ndarray, variant: str, order: int, noisy: np.ndarray) -> None:
    colour, marker, dash = _style(order)
    low, middle, high = value
    if len(at) > 1:
        at = at + (order % len(STYLES) - 1.5) * 0.03  # so that whiskers do not hide each other
    axis.plot(at, middle, color=colour, marker=marker, linestyle=dash, label=plain(variant))
    axis.errorbar(at, middle, yerr=[middle - low, high - middle], color=colour, linestyle="")
    axis.plot(at[noisy], middle[noisy], linestyle="", marker=marker, color=colour, markerfacecolor="white",
              zorder=5)


def _scale(axis: Any, log: bool) -> None:
    if not log:
        axis.set_ylim(bottom=0)
        return
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1e3 else (1,), numticks=20))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _alt(named: dict, title: str, unit: str, label: str, places: list, value: Callable) -> str:
    """What the chart shows, in words; its last values too, unless nothing that varies may be printed."""
    words = f"{'Line' if label else 'Point'} chart: {title}, in {unit}, for {listed(_variants(named))}"
    words += f", against {label} from {places[0]} to {places[-1]}." if label else "."
    if len(named) > 1:
        words += f" Panels: {listed(named)}."
    if not stable():
        for name, table in named.items():
            rows = _largest(table)
            last = ", ".join(f"'{v}' {m:.3g}" for v, m in zip(rows["variant"], value(rows)[1], strict=True))
            where = ", ".join(filter(None, [str(name), f"{label} = {places[-1]}" if label else ""]))
            words += f" {where}: {last}." if where else f" {last}."
    return words


def _named(tables: Tables) -> dict[str, pd.DataFrame]:
    named = dict(tables) if isinstance(tables, Mapping) else {"": tables}
    for table in named.values():
        if not isinstance(table, pd.DataFrame) or "variant" not in table or not len(table):
            raise TypeError("A plot expects the table that oplab.bench returns, or a dictionary of such "
                            f"tables, got {type(table).__name__}.")
    return named


def _label(table: pd.DataFrame) -> str:
    """The name of the size column, which bench puts before `variant`; empty when there is none."""
    return "" if table.columns[0] == "variant" else str(table.columns[0])


def _variants(named: Mapping[str, pd.DataFrame]) -> list[str]:
    return list(dict.fromkeys(v for table in named.values() for v in table["variant"]))


def _largest(table: pd.DataFrame) -> pd.DataFrame:
    label = _label(table)
    return table[table[label] == table[label].max()] if label else table


def _noisy(rows: pd.DataFrame) -> np.ndarray:
    return rows.get("noise", pd.Series("", rows.index)).astype(str).str.len().to_numpy() > 0


def _style(order: int) -> tuple[str, str, str]:
    return STYLES[order % len(STYLES)]


def _peak(rows: pd.DataFrame) -> np.ndarray:
    return np.array([_mib(rows["peak_bytes"])] * 3)


def _mib(column: pd.Series) -> pd.Series:
    return column.astype(float).replace(0.0, np.nan) / 2**20  # a logarithmic axis has no place for zero


def _quartiles(scale: float) -> Callable:
    return lambda rows: np.array([np.percentile(s, [25, 50, 75]) for s in rows["samples_us"]]).T * scale


def _shares(rows: pd.DataFrame) -> np.ndarray:
    """Percent of the limit at the slow quartile, the median and the fast one: a share is one over time."""
    middle = 100 * rows["share_of_limit"].to_numpy(float)
    if "samples_us" not in rows:
        return np.array([middle] * 3)
    slow, median, fast = np.array([np.percentile(s, [75, 50, 25]) for s in rows["samples_us"]]).T
    return np.array([middle * median / slow, middle, middle * median / fast])


def _ratios(table: pd.DataFrame, over: str) -> pd.DataFrame:
    """The table with each sample replaced by the sample of `over` from the same round, divided by it."""
    sizes = table[_label(table)] if _label(table) else pd.Series(0, table.index)
    first = table["variant"] == over
    base = dict(zip(sizes[first], table.loc[first, "samples_us"], strict=True))
    ratios = [tuple(b / own for b, own in zip(base[size], samples, strict=True))
              for size, samples in zip(sizes, table["samples_us"], strict=True)]
    return table.assign(samples_us=ratios)
