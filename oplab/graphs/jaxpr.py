"""The jaxpr as nodes and edges: its equations, and the values that go from one to the next."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from ..views.timeline import operator
from .facts import equations, indent, node, whole

_VARIABLE = re.compile(r"(?<![\w.])([a-z]+|_):")
_NAME = re.compile(r"\bname=(\S+)")


def read(walk: Any, nodes: dict, edges: list) -> None:
    """Equations name their operands only in the text; the table says on which line each stands."""
    lines, rows = walk.jaxpr.text.split("\n"), equations(walk)
    texts = _texts(lines, rows)
    bodies: dict[str, dict[str, list[dict]]] = defaultdict(dict)  # of an equation, by their place in it
    for name, row in rows.items():
        parent, where = _place(name)
        bodies[parent].setdefault(where, []).append(row)
        nodes[name] = _equation(row, parent, rows, nodes)
    outer = bodies.get("", {}).get("", [])
    binders = _binders(lines, outer[0]) if outer else []
    inputs = {variable: (f"in{number}", shape) for number, (variable, shape) in enumerate(binders)}
    _body(outer, inputs, bodies, lines, texts, edges)
    used = {source for source, _, _ in edges}
    for variable, (name, shape) in inputs.items():
        if name in used:
            nodes[name] = node(name, "input", shape=shape, variable=variable)


def _equation(row: dict, parent: str, rows: dict, nodes: dict) -> dict[str, Any]:
    scope = str(row["scope"] or "")
    half = "backward" if "transpose(" in scope else "forward" if "jvp(" in scope else ""
    called = _NAME.search(str(row["params"]))
    label = f"{row['primitive']} {called[1]}" if called and row["primitive"] != "name" else row["primitive"]
    trips = re.search(r"\blength=(\d+)", str(row["params"])) if row["primitive"] == "scan" else None
    return node(
        row["equation"],
        label + (f" × {trips[1]}" if trips else ""),
        parent=parent,
        scope=scope,
        operator=operator(row["equation"], rows),
        shape=" ".join(row["outputs"]),
        line=whole(row["line"]),
        half=half or (nodes[parent]["half"] if parent in nodes else ""),
    )


def _place(equation: str) -> tuple[str, str]:
    """`e6.branches.0.e1` stands in `branches.0` of `e6`."""
    parts = equation.split(".")
    for at in range(len(parts) - 2, -1, -1):
        if re.fullmatch(r"e\d+", parts[at]):
            return ".".join(parts[: at + 1]), ".".join(parts[at + 1 : -1])
    return "", ""


def _body(
    body: list[dict], known: dict, bodies: dict, lines: list[str], texts: dict[str, str], edges: list
) -> None:
    """Follow the values through one jaxpr. known: variable -> (the node that made it, its type)."""
    known = dict(known)
    for row in body:
        name, text = row["equation"], texts[row["equation"]]
        words = text.rsplit(None, len(row["inputs"]))[1:] if row["inputs"] else []
        arguments = [known.get(word) for word in words]
        for argument in filter(None, arguments):
            edges.append((argument[0], name, argument[1]))
        for where, inner in bodies.get(name, {}).items():
            binders = _binders(lines, inner[0]) if row["primitive"] in HANDING else []
            _body(inner, _handed(row, where, arguments, binders), bodies, lines, texts, edges)
        made = _VARIABLE.findall(text.partition(" = ")[0])[-len(row["outputs"]) :] if row["outputs"] else []
        for variable, shape in zip(made, row["outputs"], strict=False):
            known[variable] = (name, shape)


# Inner jaxprs of these bind what the equation is given, in its order; those of others keep to themselves.
HANDING = frozenset(
    "scan while cond jit pjit closed_call core_call remat remat2 checkpoint custom_jvp_call custom_vjp_call "
    "custom_vjp_call_jaxpr shard_map".split()
)


def _handed(row: dict, where: str, arguments: list, binders: list) -> dict[str, tuple[str, str]]:
    """Which value each variable of an inner jaxpr starts as, by the order that its primitive keeps."""
    if where.startswith("branches"):
        arguments = arguments[1:]
    elif row["primitive"] == "while":
        counts = [int(n) for n in re.findall(r"\b(?:cond|body)_nconsts=(\d{1,4})", str(row["params"]))]
        body, test = counts[:2] if len(counts) > 1 else (0, 0)  # JAX prints them in the order of the alphabet
        own = arguments[:test] if where.startswith("cond") else arguments[test : test + body]
        arguments = own + arguments[test + body :]
    names = [name for name, _ in binders][-len(arguments) :] if arguments else []
    return {name: value for name, value in zip(names, arguments, strict=False) if value}


def _texts(lines: list[str], rows: dict[str, dict]) -> dict[str, str]:
    """Every equation as JAX printed it. A short jaxpr stands on one line, equation after equation."""
    texts, crowded = {}, defaultdict(list)
    for name, row in rows.items():
        number = whole(row["text_line"])
        if number and " let " in lines[number - 1]:
            crowded[number].append(name)
        else:
            texts[name] = _text(lines, row)
    for number, names in crowded.items():
        parts = re.split(r" let |; (?=[a-z_]+:)| in \(", lines[number - 1])
        said = [part for part in parts if " = " in part]
        texts |= dict(zip(names, said + [""] * len(names), strict=False))
    return texts


def _text(lines: list[str], row: dict) -> str:
    """An equation as JAX printed it, from its first line to its last operand."""
    number = whole(row["text_line"])
    if number is None:
        return ""
    first, found = lines[number - 1], [lines[number - 1]]
    depth = indent(first)
    for line in lines[number:]:
        if indent(line) < depth or (indent(line) == depth and not line.lstrip().startswith("]")):
            break
        found.append(line)
    closing = [
        at for at, line in enumerate(found) if indent(line) == depth and line.lstrip().startswith("]")
    ]
    return " ".join(found if not closing else [found[0], *found[closing[-1] :]])


def _binders(lines: list[str], first: dict) -> list[tuple[str, str]]:
    """The variables that a jaxpr binds, and their types, from the head above its first equation."""
    end = whole(first["text_line"])
    if end is None:
        return []
    start = next((at for at in range(end - 1, -1, -1) if "{ lambda" in lines[at]), None)
    if start is None:
        return []
    head = " ".join(lines[start:end]).rpartition("{ lambda")[2].partition(" let")[0]
    return re.findall(r"(?<![\w.])([a-z]+):(\S+?)(?=[\s;.]|$)", head)
