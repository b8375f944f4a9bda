"""A drawing as SVG that runs nothing and asks for nothing: readable in light, in dark and without colour."""

from __future__ import annotations

import html
from typing import Any

from ..picture import COLOURS
from ..static import visible
from .box import Box, detail_of, name_of, readable, stubs_of
from .drawing import LINE, STUB, Drawing, across

MARGIN, HEAD, KEY = 20.0, 66.0, 30.0
STYLE = """
svg{--back:#fff;--box:#f6f7f9;--edge:#5b6470;--ink:#16191d;--soft:#4a525c;--keep:#a33d00;
background:var(--back);font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media (prefers-color-scheme:dark){svg{--back:#14171b;--box:#20252b;--edge:#9aa5b1;--ink:#f2f4f6;
--soft:#b9c2cc;--keep:#ff9d5c}}
text{fill:var(--ink);font-size:13px;white-space:pre}.soft{fill:var(--soft)}
.stub{fill:var(--soft);font-size:11px}
.title{font-size:19px;font-weight:700}.node{fill:var(--box);stroke:var(--edge);stroke-width:1.2}
.shut{stroke-width:3}
.open{fill:none;stroke:var(--edge);stroke-width:1.6;stroke-dasharray:7 4}.band{fill:var(--edge);opacity:.09}
.line{fill:none;stroke:var(--edge);stroke-width:1.4}
.keep{stroke:var(--keep);stroke-width:2;stroke-dasharray:6 3}
.kept{fill:var(--keep);font-size:11px;paint-order:stroke;stroke:var(--back);stroke-width:4px;font-weight:700}
.mark{stroke:var(--ink);stroke-width:.6}
"""


def svg(drawing: Drawing, title: str, notes: list[str]) -> str:
    """The picture as one string; every name in it is text. The same drawing gives the same bytes."""
    key = [o for o in COLOURS if any(box.node["operator"] == o for box in drawing.boxes.values())]
    head = HEAD + KEY + (26 if drawing.bands else 0) + 17 * max(0, len(notes) - 1)
    widest = max(
        [
            11.6 * len(visible(title)[:80]),
            *(8 * len(note) for note in notes),
            125.0 * len(key),
            drawing.middle + 500 if drawing.bands else 0,
        ]
    )
    width, height = max(drawing.width, widest) + 2 * MARGIN, drawing.height + head + 2 * MARGIN
    said = " ".join(
        [f"{len(drawing.boxes)} boxes and {len(drawing.lines)} lines from top to bottom.", *notes]
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="graph-title graph-desc" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}">',
        f'<title id="graph-title">{text(title, 300)}</title><desc id="graph-desc">{text(said, 2000)}</desc>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" fill="context-stroke"/>'
        "</marker></defs>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="var(--back)"/>',
        f'<text class="title" x="{MARGIN}" y="34">{text(title, 80)}</text>',
    ]
    parts += [
        f'<text class="soft" x="{MARGIN}" y="{56 + 17 * at}">{text(note, 400)}</text>'
        for at, note in enumerate(notes)
    ]
    parts += _key(key, HEAD + 17 * max(0, len(notes) - 1))
    parts.append(f'<g transform="translate({MARGIN} {head + MARGIN:.0f})">')
    parts += _bands(drawing)
    parts += [_box(box) for box in drawing.boxes.values() if box.inside]
    parts += [_line(drawing, edge) for edge in drawing.lines]
    parts += [_box(box) for box in drawing.boxes.values() if not box.inside]
    return "\n".join([*parts, "</g>", "</svg>"])


def text(value: Any, most: int) -> str:
    """Untrusted text for an SVG: clipped, hidden characters spelt out, none that XML forbids."""
    shown = visible(str(value)[: most + 1])
    shown = "".join(
        c if c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff" else "\ufffd"
        for c in shown
    )
    return html.escape(shown if len(shown) <= most else shown[: most - 1] + "…")


