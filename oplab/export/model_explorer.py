"""A walk as Model Explorer reads it: a graph for each stage, and which node of one is which of another.

A node has `id`, `label`, `namespace` (the nested boxes that it lies in, a/b/c), `attrs`, `incomingEdges`; see
Model Explorer's `graph_builder.py`. Nodes and edges are those of `oplab.graphs`; ids are the walk's own.

Model Explorer draws boxes that hold, and no edge to a box. So what takes a value from outside its box takes
it from the node that stands for the box, and a fusion has none: its members' edges pass through its wall.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd

from ..graphs import read
from ..stages.stage import Stage
from ..views.page.model import IDS
from ..views.records import records

STAGES = ("jaxpr", "stablehlo", "hlo")
LABELS = {"jaxpr": "primitive", "stablehlo": "name", "hlo": "opcode"}
ATTRS = {
    "jaxpr": ("inputs", "outputs", "params", "scope", "trips", "flops", "bytes"),
    "stablehlo": ("result", "equations"),
    "hlo": ("shape", "equations", "how"),
}

Node = dict[str, Any]


def graphs(document: dict[str, Any]) -> dict[str, Any]:
    """Model Explorer's graph collection: the jaxpr, StableHLO and optimised HLO."""
    walk = SimpleNamespace(**{stage: Stage.read(stage, document["stages"][stage]) for stage in STAGES})
    found = [{"id": stage, "nodes": list(_nodes(walk, stage))} for stage in STAGES]
    return {"label": document["function"], "graphs": found, "graphSorting": "name_desc"}


def _nodes(walk: SimpleNamespace, stage: str) -> Iterator[Node]:
    known, edges = read(walk, stage)
    program = getattr(walk, stage)
    rows = {row[IDS[stage]]: row for row in program.table.to_dict("records")}
    lines = program.text.split("\n")
    boxes = _Boxes(known, {name: str(rows[name][LABELS[stage]]) for name in known if name in rows})
    sources: dict[str, list[str]] = {name: [] for name in known}
    for source, target, _ in edges:
        sources[target].append(boxes.within_reach(source, target))
    for name, facts in known.items():
        if name in boxes.walls:
            continue
        box = boxes.around(name)
        if facts.get("given") and not sources[name] and box:  # it works on what the box is given
            sources[name].append(box)
        row = rows.get(name, {})
        attrs = {key: row.get(key) for key in ATTRS[stage]}
        if facts["line"] and stage == "jaxpr":
            attrs["source"] = f"{row['file']}:{facts['line']}"
        if row and stage != "jaxpr":
            attrs["text"] = lines[int(row["text_line"]) - 1].strip()
        label = boxes.labels.get(name) or facts["variable"]
        come_from = [boxes.id(source) for source in dict.fromkeys(sources[name])]
        yield _node(boxes.id(name), label, come_from, boxes.path(name), attrs)


def _node(name: str, label: str, sources: list[str], namespace: str, attrs: dict[str, Any]) -> Node:
    """One node; `sources` are the ids that its inputs come from, in their order."""
    shown = {key: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v)
             for key, v in attrs.items() if isinstance(v, (list, tuple)) and v or not pd.isna(v) and v != ""}
    edges = [{"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(n)}
             for n, source in enumerate(sources)]  # fmt: skip
    listed = [{"key": key, "value": value} for key, value in shown.items()]
    return {"id": name, "label": label, "namespace": namespace, "attrs": listed, "incomingEdges": edges}


class _Boxes:
    """What lies in what, and which of it are only walls: fusions, whose members stand for them."""

    def __init__(self, known: dict[str, dict[str, Any]], labels: dict[str, str]) -> None:
        self.known, self.labels = known, labels
        self.holders = {facts["parent"] for facts in known.values()} - {""}
        roots = {facts["parent"]: name for name, facts in known.items() if facts.get("root")}
        self.walls = {name: roots[name] for name in self.holders & roots.keys() if labels[name] == "fusion"}

    def id(self, name: str) -> str:
        """An argument goes by its variable; those of inner functions bear the same ones, hence the box."""
        variable, box = self.known[name].get("variable"), self.known[name]["parent"]
        if not variable:
            return name
        return f"argument {variable} of {box}" if box else f"argument {variable}"

    def around(self, name: str) -> str:
        """The nearest box that has a node of its own."""
        box = self.known[name]["parent"]
        while box in self.walls:
            box = self.known[box]["parent"]
        return box

    def within_reach(self, source: str, target: str) -> str:
        """Where a value comes from for whoever stands in the target's box."""
        while source in self.walls:  # out of a fusion comes what its root makes
            source = self.walls[source]
        box, inside = self.around(target), source
        while box and inside != box:
            if not inside:
                return box
            inside = self.known[inside]["parent"]
        return source

    def path(self, name: str) -> str:
        """Its boxes from the outside in; what stands for a box lies in it."""
        boxes, box = [], name if name in self.holders else self.known[name]["parent"]
        while box:
            label = box if box in self.walls else f"{self.labels[box]} {box}"
            boxes.append(label.replace("/", "_").replace(";", "_"))
            box = self.known[box]["parent"]
        return "/".join(reversed(boxes)) or ("arguments" if self.known[name].get("variable") else "")


def sync(
    document: dict[str, Any], left: str, right: str, collection: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Which nodes of one graph are which of another, from the walk's links.

    collection: the document's `graphs`, where they are there already.
    Model Explorer wants every node in one entry only, so nodes that share a partner stand together.
    """
    known = {g["id"]: {n["id"] for n in g["nodes"]} for g in (collection or graphs(document))["graphs"]}
    groups: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for link in records(document["links"]):
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
