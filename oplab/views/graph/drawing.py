"""From nodes and edges to boxes with a place: nested boxes, bands of a gradient, and lines cut into stubs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .box import Box, detail_of, name_of, readable, stubs_of
from .layout import GAP_Y, Points, place, ranks

LONG = 10  # ranks; a longer line would cross the whole picture, and is cut into two labelled stubs
STUB, LINE, PAD, TITLE, MIDDLE = 16.0, 17.0, 14.0, 26.0, 110.0
MOST_DUMMIES = 20_000  # bends that a layout would have to order


@dataclass
class Drawing:
    """The boxes with their places, the lines drawn, how many were cut, and a title for each band."""

    boxes: dict[str, Box]
    lines: list[dict[str, Any]]
    routes: dict[tuple[str, str], Points]
    cut: int
    width: float
    height: float
    engines: set[str]
    bands: list[tuple[float, float, str]] = field(default_factory=list)
    middle: float = 0  # between the forward and the backward half


def draw(
    nodes: list[dict],
    edges: list[dict],
    shown: dict[str, str],
    engine: str,
    pairs: list[tuple[list[str], list[str]]] | None,
) -> Drawing:
    """Lay out what is shown. Each box is laid out by itself, then stands in the one around it as a whole: so
    none can overlap.
    """
    boxes = {node["node"]: Box(node) for node in nodes if shown[node["node"]] == node["node"]}
    for node in nodes:
        if shown[node["node"]] != node["node"]:
            box = boxes[shown[node["node"]]]
            box.holds += 1
            if not node["parent"]:  # neighbours in one box
                known = box.node["operator"] if box.node["operator"] != "other" else node["operator"]
                box.node = box.node | {"run": True, "shape": "", "operator": known}
        elif node["parent"]:
            boxes[node["parent"]].inside.append(boxes[node["node"]])
    outer = [box for box in boxes.values() if not box.node["parent"]]
    lines, apart = _lines(edges, shown, boxes)
    kept, cut = _cut(outer, lines, pairs)
    drawing = _placed(boxes, outer, kept, cut + apart, engine, pairs)
    hidden = set() if pairs is None else _crossing(drawing, pairs)
    if hidden:  # lines of a gradient that would run across a box: stubs, too
        cut += [line for line in kept if line[:2] in hidden]
        kept = [line for line in kept if line[:2] not in hidden]
        drawing = _placed(boxes, outer, kept, cut + apart, engine, pairs)
    return drawing


def _placed(
    boxes: dict[str, Box], outer: list[Box], kept: list, cut: list, engine: str, pairs: list | None
) -> Drawing:
    for a, b, edge in cut:
        size = f" {readable(edge['bytes'])}" if edge.get("residual") else ""
        boxes[b].from_.setdefault(a, size)
        if boxes[a].node["parent"] == boxes[b].node["parent"]:  # else the line to the box around b says it
            boxes[a].to.setdefault(b, size)
    drawing = Drawing(
        boxes, [edge | {"source": a, "target": b} for a, b, edge in kept], {}, len(cut), 0, 0, set()
    )
    near = defaultdict(list)
    for a, b, _ in kept:
        near[boxes[a].node["parent"]].append((a, b))
    for box in outer:
        _size(box, near, engine, drawing)
    if pairs is None:
        drawing.width, drawing.height = _arrange(outer, near[""], engine, drawing)
    else:
        _beside(drawing, pairs, near[""])
    for box in outer:
        _settle(box, 0, 0)
    for (a, b), points in drawing.routes.items():
        around = boxes.get(boxes[a].node["parent"])
        if around:
            x, y = around.x + PAD, around.y + PAD + TITLE + STUB * bool(around.from_)
            drawing.routes[a, b] = [(u + x, v + y) for u, v in points]
    return drawing


def _crossing(drawing: Drawing, pairs: list[tuple[list[str], list[str]]]) -> set[tuple[str, str]]:
    """The lines from band to band, or from half to half, that would run across another box."""
    band = {name: at for at, pair in enumerate(pairs) for half in pair for name in half}
    found = set()
    for line in drawing.lines:
        ends = line["source"], line["target"]
        if ends in drawing.routes or not set(ends) <= set(band):
            continue
        drawing.routes[ends] = way = across(drawing.boxes[ends[0]], drawing.boxes[ends[1]])
        first, last = sorted((band[ends[0]], band[ends[1]]))
        names = [name for pair in pairs[first : last + 1] for half in pair for name in half]
        others = [drawing.boxes[name] for name in names if name not in ends]
        steps = [_on(way, t / 24) for t in range(25)]
        if any(_near(step, other) for step in steps for other in others):
            found.add(ends)
    return found


def _near(point: tuple[float, float], box: Box) -> bool:
    x, y = point
    return box.x - 3 < x < box.x + box.width + 3 and box.y - 3 < y < box.y + box.height + 3


def across(a: Box, b: Box) -> Points:
    """A curve between boxes that were placed apart: from side to side between the halves, else up or down."""
    if b.x > a.x + a.width and b.node["half"] == "backward" != a.node["half"]:
        x, y, u, v = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
        bend = max(30.0, (u - x) / 2)
        return [(x, y), (x + bend, y), (u - bend, v), (u, v)]
    up = b.y + b.height <= a.y
    x, y, u, v = (
        a.x + a.width / 2,
        a.y if up else a.y + a.height,
        b.x + b.width / 2,
        b.y + b.height if up else b.y,
    )
    return [(x, y), (x, (y + v) / 2), (u, (y + v) / 2), (u, v)]


def _on(way: Points, t: float) -> tuple[float, float]:
    """The point at t of a Bézier curve's one piece."""
    weights = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
    return tuple(sum(w * p[axis] for w, p in zip(weights, way, strict=True)) for axis in (0, 1))


