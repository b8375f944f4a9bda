"""Which boxes of a graph are drawn open, and which as one box that says how many it holds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

MOST = 3_000  # boxes in one picture
ROOM = 250  # nodes in a box that is drawn open unasked


def collapse(nodes: list[dict[str, Any]], depth: int | None = None) -> tuple[dict[str, str], str]:
    """Node -> the box that stands for it in the picture (itself, where it is seen), and a sentence, or "".

    depth: open boxes to this depth; None opens what is small enough. A box that holds one thing stays shut.
    """
    children: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        children[node["parent"]].append(node["node"])
    held = _held(nodes)
    level = {"": -1}
    for node in nodes:  # parents come first
        level[node["node"]] = level.get(node["parent"], -1) + 1
    deepest = max(level.values(), default=0)
    for limit in [depth] if depth is not None else [*range(deepest, -1, -1)]:
        room = ROOM if depth is None else len(nodes)
        shown: dict[str, str] = {}
        for node in nodes:
            name, parent = node["node"], node["parent"]
            above = shown.get(parent, name)
            full = held[parent] > room or held[parent] < 2 if parent else False
            shut = parent and (above != parent or level[name] > limit or full)
            shown[name] = above if shut else name
        if len(set(shown.values())) <= MOST:
            break
    visible = len(set(shown.values()))
    if visible > MOST:
        return _runs(nodes, shown), (
            f"Its {visible:,} boxes are more than a picture can show ({MOST:,}): "
            "neighbours of one line stand in one box."
        )
    note = f"{len(nodes) - visible:,} more inside boxes that are drawn shut." if visible < len(nodes) else ""
    return shown, note


def _held(nodes: list[dict[str, Any]]) -> dict[str, int]:
    """How many nodes each one holds, at any depth."""
    held = {node["node"]: 0 for node in nodes}
    for node in reversed(nodes):
        if node["parent"] in held:
            held[node["parent"]] += 1 + held[node["node"]]
    return held


def _runs(nodes: list[dict[str, Any]], shown: dict[str, str]) -> dict[str, str]:
    """One box for each run of outermost neighbours of one line and half; if these are still too many, for so
    many neighbours that few boxes are left.
    """
    outer = [node for node in nodes if not node["parent"] and node["label"] != "input"]
    runs: list[list[str]] = []
    last: Any = None
    for node in outer:
        if (node["half"], node["line"]) != last:
            runs.append([])
            last = (node["half"], node["line"])
        runs[-1].append(node["node"])
    if len(runs) > MOST:
        most = -(-len(outer) // (MOST // 3))
        runs = [[node["node"] for node in outer[at : at + most]] for at in range(0, len(outer), most)]
    run = {name: names[0] for names in runs for name in names}
    for node in nodes:
        run.setdefault(node["node"], run.get(node["parent"], shown[node["node"]]))
    return run
