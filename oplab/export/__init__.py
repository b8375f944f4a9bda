"""A walk for other tools: Google's Model Explorer, and Perfetto.

    w.export("model_explorer", "layer.json")   the graphs, and beside them which node is which, stage by stage
    w.export("perfetto", "layer.trace.json")   what ran, and when; after w.execute()

Model Explorer (github.com/google-ai-edge/model-explorer) opens the first file; its split view takes a file
`layer.jaxpr-hlo.sync.json` for the two graphs that it names ("Sync navigation: upload mapping"). Perfetto
(ui.perfetto.dev, or chrome://tracing) reads the Trace Event Format. Both are written from the document, so a
loaded walk exports as a live one does.
"""

from __future__ import annotations

import json
import os
from itertools import combinations
from typing import Any

from ..views.static import write
from .model_explorer import STAGES, graphs, sync
from .perfetto import trace

__all__ = ["export", "graphs", "sync", "trace"]

KINDS = ("model_explorer", "perfetto")


def export(document: dict[str, Any], kind: str, path: str | os.PathLike[str]) -> list[str]:
    """Write the files for another tool; returns their paths. Errors are ValueErrors of one sentence."""
    path = os.fspath(path)
    if kind not in KINDS:
        raise ValueError(f"export expects one of {', '.join(KINDS)}, got {kind!r}.")
    if not path.endswith(".json"):
        raise ValueError(f"export expects a path ending in .json, got {path!r}.")
    if kind == "perfetto":
        return [_write(path, trace(document))]
    stem, collection = path.removesuffix(".json"), graphs(document)
    maps = {(a, b): sync(document, a, b, collection) for a, b in combinations(STAGES, 2)}
    return [_write(path, collection), *(_write(f"{stem}.{a}-{b}.sync.json", maps[a, b]) for a, b in maps)]


def _write(path: str, content: dict[str, Any]) -> str:
    return write(path, json.dumps(content, separators=(",", ":"), allow_nan=False))