def _lines(edges: list[dict], shown: dict[str, str], boxes: dict[str, Box]) -> tuple[list, list]:
    """The edges between boxes that stand side by side, and those that enter a box: these become stubs."""
    beside: dict[tuple[str, str], dict] = {}
    apart: dict[tuple[str, str], dict] = {}
    for edge in edges:
        a, b = shown[edge["source"]], shown[edge["target"]]
        if a == b or a in _around(b, boxes) or b in _around(a, boxes):
            continue
        if boxes[a].node["parent"] == boxes[b].node["parent"]:
            kept = beside.setdefault((a, b), edge)
            if kept is not edge and edge["shape"] not in kept["shape"]:
                beside[a, b] = kept | {
                    "shape": f"{kept['shape']} {edge['shape']}",
                    "bytes": kept["bytes"] + edge["bytes"],
                }
        else:
            apart.setdefault((a, b), edge)
    return [(a, b, e) for (a, b), e in beside.items()], [(a, b, e) for (a, b), e in apart.items()]


def _around(name: str, boxes: dict[str, Box]) -> list[str]:
    found = []
    while name := boxes[name].node["parent"]:
        found.append(name)
    return found


def _cut(outer: list[Box], lines: list, pairs: list | None) -> tuple[list, list]:
    """(kept, cut): cut are the lines that span more than `LONG` ranks; of a gradient, more than one band."""
    if pairs is None:
        groups = defaultdict(list)
        number = {box.node["node"]: at for at, box in enumerate(outer)}
        for a, b, edge in lines:
            groups[a in number and b in number].append((a, b, edge))
        rank = ranks(len(outer), [(number[a], number[b]) for a, b, _ in groups[True]])
        span = {(a, b): rank[number[b]] - rank[number[a]] for a, b, _ in groups[True]}
    else:
        band = {name: at for at, pair in enumerate(pairs) for half in pair for name in half}
        half = {name: side for pair in pairs for side, names in enumerate(pair) for name in names}
        span = {
            (a, b): LONG + 1
            for a, b, _ in lines
            if a in band and b in band and abs(band[a] - band[b]) > (half[a] == half[b])
        }
    limit = LONG
    while limit > 1 and sum(max(0, s - 1) for s in span.values() if s <= limit) > MOST_DUMMIES:
        limit -= 1
    kept, cut = [], []
    for a, b, edge in lines:
        (cut if span.get((a, b), 1) > limit else kept).append((a, b, edge))
    return kept, cut


