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
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from .graph_nodes import hlo_nodes, jaxpr_nodes, stablehlo_nodes

KINDS = ("model_explorer", "perfetto")
STAGES = ("jaxpr", "stablehlo", "hlo")
GAP_US = 5.0  # between two runs on the timeline


def export(document: dict[str, Any], kind: str, path: str | os.PathLike[str]) -> list[str]:
    """Write the files for another tool; returns their paths. Errors are ValueErrors of one sentence."""
    path = os.fspath(path)
    if kind not in KINDS:
        raise ValueError(f"export expects one of {', '.join(KINDS)}, got {kind!r}.")
    if not path.endswith(".json"):
        raise ValueError(f"export expects a path ending in .json, got {path!r}.")
    if kind == "perfetto":
        return [_write(path, trace(document))]
    stem = path.removesuffix(".json")
    maps = [(f"{stem}.{a}-{b}.sync.json", sync(document, a, b)) for a, b in combinations(STAGES, 2)]
    return [_write(path, graphs(document)), *(_write(place, content) for place, content in maps)]


def graphs(document: dict[str, Any]) -> dict[str, Any]:
    """Model Explorer's graph collection: the jaxpr, StableHLO and optimised HLO."""
    nodes = (jaxpr_nodes(document), stablehlo_nodes(document), hlo_nodes(document))
    found = [{"id": stage, "nodes": list(n)} for stage, n in zip(STAGES, nodes, strict=True)]
    return {"label": document["function"], "graphs": found, "graphSorting": "name_desc"}


def sync(document: dict[str, Any], left: str, right: str) -> dict[str, Any]:
    """Which nodes of one graph are which of another, from the walk's links.

    Model Explorer wants every node in one entry only, so nodes that share a partner stand together.
    """
    known = {g["id"]: {n["id"] for n in g["nodes"]} for g in graphs(document)["graphs"]}
    groups: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for link in _records(document["links"]):
        if (link["from_stage"], link["to_stage"]) != (left, right):
            continue
        ends = {(left, link["from_id"]), (right, link["to_id"])}
        if all(name in known[stage] for stage, name in ends):
            joined = ends.union(*(groups[end] for end in ends if end in groups))
            groups.update(dict.fromkeys(joined, joined))
    entries = {id(group): group for group in groups.values()}.values()
    return {
        "type": "sync_navigation",
        "disableMappingFallback": True,
        "mappingEntries": [
            {f"{side}NodeIds": sorted(name for stage, name in group if stage == which)
             for side, which in (("left", left), ("right", right))}
            for group in sorted(map(sorted, entries))
        ],
    }  # fmt: skip


def trace(document: dict[str, Any]) -> dict[str, Any]:
    """The runs as Trace Event JSON: one slice per executed kernel, the runs one after another.

    ts and dur are microseconds. Kernels that ran at the same time lie in several lanes.
    """
    if "execution" not in document["stages"]:
        raise ValueError("export to perfetto needs what was measured: call w.execute() first.")
    rows = _records(document["stages"]["execution"]["table"])
    kernels = {row["instruction"]: row for row in _records(document["summary"])}
    primitives = {r["equation"]: r["primitive"] for r in _records(document["stages"]["jaxpr"]["table"])}
    events, at = [_named("process_name", 0, document["function"]), _named("thread_name", 0, "runs")], 0.0
    lanes = 0
    for run in sorted({row["run"] for row in rows}):
        part = [row for row in rows if row["run"] == run]
        start = min(row["start_us"] for row in part)
        end = max(row["start_us"] + row["duration_us"] for row in part)
        events.append(_slice(f"run {run}", "run", at, end - start, 0, {}))
        for row, lane in _lanes(part):
            kernel = kernels.get(row["instruction"], {})
            name, begins = _title(row["instruction"], kernel, primitives), at + row["start_us"] - start
            args = {"instruction": row["instruction"], **{
                key: _plain(kernel.get(key)) for key in ("kind", "equations", "lines", "flops", "bytes")}}
            events.append(_slice(name, "kernel", begins, row["duration_us"], lane + 1, args))
            lanes = max(lanes, lane + 1)
        at += end - start + GAP_US
    events += [_named("thread_name", lane, f"kernels, lane {lane}") for lane in range(1, lanes + 1)]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"versions": document["versions"]}}


def _lanes(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Each row with the first lane that is free when it starts."""
    busy_until: list[float] = []
    for row in sorted(rows, key=lambda row: (row["start_us"], -row["duration_us"])):
        lane = next((n for n, end in enumerate(busy_until) if end <= row["start_us"]), len(busy_until))
        busy_until[lane : lane + 1] = [row["start_us"] + row["duration_us"]]
        yield row, lane


def _title(instruction: str, kernel: dict[str, Any], primitives: dict[str, str]) -> str:
    """The operators that a kernel came from; its own name where the compiler made it for itself."""
    names = dict.fromkeys(str(primitives[e]) for e in kernel.get("equations") or () if e in primitives)
    return ", ".join(names) or instruction


def _slice(name: str, category: str, ts: float, dur: float, tid: int, args: dict) -> dict[str, Any]:
    return {"name": name, "cat": category, "ph": "X", "ts": round(ts, 3), "dur": round(dur, 3),
            "pid": 1, "tid": tid, "args": args}  # fmt: skip


def _named(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}


def _plain(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _records(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _write(path: str, content: dict[str, Any]) -> str:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, separators=(",", ":"), allow_nan=False)
    return path
