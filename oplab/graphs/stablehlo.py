"""StableHLO as nodes and edges."""

from __future__ import annotations

import re
from typing import Any

from .facts import equations, indent, node, owned


def read(walk: Any, nodes: dict, edges: list) -> None:
    """Names mean something within their region and the regions inside it; the indentation shows which."""
    lines = walk.stablehlo.text.split("\n")
    rows = equations(walk)
    open_: list[tuple[int, str, dict[str, tuple[str, str]]]] = []  # indent, op, the values known inside
    for row in walk.stablehlo.table.to_dict("records"):
        row = {"operands": (), "result": "", "equations": ()} | row
        line = lines[row["text_line"] - 1]
        if row["name"] in ("module", "stablehlo.return", "return", "func.return"):
            continue
        while open_ and open_[-1][0] >= indent(line):
            open_.pop()
        if row["name"] == "func.func" and re.search(r"@main\(", line):  # the program itself is no box
            open_.append((indent(line), "", _arguments(line, "", nodes)))
            continue
        name, parent = row["op"], open_[-1][1] if open_ else ""
        known = open_[-1][2] if open_ else {}
        label = row["name"].removeprefix("stablehlo.")
        if row["name"] in ("func.func", "call", "func.call"):
            label = " ".join([label.removeprefix("func."), *re.findall(r"@(\S+?)\(", line)[:1]])
        nodes[name] = node(
            name, label, shape=row["result"] or "", parent=parent, **owned(row["equations"], rows)
        )
        values = [known.get(operand.partition("#")[0]) for operand in row["operands"]]
        inside = dict(known)
        if row["name"] == "func.func":
            inside = _arguments(line, name, nodes)
        elif row["name"] == "stablehlo.while":
            inside |= {
                arg: value for arg, value in zip(row["operands"][::2], values[1::2], strict=False) if value
            }
        edges += [(value[0], name, value[1]) for value in values if value]
        results = re.match(r"\s*(%\w+)", line) if " = " in line else None
        if results:
            known[results[1]] = (name, row["result"] or "")
        open_.append((indent(line), name, inside))


def _arguments(line: str, function: str, nodes: dict) -> dict[str, tuple[str, str]]:
    """The arguments in a function's head, now nodes of its box: variable -> (node, shape)."""
    found = {}
    for number, (variable, shape) in enumerate(re.findall(r"(%arg\d+): (tensor<[^>]*>)", line)):
        name = f"{function}.in{number}" if function else f"in{number}"
        nodes[name] = node(name, "input", shape=shape, variable=variable, parent=function)
        found[variable] = name, shape
    return found
