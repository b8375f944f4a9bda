"""The roofline as a picture: what each variant reaches, under what the machine lets it reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from oplab.display import stable
from oplab.views.picture import LOOK, STYLES, Picture, listed, plain, ran_on
from oplab.views.static import visible

UNITS = {"GFLOP/s": 1e9, "TFLOP/s": 1e12}
GIGA, MANY_GIGA = 1e9, 1e4  # a roof of more than so many GFLOP/s is drawn in TFLOP/s


@matplotlib.rc_context(LOOK)
def roofline(tables: pd.DataFrame | Mapping[str, pd.DataFrame], title: str = "The roofline") -> Picture:
    """FLOP/s against FLOPs per byte, both logarithmic, with the roof of the machine over the points.

    tables: what `oplab.roofline` returns, or a dictionary of it: name -> table, one panel each. Every variant
    (or kernel) is one line through its sizes, the largest with the largest mark. What was not timed stands on
    the roof as a hollow mark: there it could be at most. Beyond the eight rows that have the most to do, the
    others are grey.
    """
    named = _named(tables)
    picture = Picture(_alt(named, title), 5.6)
    axes = picture.subplots(1, len(named), sharey=True, squeeze=False)[0]
    names, (unit, scale) = _names(named), _unit(named)
    for axis, (name, table) in zip(axes, named.items(), strict=True):
        _roof(axis, table, scale)
        for variant, rows in table.groupby(_key(table), sort=False):
            _points(axis, rows, names.get(variant), scale)
        axis.set(title=plain(name), xlabel="FLOPs per byte")
    _scale(axes)
    axes[0].set_ylabel(unit)
    handles = [Line2D([], [], color=colour, marker=marker, linestyle=dash, label=plain(variant))
               for variant, (colour, marker, dash) in names.items()]
    hollow = "Hollow: not timed, what could be reached. " * _untimed(named)
    picture.frame(title, handles, [_roofs(named), hollow + ran_on(named.values())])
    return picture


def _named(tables: Any) -> dict[str, pd.DataFrame]:
    named = dict(tables) if isinstance(tables, Mapping) else {"": tables}
    for table in named.values():
        if not isinstance(table, pd.DataFrame) or "intensity" not in table or "peaks" not in table.attrs:
            raise TypeError("roofline expects the table that oplab.roofline returns, or a dictionary of such "
                            f"tables, got {type(table).__name__}.")
    drawn = {name: table[table["intensity"] > 0] for name, table in named.items()}  # no logarithm of zero
    if not any(len(table) for table in drawn.values()):
        raise ValueError("roofline expects at least one row that computes something, and there is none.")
    return drawn


def _key(table: pd.DataFrame) -> str:
    return "variant" if "variant" in table else "instruction" if "instruction" in table else table.columns[0]


def _names(named: Mapping[str, pd.DataFrame]) -> dict[str, tuple[str, str, str]]:
    """name -> colour, marker, dash; of more names than there are styles, those with the most FLOPs."""
    flops: dict[str, float] = {}
    for table in named.values():
        for name, rows in table.groupby(_key(table), sort=False):
            flops[name] = max(flops.get(name, 0.0), float(rows["flops"].max()))
    most = set(sorted(flops, key=lambda name: -flops[name])[: len(STYLES)])
    return dict(zip([name for name in flops if name in most], STYLES))


def _unit(named: Mapping[str, pd.DataFrame]) -> tuple[str, float]:
    highest = max(table.attrs["peaks"]["flops_per_s"] for table in named.values())
    unit = "TFLOP/s" if highest > MANY_GIGA * GIGA else "GFLOP/s"
    return unit, UNITS[unit]


def _untimed(named: Mapping[str, pd.DataFrame]) -> bool:
    return any(table["flops_per_s"].isna().any() for table in named.values())


def _roof(axis: Any, table: pd.DataFrame, scale: float) -> None:
    peaks = table.attrs["peaks"]
    ridge = peaks["flops_per_s"] / peaks["bytes_per_s"]
    x = np.array([min(ridge, table["intensity"].min()) / 3, ridge, max(ridge, table["intensity"].max()) * 3])
    roof = np.minimum(peaks["flops_per_s"], x * peaks["bytes_per_s"]) / scale
    axis.plot(x, roof, color="#555555", linewidth=3)
    axis.set_xlim(x[0], x[-1])


def _points(axis: Any, rows: pd.DataFrame, style: tuple[str, str, str] | None, scale: float) -> None:
    colour, marker, dash = style or ("#BBBBBB", ".", "")
    timed = rows["flops_per_s"].notna().to_numpy()
    y = np.where(timed, rows["flops_per_s"], rows["attainable_flops_per_s"]) / scale
    x = rows["intensity"].to_numpy()
    axis.plot(x, y, color=colour, linestyle=dash, linewidth=1.2)
    for at in range(len(rows)):
        axis.plot(x[at], y[at], marker, color=colour, markersize=12 if at == len(rows) - 1 else 7,
                  markerfacecolor=colour if timed[at] else "white")


def _scale(axes: Any) -> None:
    for axis in axes:
        axis.set(xscale="log", yscale="log")
        for one in (axis.xaxis, axis.yaxis):
            low, high = one.get_view_interval()
            one.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=9))
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
            one.set_minor_formatter(NullFormatter())


def _roofs(named: Mapping[str, pd.DataFrame]) -> str:
    """Each roof in words, once where the panels share it."""
    words = []
    for table in named.values():
        peaks = table.attrs["peaks"]
        if stable() and peaks["measured"]:
            words.append(f"Roof: {peaks['dtype']}, measured here.")
            continue
        flops, moved = (f"{float(f'{peaks[name] / GIGA:.4g}'):,.10g}"
                        for name in ("flops_per_s", "bytes_per_s"))
        where = "measured here" if peaks["measured"] else peaks["device"]
        noise = " on a busy machine" if peaks.get("noise") else ""
        words.append(f"Roof: {flops} GFLOP/s ({peaks['dtype']}) and {moved} GB/s, {where}{noise}.")
    return " ".join(dict.fromkeys(words))


def _alt(named: Mapping[str, pd.DataFrame], title: str) -> str:
    """What the chart shows, in words; the shares too, unless nothing that varies may be printed."""
    every = dict.fromkeys(v for table in named.values() for v in table[_key(table)])
    words = f"Roofline chart: {title}, FLOP/s against FLOPs per byte, for {listed([*every][:12])}."
    words += f" {_roofs(named)}"
    if len(named) > 1:
        words += f" Panels: {listed(named)}."
    if not stable():
        for name, table in named.items():
            last = table.groupby(_key(table), sort=False).tail(1).dropna(subset=["share_of_limit"])[:12]
            shares = [f"'{v}' {100 * s:.0f}%" for v, s in zip(last[_key(table)], last["share_of_limit"])]
            where = f", {name}" if name else ""
            words += f" Of the limit{where}: {', '.join(shares)}." if shares else ""
    return visible(words)  # half a character could be written to no file
