"""The nodes of Model Explorer's graphs, from a walk's document: jaxpr, StableHLO, optimised HLO.

A node has `id`, `label`, `namespace` (the nested boxes that it lies in, a/b/c), `attrs`, `incomingEdges`; see
Model Explorer's `graph_builder.py`. Ids are the walk's own: equations, ops, instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .stages.hlo import Instruction, Module, parse

_BOUND = re.compile(r"(?<![\w.=])([a-z]{1,4}|_)(?=:\S)")
_USED = re.compile(r"(?<![\w.=:\[(])([a-z]{1,4})(?![\w=\[(:.])")
_VALUE = re.compile(r"%[\w$.\-]+")
_NUMBER = re.compile(r"parameter\((\d+)\)")

Node = dict[str, Any]


def node(name: str, label: str, sources: list[str], namespace: str = "", **attrs: Any) -> Node:
    """One node; `sources` are the ids that its inputs come from, in their order."""
    shown = {key: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v)
             for key, v in attrs.items() if v not in (None, "", [], ())}  # fmt: skip
    edges = [{"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(n)}
             for n, source in enumerate(sources)]  # fmt: skip
    listed = [{"key": key, "value": value} for key, value in shown.items()]
    return {"id": name, "label": label, "namespace": namespace, "attrs": listed, "incomingEdges": edges}


# ---- jaxpr -----------------------------------------------------------------------------------------------


def jaxpr_nodes(document: dict[str, Any]) -> Iterator[Node]:
    """One node per equation; those of a loop's body or a called function lie in a box of its name.

    A body's own parameters come from the equation that holds the body.
    """
    stage = document["stages"]["jaxpr"]
    lines = stage["text"].split("\n")
    rows = _records(stage["table"])
    labels = {row["equation"]: str(row["primitive"]) for row in rows}
    holders = {_holder(row["equation"]) for row in rows}
    makers: dict[tuple[str, str], str] = {}
    for name in _BOUND.findall(lines[0].split(". let", 1)[0].rpartition(";")[2]):
        makers["", name] = f"argument {name}"
        yield node(f"argument {name}", name, [], "arguments")
    for row in rows:
        equation, holder = row["equation"], _holder(row["equation"])
        outputs, operands = _equation(lines, row["text_line"])
        sources = [makers.get((_scope(equation), name), holder) for name in operands]
        makers.update({(_scope(equation), name): equation for name in outputs})
        box = _box(equation if equation in holders else holder, labels)
        attrs = {k: row[k] for k in ("inputs", "outputs", "params", "scope", "trips", "flops", "bytes")}
        where = f"{row['file']}:{row['line']}" if row["line"] else ""
        known = [source for source in sources if source]
        yield node(equation, labels[equation], known, box, **attrs, source=where)


def _holder(equation: str) -> str:
    """`e3` of `e3.call_jaxpr.e0`."""
    parts = equation.split(".")[:-1]
    while parts and not re.fullmatch(r"e\d+", parts[-1]):
        parts.pop()
    return ".".join(parts)


def _scope(equation: str) -> str:
    """`e3.call_jaxpr` of `e3.call_jaxpr.e0`: names mean one thing within it."""
    return equation.rpartition(".")[0]


def _box(holder: str, labels: dict[str, str]) -> str:
    boxes = []
    while holder:
        boxes.append(f"{labels.get(holder, '').replace('/', '_').replace(';', '_')} {holder}")
        holder = _holder(holder)
    return "/".join(reversed(boxes))


def _equation(lines: list[str], line: int | None) -> tuple[list[str], list[str]]:
    """The names that the equation printed at a line defines and uses."""
    if not line:
        return [], []
    head, _, rest = lines[line - 1].partition(" = ")
    text = "\n".join([rest, *lines[line : line + 400]])
    start = re.match(r"[\w\-]+", text)
    end = start.end() if start else 0
    if text[end : end + 1] == "[":
        end = _closing(text, end)
    return _BOUND.findall(head), _USED.findall(" " + text[end:].split("\n", 1)[0])


def _closing(text: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in "[{(") - (text[place] in "]})")
        if not depth:
            return place + 1
    return len(text)


# ---- StableHLO -------------------------------------------------------------------------------------------


def stablehlo_nodes(document: dict[str, Any]) -> Iterator[Node]:
    """One node per op; a private function is a box, with a node that stands for its parameters."""
    stage = document["stages"]["stablehlo"]
    lines = stage["text"].split("\n")
    makers: dict[str, str] = {}
    function = ""
    for row in _records(stage["table"]):
        line = lines[row["text_line"] - 1] if row["text_line"] else ""
        if row["name"] == "module":
            continue
        if row["name"] == "func.func":
            symbol = re.search(r"@([\w.$\-]+)", line)
            function = symbol[1] if symbol else row["op"]
            makers = dict.fromkeys(_VALUE.findall(line), row["op"])
            sources = []
        else:
            sources = [makers[name] for name in _names(row["operands"]) if name in makers]
            makers.update(dict.fromkeys(_VALUE.findall(_defined(line)), row["op"]))
        attrs = {"result": row["result"], "equations": row["equations"]}
        yield node(row["op"], row["name"], sources, function, **attrs, text=line.strip())


def _defined(line: str) -> str:
    """What a line gives names to: its results, and the names of a loop's state (%arg = %0)."""
    return line.partition(" = ")[0] + " ".join(re.findall(r"(%[\w.$\-]+) = %", line))