def _size(box: Box, near: dict, engine: str, drawing: Drawing) -> None:
    """How large a box is: its words and stubs, or what stands in it."""
    words = [name_of(box), detail_of(box)]
    stubs = STUB * (bool(box.from_) + bool(box.to))
    box.width = max(84.0, 26 + 7.9 * max(map(len, words)), *(24 + 6.8 * len(s) for s in stubs_of(box)))
    box.height = 10 + LINE * (1 + bool(words[1])) + stubs
    if box.inside:
        for inner in box.inside:
            _size(inner, near, engine, drawing)
        width, height = _arrange(box.inside, near[box.node["node"]], engine, drawing)
        for inner in box.inside:
            inner.x, inner.y = inner.x + PAD, inner.y + PAD + TITLE + STUB * bool(box.from_)
        box.width = max(box.width, width + 2 * PAD)
        box.height = height + 2 * PAD + TITLE + stubs


def _arrange(
    boxes: list[Box], edges: list[tuple[str, str]], engine: str, drawing: Drawing
) -> tuple[float, float]:
    """Give boxes that stand side by side their corners; the width and height that they take."""
    number = {box.node["node"]: at for at, box in enumerate(boxes)}
    pairs = [(number[a], number[b]) for a, b in edges if a in number and b in number]
    placed = place([(box.width, box.height) for box in boxes], pairs, engine)
    drawing.engines.add(placed.engine)
    names = [box.node["node"] for box in boxes]
    drawing.routes |= {(names[a], names[b]): way for (a, b), way in placed.routes.items()}
    for box, (x, y) in zip(boxes, placed.corners, strict=True):
        box.x, box.y = x, y
    return placed.width, placed.height


def _beside(drawing: Drawing, pairs: list, edges: list[tuple[str, str]]) -> None:
    """The bands, top to bottom: forward on the left pointing down, backward on the right pointing up."""
    boxes, rows, y = drawing.boxes, [], 0.0
    side_of = {name: (at, side) for at, pair in enumerate(pairs) for side in (0, 1) for name in pair[side]}
    within = defaultdict(list)
    for a, b in edges:
        if side_of.get(a) == side_of.get(b):
            within[side_of.get(a)].append((a, b))
    for at, halves in enumerate(pairs):
        sides = [[boxes[name] for name in half if name in boxes] for half in halves]
        down = _arrange(sides[0], within[at, 0], "plain", drawing)
        up = _arrange(sides[1], [(b, a) for a, b in within[at, 1]], "plain", drawing)
        rows.append((at, sides, down, up))
    left, right = max(row[2][0] for row in rows), max(row[3][0] for row in rows)
    near_left, near_right = (_usual([row[side][0] for row in rows]) for side in (2, 3))
    for at, sides, down, up in rows:
        height = max(down[1], up[1])
        _shift(
            drawing, sides[0], within[at, 0], min(left - down[0], left - (near_left + down[0]) / 2), y + TITLE
        )
        _shift(
            drawing,
            sides[1],
            [(b, a) for a, b in within[at, 1]],
            left + MIDDLE + max(0, (near_right - up[0]) / 2),
            y + TITLE + height - up[1],
        )
        for a, b in within[at, 1]:
            drawing.routes[a, b] = drawing.routes.pop((b, a))[::-1]
        line = next(
            (box.node["line"] for side in sides for box in side if box.node["line"] is not None), None
        )
        drawing.bands.append((y, height + TITLE + 8, f"line {line}" if line is not None else ""))
        y += height + TITLE + GAP_Y
    drawing.width, drawing.height, drawing.middle = left + MIDDLE + right, y - GAP_Y, left + MIDDLE / 2


def _usual(widths: list[float]) -> float:
    """A width that most bands keep: they are centred within it, near the other half; wider ones reach out."""
    return sorted(widths)[len(widths) * 3 // 4]


def _shift(drawing: Drawing, boxes: list[Box], edges: list[tuple[str, str]], x: float, y: float) -> None:
    for box in boxes:
        box.x, box.y = box.x + x, box.y + y
    for pair in edges:
        drawing.routes[pair] = [(u + x, v + y) for u, v in drawing.routes[pair]]


def _settle(box: Box, x: float, y: float) -> None:
    """Corners within the picture, instead of within the box around."""
    box.x, box.y = round(box.x + x, 1), round(box.y + y, 1)
    for inner in box.inside:
        _settle(inner, box.x, box.y)
