"""What a node of any stage is told by: its operator, its line, the bytes of its type."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from ..views.timeline import operator

_BITS = {"pred": 8, "bool": 8, "bf16": 16}
_ARRAY = re.compile(r"\b(pred|bool|bf16|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(i1|bf16|[a-z]+(\d+)\w*)>")


def node(name: str, label: str, **facts: Any) -> dict[str, Any]:
    empty = {"operator": "other", "shape": "", "parent": "", "line": None, "scope": "", "half": ""}
    return {"node": name, "label": label, **empty, **facts}


def equations(walk: Any) -> dict[str, dict[str, Any]]:
    """The rows of the jaxpr's table by id; what an older document lacks is empty."""
    lacking = {"inputs": (), "outputs": (), "params": "", "scope": "", "line": None, "text_line": None}
    return {row["equation"]: lacking | row for row in walk.jaxpr.table.to_dict("records")}


def owned(equations: Any, rows: dict) -> dict[str, Any]:
    """What an op or instruction has from the equations that it belongs to."""
    known = [rows[e] for e in equations or () if e in rows]
    operators = [operator(row["equation"], rows) for row in known]
    scopes = [str(row["scope"] or "") for row in known]
    line = next((whole(row["line"]) for row in known), None)
    return {
        "operator": next((o for o in operators if o != "other"), "other"),
        "line": line,
        "scope": next(filter(None, scopes), ""),
    }


def whole(number: Any) -> int | None:
    return None if pd.isna(number) else int(number)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def size(shapes: str) -> int:
    """The bytes of all arrays that a type names, in the spelling of any stage; 0 for what is no array."""
    total = 0
    for dtype, bits, dimensions in _ARRAY.findall(shapes):
        total += _bytes(dtype, bits, dimensions.split(","))
    for dimensions, dtype, bits in _TENSOR.findall(shapes):
        total += _bytes(dtype, bits, dimensions.split("x"))
    return total


def _bytes(dtype: str, bits: str, dimensions: list[str]) -> int:
    count = 1
    for dimension in filter(None, dimensions):
        count *= int(dimension[:18])  # a forged size must not cost time
    return count * max(1, _BITS.get(dtype, 8 if dtype == "i1" else int((bits or "8")[:4])) // 8)