def _names(operands: list[str] | None) -> list[str]:
    return [str(operand).partition("#")[0] for operand in operands or ()]


# ---- optimised HLO ---------------------------------------------------------------------------------------


def hlo_nodes(document: dict[str, Any]) -> Iterator[Node]:
    """One node per instruction. A fusion is a box of its members, whose edges cross its wall."""
    stage = document["stages"]["hlo"]
    module = parse(stage["text"])
    rows = {row["instruction"]: row for row in _records(stage["table"])}
    callers = module.callers()
    for computation, instructions in module.computations.items():
        caller = callers.get(computation)
        fused = caller is not None and caller.opcode == "fusion"
        for i in instructions:
            if (i.opcode == "fusion" and _root(i, module) is not None) or (fused and i.opcode == "parameter"):
                continue
            sources = [source for name in i.operands if (source := _source(name, module, callers))]
            if i.opcode == "parameter" and caller is not None:
                sources = [caller.name]
            row = rows.get(i.name, {})
            attrs = {"shape": i.shape, "equations": row.get("equations"), "how": row.get("how")}
            yield node(i.name, i.opcode, sources, _boxes(computation, callers), **attrs, text=i.text.strip())


def _source(name: str, module: Module, callers: dict[str, Instruction]) -> str | None:
    """The node that a value comes from: out of a fusion its root, into one what it was called with."""
    for _ in range(100):  # walls within walls
        found = module.instructions.get(name)
        if found is None:
            return None
        caller = callers.get(found.computation)
        if found.opcode == "fusion" and (root := _root(found, module)) is not None:
            name = root.name
        elif found.opcode == "parameter" and caller is not None and caller.opcode == "fusion":
            number = _NUMBER.search(found.text)
            if number is None or int(number[1]) >= len(caller.operands):
                return None
            name = caller.operands[int(number[1])]
        else:
            return name
    return None


def _root(fusion: Instruction, module: Module) -> Instruction | None:
    members = module.computations.get(fusion.called[0], []) if fusion.called else []
    return next((member for member in members if member.root), None)


def _boxes(computation: str, callers: dict[str, Instruction]) -> str:
    boxes: list[str] = []
    while (caller := callers.get(computation)) is not None and len(boxes) < 100:
        boxes.append(caller.name if caller.opcode == "fusion" else f"{caller.name} {computation}")
        computation = caller.computation
    return "/".join(reversed(boxes))


def _records(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
