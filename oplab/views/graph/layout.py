"""Where the boxes of a layered graph go. Engines are given numbers and sizes, never a name.

`layered` is ours: longest-path ranks, then sweeps that put each box near the mean of its neighbours
(Sugiyama, Tagawa and Toda 1981). `place` asks Graphviz, where pygraphviz is installed: fewer lines cross.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

GAP_X, GAP_Y = 22.0, 34.0
SWEEPS = 6
LARGE = 1_500  # boxes; above, Graphviz takes seconds


Points = list[tuple[float, float]]  # a start, then two control points and an end for each Bézier piece


class Placed(NamedTuple):
    """The top left corner of each box, the way of each edge, and the size of the whole."""

    corners: Points
    routes: dict[tuple[int, int], Points]
    width: float
    height: float
    engine: str


def place(sizes: list[tuple[float, float]], edges: list[tuple[int, int]], engine: str = "graphviz") -> Placed:
    """Place boxes of these (width, height) so that edges point down and no two boxes overlap."""
    if not sizes:
        return Placed([], {}, 0, 0, engine)
    if engine == "graphviz" and len(sizes) <= LARGE:
        try:
            return _graphviz(sizes, edges)
        except (ImportError, OSError):
            pass
    return layered(sizes, edges)


def layered(sizes: list[tuple[float, float]], edges: list[tuple[int, int]]) -> Placed:
    """The layout in plain Python: ranks, sweeps, then rows from left to right.

    An edge that passes a rank has a bend there, a box without content that keeps a lane free for it.
    """
    rank = ranks(len(sizes), edges)
    boxes, chains = list(sizes), {}
    for source, target in edges:
        bends = list(range(len(boxes), len(boxes) + max(0, rank[target] - rank[source] - 1)))
        boxes += [(2.0, 0.0)] * len(bends)
        rank += range(rank[source] + 1, rank[source] + 1 + len(bends))
        chains[source, target] = [source, *bends, target]
    rows = _ordered(rank, [pair for chain in chains.values() for pair in zip(chain, chain[1:], strict=False)])
    heights = {at: max(boxes[n][1] for n in row) for at, row in rows.items()}
    corners = _in_rows(boxes, rows, heights)
    width = max(x + w for (x, _), (w, _) in zip(corners, boxes, strict=True))
    routes = {}
    for pair, chain in chains.items():
        lanes = [(corners[n][0] + boxes[n][0] / 2, corners[n][1], heights[rank[n]]) for n in chain]
        routes[pair] = _route(lanes, boxes[pair[0]][1])
    count = len(sizes)
    height = max(y + h for (_, y), (_, h) in zip(corners[:count], sizes, strict=True))
    return Placed(corners[:count], routes, width, height, "plain")


def _ordered(rank: list[int], pairs: list[tuple[int, int]]) -> dict[int, list[int]]:
    """The boxes of each rank from left to right, each near the mean of its neighbours."""
    rows: dict[int, list[int]] = defaultdict(list)
    for node, at in enumerate(rank):
        rows[at].append(node)
    above, below = defaultdict(list), defaultdict(list)
    for source, target in pairs:
        above[target].append(source)
        below[source].append(target)
    order = {node: float(at) for row in rows.values() for at, node in enumerate(row)}
    for sweep in range(SWEEPS):
        near = below if sweep % 2 else above
        for at in sorted(rows, reverse=bool(sweep % 2)):
            mean = {
                n: sum(order[m] for m in near[n]) / len(near[n]) if near[n] else order[n] for n in rows[at]
            }
            rows[at].sort(key=lambda n, mean=mean: (mean[n], n))
            order |= {node: float(place) for place, node in enumerate(rows[at])}
    return rows


def _in_rows(
    boxes: list[tuple[float, float]], rows: dict[int, list[int]], heights: dict[int, float]
) -> Points:
    widths = {at: sum(boxes[n][0] + GAP_X for n in row) - GAP_X for at, row in rows.items()}
    corners, width, y = [(0.0, 0.0)] * len(boxes), max(widths.values()), 0.0
    for at in sorted(rows):
        x = (width - widths[at]) / 2
        for node in rows[at]:
            corners[node] = (x, y)
            x += boxes[node][0] + GAP_X
        y += heights[at] + GAP_Y
    return corners


def _route(lanes: list[tuple[float, float, float]], height: float) -> Points:
    """From the foot of the first box, straight down each lane (its middle, top, height), to the last."""
    (x, top, _), *more = lanes
    points = [(x, top + height)]
    for x, top, height in more:
        points += _bend(points[-1], (x, top))
        if (x, top, height) != lanes[-1]:
            points += _bend(points[-1], (x, top + height))
    return points


def _bend(start: tuple[float, float], end: tuple[float, float]) -> Points:
    """A curve that leaves downwards and comes from above."""
    middle = (start[1] + end[1]) / 2
    return [(start[0], middle), (end[0], middle), end]


def ranks(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """The longest path to each node; sources are pulled down to their first user, circles left out."""
    after, waiting = defaultdict(list), [0] * count
    for source, target in edges:
        after[source].append(target)
        waiting[target] += 1
    rank = [0] * count
    ready = [node for node in range(count) if not waiting[node]]
    sources = list(ready)
    for node in ready:  # grows while it is read
        for target in after[node]:
            rank[target] = max(rank[target], rank[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for node in sources:
        if after[node]:
            rank[node] = max(0, min(rank[target] for target in after[node]) - 1)
    return rank


def _graphviz(sizes: list[tuple[float, float]], edges: list[tuple[int, int]]) -> Placed:
    import pygraphviz

    drawing = pygraphviz.AGraph(directed=True, strict=True, nodesep=GAP_X / 72, ranksep=GAP_Y / 72)
    drawing.node_attr.update(shape="box", fixedsize="true", label="")
    for node, (width, height) in enumerate(sizes):
        drawing.add_node(f"n{node}", width=f"{width / 72:.4f}", height=f"{height / 72:.4f}")
    drawing.add_edges_from([(f"n{source}", f"n{target}") for source, target in edges])
    drawing.layout(prog="dot")
    centres = [tuple(map(float, drawing.get_node(f"n{n}").attr["pos"].split(","))) for n in range(len(sizes))]
    left = min(x - w / 2 for (x, _), (w, _) in zip(centres, sizes, strict=True))
    top = max(y + h / 2 for (_, y), (_, h) in zip(centres, sizes, strict=True))
    corners = [
        (round(x - w / 2 - left, 1), round(top - y - h / 2, 1))
        for (x, y), (w, h) in zip(centres, sizes, strict=True)
    ]
    routes = {}
    for source, target in edges:
        pieces = str(drawing.get_edge(f"n{source}", f"n{target}").attr["pos"] or "").split()
        ends = [piece[2:] for piece in pieces if piece.startswith("e,")]
        points = [piece.split(",") for piece in pieces if piece[0] not in "es"]
        way = [(round(float(x) - left, 1), round(top - float(y), 1)) for x, y in points]
        tip = [(round(float(x) - left, 1), round(top - float(y), 1)) for x, y in (e.split(",") for e in ends)]
        routes[source, target] = way + [point for end in tip for point in (way[-1], end, end)]
    ways = [point for way in routes.values() for point in way]
    width = max([x + w for (x, _), (w, _) in zip(corners, sizes, strict=True)] + [x for x, _ in ways])
    height = max([y + h for (_, y), (_, h) in zip(corners, sizes, strict=True)] + [y for _, y in ways])
    return Placed(corners, routes, width, height, "graphviz")