def _key(operators: list[str], y: float) -> list[str]:
    return [
        f'<rect class="mark" x="{MARGIN + 125 * at}" y="{y + 4}" width="14" height="14" '
        f'fill="{COLOURS[name]}"/><text x="{MARGIN + 20 + 125 * at}" y="{y + 16}">{name}</text>'
        for at, name in enumerate(operators)
    ]


def _bands(drawing: Drawing) -> list[str]:
    if not drawing.bands:
        return []
    right = drawing.middle + 8
    parts = [
        f'<text x="{right - 40:.1f}" y="-12" text-anchor="end">forward, top to bottom ↓</text>',
        f'<text x="{right:.1f}" y="-12">backward, bottom to top ↑ (beside the line it came from)</text>',
    ]
    for y, height, name in drawing.bands:
        parts.append(
            f'<rect class="band" x="-10" y="{y:.1f}" width="{drawing.width + 20:.1f}" height="{height:.1f}" '
            f'rx="6"/><text class="soft" x="-2" y="{y + 16:.1f}">{text(name, 40)}</text>'
        )
    return parts


def _box(box: Box) -> str:
    node = box.node
    line = f"line {node['line']}" if node["line"] is not None else ""
    facts = [
        node["node"],
        node["label"],
        node["shape"],
        line,
        node["scope"] and f"scope {str(node['scope'])[:300]}",
        f"operator {node['operator']}",
        node.get("partner") and f"backward of {node['partner']} (inferred from line and name)",
    ]
    facts += [
        f"{name} {shape}"
        for far, word in ((box.from_, "from"), (box.to, "to"))
        for name, shape in [(f"{word} {n}", s) for n, s in list(far.items())[:12]]
    ]
    title = " · ".join(str(fact)[:400] for fact in facts if fact)
    stubs, x, y, bar = stubs_of(box), box.x, box.y, 26 if box.inside else round(box.height, 1)
    kind = "open" if box.inside else "node shut" if box.holds else "node"
    parts = [
        f'<g data-node="{text(node["node"], 200)}"><title>{text(title, 3000)}</title>'
        f'<rect class="{kind}" x="{x}" y="{y}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5"/>'
        f'<rect class="mark" x="{x}" y="{y}" width="9" height="{bar}" rx="3" '
        f'fill="{COLOURS[node["operator"]]}"/>'
    ]
    at = y
    if box.from_:
        at += STUB
        parts.append(f'<text class="stub" x="{x + 15}" y="{at - 2:.1f}">{text(stubs[0], 120)}</text>')
    parts.append(f'<text x="{x + 15}" y="{at + 18:.1f}">{text(name_of(box), 90)}</text>')
    if not box.inside and node["shape"]:
        parts.append(
            f'<text class="soft" x="{x + 15}" y="{at + 18 + LINE:.1f}">{text(detail_of(box), 60)}</text>'
        )
    if box.to:
        parts.append(
            f'<text class="stub" x="{x + 15}" y="{y + box.height - 5:.1f}">{text(stubs[-1], 120)}</text>'
        )
    return "".join(parts) + "</g>"


def _line(drawing: Drawing, edge: dict[str, Any]) -> str:
    ends = edge["source"], edge["target"]
    title = f"{ends[0][:200]} → {ends[1][:200]} · {edge['shape']} · {edge['bytes']:,} bytes"
    way = drawing.routes.get(ends) or across(drawing.boxes[ends[0]], drawing.boxes[ends[1]])
    start, *rest = [f"{x:.1f} {y:.1f}" for x, y in way]
    kept, label = " keep" if edge.get("residual") else "", ""
    if kept and drawing.bands and len(way) == 4:
        x, y = (way[0][0] + way[-1][0]) / 2, (way[0][1] + way[-1][1]) / 2
        size = readable(edge["bytes"])
        label = f'<text class="kept" x="{x:.1f}" y="{y - 4:.1f}" text-anchor="middle">{size}</text>'
    return (
        f'<g><title>{text(title, 600)}</title><path class="line{kept}" d="M{start}C{" ".join(rest)}" '
        f'marker-end="url(#tip)"/>{label}</g>'
    )
