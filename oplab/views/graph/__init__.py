"""A program as a picture: boxes for what is computed, lines for the values that go from one to the next."""

from __future__ import annotations

import html
import os
from functools import cached_property
from typing import Any

import pandas as pd

from ..static import frame, policy, styles, visible, write
from . import bands, collapse, drawing
from .box import readable
from .svg import svg

NODES = ["node", "label", "operator", "inputs", "shape", "parent", "scope", "line", "half", "partner"]
EDGES = ["source", "target", "shape", "bytes", "residual"]


class Graph:
    """A graph to look at, from `walk.graph(stage)`.

    nodes: node, label, operator, inputs, shape, parent (the box around it), scope, line, half ("forward",
        "backward" or ""), partner (the forward node that a backward one came from, inferred).
    edges: source, target, shape, bytes, residual (does it go from a gradient's forward half to the other?).
    svg: the picture, a string. note: what the picture leaves out, in words.
    """

    def __init__(
        self,
        title: str,
        nodes: list[dict[str, Any]],
        edges: list[dict[str, Any]],
        depth: int | None = None,
        engine: str = "graphviz",
    ) -> None:
        half = {node["node"]: node["half"] for node in nodes}
        edges = [
            edge | {"residual": half[edge["target"]] == "backward" and half[edge["source"]] != "backward"}
            for edge in edges
        ]
        self.title, self._nodes, self._edges, self._depth, self._engine = title, nodes, edges, depth, engine
        self._pairs = bands.bands(nodes, edges)
        if self._pairs:
            partner = bands.partners(nodes, self._pairs)
            self._nodes = [node | {"partner": partner.get(node["node"], "")} for node in nodes]

    @cached_property
    def nodes(self) -> pd.DataFrame:
        inputs: dict[str, list[str]] = {}
        for edge in self._edges:
            inputs.setdefault(edge["target"], []).append(edge["source"])
        rows = [
            {"partner": ""} | node | {"inputs": tuple(inputs.get(node["node"], ()))} for node in self._nodes
        ]
        return pd.DataFrame(rows, columns=NODES).astype({"line": "Int64"})

    @cached_property
    def edges(self) -> pd.DataFrame:
        return pd.DataFrame(self._edges, columns=EDGES)

    @property
    def table(self) -> pd.DataFrame:
        return self.nodes

    @cached_property
    def drawing(self) -> drawing.Drawing:
        return drawing.draw(self._nodes, self._edges, self._shown[0], self._engine, self._seen_pairs)

    @cached_property
    def note(self) -> str:
        parts = [f"{len(self._nodes):,} nodes, {len(self._edges):,} values.", self._shown[1]]
        kept = {(edge["source"], edge["shape"]): edge["bytes"] for edge in self._edges if edge["residual"]}
        if self._pairs:
            size = readable(sum(kept.values()))
            parts.append(f"{len(kept):,} residuals, {size}, are kept for the backward half.")
        if self.drawing.cut:
            lines = "1 long line is" if self.drawing.cut == 1 else f"{self.drawing.cut:,} long lines are"
            parts.append(f"{lines} cut: look for “from” and “to”.")
        if self._engine == "graphviz" and not self._pairs and "graphviz" not in self.drawing.engines:
            parts.append("Laid out in plain Python: pygraphviz is missing, or the graph too large for it.")
        return " ".join(filter(None, parts))

    @cached_property
    def svg(self) -> str:
        sentences = self.note.replace(". ", ".\n").split("\n")
        return svg(
            self.drawing, self.title, [" ".join(sentences[:2]), *filter(None, [" ".join(sentences[2:])])]
        )

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the picture (`.svg`) or a page that holds it (`.html`); returns the path."""
        path = os.fspath(path)
        if not path.endswith((".svg", ".html", ".htm")):
            raise ValueError(f"save expects a path ending in .svg or .html, got {path!r}.")
        return write(path, self.svg if path.endswith(".svg") else self._page())

    @cached_property
    def _shown(self) -> tuple[dict[str, str], str]:
        return collapse.collapse(self._nodes, self._depth)

    @property
    def _seen_pairs(self) -> list[tuple[list[str], list[str]]] | None:
        if self._pairs is None:
            return None
        seen = set(self._shown[0].values())
        pairs = [tuple([name for name in half if name in seen] for half in pair) for pair in self._pairs]
        return [pair for pair in pairs if pair[0] or pair[1]]

    def _page(self) -> str:
        style = ":root{color-scheme:light dark}body{margin:0}"
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy([style, *styles(self.svg)])}">'
            f"<title>{html.escape(visible(self.title[:80]))}</title>"
            f"<style>{style}</style>{self.svg}</html>"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """A frame that runs nothing, for a notebook; the bare picture and the text where frames are cut."""
        framed = frame(
            self._page(),
            f"Graph of {self.title[:80]}",
            min(720, int(self.drawing.height) + 190),
            "No picture above? Some viewers cut frames out. The same, as text.",
            f"<pre>{html.escape(repr(self))}</pre>",
            scripts=False,
        )
        return {"text/plain": repr(self), "image/svg+xml": self.svg, "text/html": framed}

    def __repr__(self) -> str:
        shown = self.nodes[["node", "label", "operator", "inputs", "shape", "scope"]].head(60)
        shown = shown.map(lambda value: visible(str(value)[:60]))
        more = f"\n… {len(self._nodes) - 60:,} more: see .nodes" if len(self._nodes) > 60 else ""
        return f"{visible(self.title[:80])}\n{self.note}\n{shown.to_string(index=False)}{more}"
