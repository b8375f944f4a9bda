"""A walk's program as nodes and edges, read from the text and the table of one stage.

Live and saved walks are read alike, since both hold the same texts and tables. A node is an equation, an op
or an instruction; what holds others (a scan, a call, a fusion) is their `parent`. An edge is a value on its
way. One file a stage; `facts.py` has what all of them tell of a node.
"""

from __future__ import annotations

from typing import Any

from ..views.graph import Graph
from . import hlo, jaxpr, stablehlo
from .facts import size

READERS = {"jaxpr": jaxpr.read, "stablehlo": stablehlo.read, "hlo": hlo.read}


def graph(walk: Any, stage: str = "jaxpr") -> Graph:
    """The picture of one stage of a walk, live or loaded: "jaxpr", "stablehlo" or "hlo"."""
    nodes, edges = read(walk, stage)
    carried = [{"source": a, "target": b, "shape": shape, "bytes": size(shape)} for a, b, shape in edges]
    return Graph(f"{walk.name}: {stage}", _outside_in(nodes), carried)


def read(walk: Any, stage: str) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str, str]]]:
    """(name -> what is known of a node, edges as source, target and type), each edge once.

    `variable` is the name by which the text knows an input, `root` marks what a computation gives back, and
    `given` an instruction that has operands, wherever they come from.
    """
    if stage not in READERS:
        raise ValueError(f"graph expects one of the stages {', '.join(READERS)}, got {str(stage)[:80]!r}.")
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[str, str, str]] = []
    READERS[stage](walk, nodes, edges)
    return nodes, list(dict.fromkeys(edge for edge in edges if edge[0] in nodes and edge[1] in nodes))


def _outside_in(nodes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The nodes in their order, but each after the one that holds it; an unknown holder holds nothing."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, depth: int = 0) -> None:
        node = nodes[name]
        parent = node["parent"]
        if parent not in nodes or depth > 200:
            node["parent"] = ""
        elif parent not in found:
            add(parent, depth + 1)
        found.setdefault(name, node)

    for name in nodes:
        add(name)
    return list(found.values())
