"""The roofs that the page can draw kernels under: a machine's measured peaks, and those of known devices.

Nothing is measured here. A document holds `peaks` only when someone asked for them; the devices come from
`oplab/devices.csv`, with the vendor's document that each number is from.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from oplab.display import stable

_ENDING = "_flops_per_s"


def roofs(peaks: Any) -> list[dict[str, Any]]:
    """One per machine and dtype: name, dtype, flops_per_s, bytes_per_s, source; what was asked for first."""
    found = []
    if isinstance(peaks, Mapping) and not (stable() and peaks.get("measured")):
        found.append({key: peaks.get(key) for key in ("dtype", "flops_per_s", "bytes_per_s", "source")}
                     | {"name": str(peaks.get("device", "")), "measured": bool(peaks.get("measured"))})
    return found + _devices()


def _devices() -> list[dict[str, Any]]:
    with files("oplab").joinpath("devices.csv").open(encoding="utf-8") as file:
        return [{"name": row["device"], "dtype": column.removesuffix(_ENDING),
                 "flops_per_s": float(row[column]), "bytes_per_s": float(row["memory_bytes_per_s"]),
                 "source": row["source"]}
                for row in csv.DictReader(file) for column in row
                if column.endswith(_ENDING) and row[column]]
