"""How long a picture of a program takes, whether any boxes overlap, and whether it is the same on every run.

    python -m oplab.tools.graph_figures                 gradients of 4 and 24 layers, and small ones
    python -m oplab.tools.graph_figures --engine plain  the layout without Graphviz

Seconds are from the finished tables of a stage to the SVG. The exit status is 1 when a figure is missed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time

import pandas as pd

import oplab
from oplab.graphs import graph
from oplab.tools.golden import golden, transformer_args, transformer_grad
from oplab.views.graph import Graph
from oplab.views.graph.box import Box

LIMITS = {"gradient, 4 layers": 1.0, "gradient, 24 layers": 5.0}  # seconds, for the jaxpr
SMALL = ("relu_chain", "attention", "attention_grad", "scan_mlp", "while_loop")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Figures of the pictures of programs.")
    parser.add_argument("--engine", choices=("graphviz", "plain"), default="graphviz")
    engine = parser.parse_args(arguments).engine
    programs = {name: golden()[name] for name in SMALL}
    programs |= {f"gradient, {n} layers": (transformer_grad, transformer_args(n)) for n in (4, 24)}
    rows = []
    for name, (function, args) in programs.items():
        walk = oplab.walk(function, *args)
        for stage in ("jaxpr",) if name == "gradient, 24 layers" else ("jaxpr", "stablehlo", "hlo"):
            rows.append({"program": name, **figures(walk, stage, engine), "limit_s": LIMITS.get(name)})
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    late = (table["stage"] == "jaxpr") & (table["seconds"] > table["limit_s"])
    wrong = late | (table["overlaps"] > 0) | ~table["same"]
    return int(wrong.any())


def figures(walk: oplab.Walk, stage: str, engine: str) -> dict[str, object]:
    """One row of the table."""
    getattr(walk, stage), walk.jaxpr  # the tables are ready before the clock starts
    began = time.perf_counter()
    first = drawn(walk, stage, engine)
    hashlib.sha256(first.svg.encode()).digest()
    took = time.perf_counter() - began
    return {
        "stage": stage,
        "nodes": len(first.nodes),
        "values": len(first.edges),
        "boxes": len(first.drawing.boxes),
        "cut": first.drawing.cut,
        "seconds": round(took, 2),
        "overlaps": len(overlaps(first)),
        "same": first.svg == drawn(walk, stage, engine).svg,
        "kB": len(first.svg) // 1000,
    }


def drawn(walk: oplab.Walk, stage: str, engine: str) -> Graph:
    made = graph(walk, stage)
    made._engine = engine
    return made


def overlaps(made: Graph) -> list[tuple[str, str]]:
    """Pairs of boxes that share ground, though neither holds the other; and those that leave their box."""
    found = []
    groups: dict[str, list[Box]] = {}
    for box in made.drawing.boxes.values():
        groups.setdefault(box.node["parent"], []).append(box)
    for parent, boxes in groups.items():
        boxes.sort(key=lambda box: box.y)
        for at, a in enumerate(boxes):
            for b in boxes[at + 1 :]:
                if b.y >= a.y + a.height:
                    break
                if a.x < b.x + b.width and b.x < a.x + a.width:
                    found.append((a.node["node"], b.node["node"]))
        around = made.drawing.boxes.get(parent)
        found += [(parent, box.node["node"]) for box in boxes if around and not _within(box, around)]
    return found


def _within(box: Box, around: Box) -> bool:
    return (
        around.x <= box.x
        and box.x + box.width <= around.x + around.width
        and around.y <= box.y
        and box.y + box.height <= around.y + around.height
    )


if __name__ == "__main__":
    sys.exit(main())
