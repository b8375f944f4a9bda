"""The tables of a document, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def records(table: Any) -> list[dict[str, Any]]:
    """The rows of a document's table as dictionaries; none where the document has no such table."""
    if not isinstance(table, Mapping):
        return []
    columns = [str(c) for c in table.get("columns", ())]
    return [dict(zip(columns, row, strict=False)) for row in table.get("rows", ())]
