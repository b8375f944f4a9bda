"""A gradient's two halves: each backward equation beside the forward line that it came from.

JAX writes `transpose(jvp())` into the name stack of what it made by transposing, and keeps the source line.
The forward half is cut into bands, one for each run of equations of one line. The backward half passes the
same lines in reverse; where a line has several bands (a layer called four times), the nearest is taken.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

Pair = tuple[list[str], list[str]]  # the forward and the backward nodes of one band


def bands(nodes: list[dict[str, Any]], edges: list[dict[str, Any]]) -> list[Pair] | None:
    """The nodes of the outermost level as (forward, backward) bands, top to bottom; None for no gradient."""
    outer = [node for node in nodes if not node["parent"]]
    if not any(node["half"] == "backward" for node in outer):
        return None
    found: list[Pair] = []
    of_line: dict[Any, list[int]] = defaultdict(list)
    line: Any = object()
    users = {edge["source"]: edge["target"] for edge in reversed(edges)}
    where = {}
    waiting = [node["node"] for node in outer if node["label"] == "input"]
    for node in outer:
        if node["half"] == "backward" or node["label"] == "input":
            continue
        if node["line"] != line:
            line = node["line"]
            of_line[line].append(len(found))
            found.append(([], []))
        where[node["node"]] = len(found) - 1
        found[-1][0].append(node["node"])
    if not found:
        found.append(([], []))
    last = len(found) - 1
    for node in outer:
        if node["half"] == "backward" and node["label"] != "input":
            at = min(of_line.get(node["line"], [last]), key=lambda band: (abs(band - last), band))
            found[at][1].append(node["node"])
            where[node["node"]] = last = at
    for name in waiting:
        found[where.get(users.get(name), 0)][0].insert(0, name)
    return found


def partners(nodes: list[dict[str, Any]], pairs: list[Pair]) -> dict[str, str]:
    """Backward node -> the forward node of its band that it most likely came from: the same operation, in
    reverse order, or else the last one. Inferred from line and name, since JAX keeps no more than these.
    """
    label = {node["node"]: node["label"].split()[0] for node in nodes}
    found = {}
    for forward, backward in pairs:
        left = list(forward)
        for name in backward:
            same = [other for other in reversed(left) if label[other] == label[name]]
            if same or forward:
                found[name] = same[0] if same else forward[-1]
    return found
