"""A walk's program as nodes and edges, read from the text and the table of one stage.

Live and saved walks are read alike, since both hold the same texts and tables. A node is an equation, an op
or an instruction; what holds others (a scan, a call, a fusion) is their `parent`. An edge is a value on its
way.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from .stages import hlo
from .views.graph import Graph
from .views.timeline import operator

_BITS = {"pred": 8, "bool": 8, "bf16": 16}
_ARRAY = re.compile(r"\b(pred|bool|bf16|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(i1|bf16|[a-z]+(\d+)\w*)>")
_VARIABLE = re.compile(r"(?<![\w.])([a-z]+|_):")
_NAME = re.compile(r"\bname=(\S+)")
_TYPES = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")


def graph(walk: Any, stage: str = "jaxpr") -> Graph:
    """The picture of one stage of a walk, live or loaded: "jaxpr", "stablehlo" or "hlo"."""
    if stage not in READERS:
        raise ValueError(f"graph expects one of the stages {', '.join(READERS)}, got {str(stage)[:80]!r}.")
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[str, str, str]] = []
    READERS[stage](walk, nodes, edges)
    unique = dict.fromkeys(edge for edge in edges if edge[0] in nodes and edge[1] in nodes)
    carried = [{"source": a, "target": b, "shape": shape, "bytes": size(shape)} for a, b, shape in unique]
    return Graph(f"{walk.name}: {stage}", _outside_in(nodes), carried)


def _outside_in(nodes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The nodes in their order, but each after the one that holds it; an unknown holder holds nothing."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, depth: int = 0) -> None:
        node = nodes[name]
        parent = node["parent"]
        if parent not in nodes or depth > 200:
            node["parent"] = ""
        elif parent not in found:
            add(parent, depth + 1)
        found.setdefault(name, node)

    for name in nodes:
        add(name)
    return list(found.values())


def size(shapes: str) -> int:
    """The bytes of all arrays that a type names, in the spelling of any stage; 0 for what is no array."""
    total = 0
    for dtype, bits, dimensions in _ARRAY.findall(shapes):
        total += _bytes(dtype, bits, dimensions.split(","))
    for dimensions, dtype, bits in _TENSOR.findall(shapes):
        total += _bytes(dtype, bits, dimensions.split("x"))
    return total


def _bytes(dtype: str, bits: str, dimensions: list[str]) -> int:
    count = 1
    for dimension in filter(None, dimensions):
        count *= int(dimension[:18])  # a forged size must not cost time
    return count * max(1, _BITS.get(dtype, 8 if dtype == "i1" else int((bits or "8")[:4])) // 8)


def _equations(walk: Any) -> dict[str, dict[str, Any]]:
    """The rows of the jaxpr's table by id; what an older document lacks is empty."""
    lacking = {"inputs": (), "outputs": (), "params": "", "scope": "", "line": None, "text_line": None}
    return {row["equation"]: lacking | row for row in walk.jaxpr.table.to_dict("records")}


def _node(name: str, label: str, **facts: Any) -> dict[str, Any]:
    empty = {"operator": "other", "shape": "", "parent": "", "line": None, "scope": "", "half": ""}
    return {"node": name, "label": label, **empty, **facts}


# ---- the jaxpr ---------------------------------------------------------------------------------------------


def _jaxpr(walk: Any, nodes: dict, edges: list) -> None:
    """Equations name their operands only in the text; the table says on which line each stands."""
    lines, rows = walk.jaxpr.text.split("\n"), _equations(walk)
    bodies: dict[str, dict[str, list[dict]]] = defaultdict(dict)  # of an equation, by their place in it
    for name, row in rows.items():
        parent, where = _place(name)
        bodies[parent].setdefault(where, []).append(row)
        nodes[name] = _equation(row, parent, rows, nodes)
    outer = bodies.get("", {}).get("", [])
    binders = _binders(lines, outer[0]) if outer else []
    inputs = {variable: (f"in{number}", shape) for number, (variable, shape) in enumerate(binders)}
    _body(outer, inputs, bodies, lines, edges)
    used = {source for source, _, _ in edges}
    for name, shape in inputs.values():
        if name in used:
            nodes[name] = _node(name, "input", shape=shape)


def _equation(row: dict, parent: str, rows: dict, nodes: dict) -> dict[str, Any]:
    scope = str(row["scope"] or "")
    half = "backward" if "transpose(" in scope else "forward" if "jvp(" in scope else ""
    called = _NAME.search(str(row["params"]))
    label = f"{row['primitive']} {called[1]}" if called and row["primitive"] != "name" else row["primitive"]
    trips = re.search(r"\blength=(\d+)", str(row["params"])) if row["primitive"] == "scan" else None
    return _node(
        row["equation"],
        label + (f" × {trips[1]}" if trips else ""),
        parent=parent,
        scope=scope,
        operator=operator(row["equation"], rows),
        shape=" ".join(row["outputs"]),
        line=_whole(row["line"]),
        half=half or (nodes[parent]["half"] if parent in nodes else ""),
    )


def _whole(number: Any) -> int | None:
    return int(number) if number is not None and number == number else None


def _place(equation: str) -> tuple[str, str]:
    """`e6.branches.0.e1` stands in `branches.0` of `e6`."""
    parts = equation.split(".")
    for at in range(len(parts) - 2, -1, -1):
        if re.fullmatch(r"e\d+", parts[at]):
            return ".".join(parts[: at + 1]), ".".join(parts[at + 1 : -1])
    return "", ""


def _body(body: list[dict], known: dict, bodies: dict, lines: list[str], edges: list) -> None:
    """Follow the values through one jaxpr. known: variable -> (the node that made it, its type)."""
    known = dict(known)
    for row in body:
        name, text = row["equation"], _text(lines, row)
        words = text.rsplit(None, len(row["inputs"]))[1:] if row["inputs"] else []
        arguments = [known.get(word) for word in words]
        for argument in filter(None, arguments):
            edges.append((argument[0], name, argument[1]))
        for where, inner in bodies.get(name, {}).items():
            binders = _binders(lines, inner[0]) if row["primitive"] in HANDING else []
            _body(inner, _handed(row, where, arguments, binders), bodies, lines, edges)
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


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _text(lines: list[str], row: dict) -> str:
    """An equation as JAX printed it, from its first line to its last operand."""
    number = _whole(row["text_line"])
    if number is None:
        return ""
    first, found = lines[number - 1], [lines[number - 1]]
    if " let " in first:  # a whole jaxpr on one line
        return first.partition(" let ")[2].partition(" in (")[0]
    depth = _indent(first)
    for line in lines[number:]:
        if _indent(line) < depth or (_indent(line) == depth and not line.lstrip().startswith("]")):
            break
        found.append(line)
    closing = [
        at for at, line in enumerate(found) if _indent(line) == depth and line.lstrip().startswith("]")
    ]
    return " ".join(found if not closing else [found[0], *found[closing[-1] :]])


def _binders(lines: list[str], first: dict) -> list[tuple[str, str]]:
    """The variables that a jaxpr binds, and their types, from the head above its first equation."""
    end = _whole(first["text_line"])
    if end is None:
        return []
    start = next((at for at in range(end - 1, -1, -1) if "{ lambda" in lines[at]), None)
    if start is None:
        return []
    head = " ".join(lines[start:end]).rpartition("{ lambda")[2].partition(" let")[0]
    return re.findall(r"(?<![\w.])([a-z]+):(\S+?)(?=[\s;.]|$)", head)


# ---- StableHLO ---------------------------------------------------------------------------------------------


def _stablehlo(walk: Any, nodes: dict, edges: list) -> None:
    """Names mean something within their region and the regions inside it; the indentation shows which."""
    lines = walk.stablehlo.text.split("\n")
    rows = _equations(walk)
    open_: list[tuple[int, str, dict[str, tuple[str, str]]]] = []  # indent, op, the values known inside
    for row in walk.stablehlo.table.to_dict("records"):
        row = {"operands": (), "result": "", "equations": ()} | row
        line = lines[row["text_line"] - 1]
        if row["name"] in ("module", "stablehlo.return", "return", "func.return"):
            continue
        while open_ and open_[-1][0] >= _indent(line):
            open_.pop()
        if row["name"] == "func.func" and re.search(r"@main\(", line):  # the program itself is no box
            arguments = re.findall(r"(%arg\d+): (tensor<[^>]*>)", line)
            inputs = {arg: (f"in{number}", shape) for number, (arg, shape) in enumerate(arguments)}
            nodes |= {name: _node(name, "input", shape=shape) for name, shape in inputs.values()}
            open_.append((_indent(line), "", inputs))
            continue
        name, parent = row["op"], open_[-1][1] if open_ else ""
        known = open_[-1][2] if open_ else {}
        label = row["name"].removeprefix("stablehlo.")
        if row["name"] in ("func.func", "call", "func.call"):
            label = " ".join([label.removeprefix("func."), *re.findall(r"@(\S+?)\(", line)[:1]])
        nodes[name] = _node(
            name, label, shape=row["result"] or "", parent=parent, **_owned(row["equations"], rows)
        )
        values = [known.get(operand.partition("#")[0]) for operand in row["operands"]]
        inside = dict(known)
        if row["name"] == "stablehlo.while":
            inside |= {
                arg: value for arg, value in zip(row["operands"][::2], values[1::2], strict=False) if value
            }
        edges += [(value[0], name, value[1]) for value in values if value]
        results = re.match(r"\s*(%\w+)", line) if " = " in line else None
        if results:
            known[results[1]] = (name, row["result"] or "")
        open_.append((_indent(line), name, inside))


def _owned(equations: Any, rows: dict) -> dict[str, Any]:
    """What an op or instruction has from the equations that it belongs to."""
    known = [rows[e] for e in equations or () if e in rows]
    operators = [operator(row["equation"], rows) for row in known]
    scopes = [str(row["scope"] or "") for row in known]
    line = next((_whole(row["line"]) for row in known), None)
    return {
        "operator": next((o for o in operators if o != "other"), "other"),
        "line": line,
        "scope": next(filter(None, scopes), ""),
    }


# ---- optimised HLO -----------------------------------------------------------------------------------------


def _hlo(walk: Any, nodes: dict, edges: list) -> None:
    """Computations stand in the instruction that calls them; their parameters are its operands."""
    module = hlo.parse(walk.hlo.text)
    equations = {row["instruction"]: row["equations"] for row in walk.hlo.table.to_dict("records")}
    rows = _equations(walk)
    holders = {c: i for c, i in module.callers().items() if i.opcode in hlo.CALLING}
    shown = {module.entry, *holders}
    for i in module.instructions.values():
        holder = holders.get(i.computation)
        if i.computation not in shown or (holder and i.opcode == "parameter"):
            continue
        nodes[i.name] = _node(
            i.name,
            i.opcode,
            parent=holder.name if holder else "",
            shape=" ".join(_TYPES.findall(i.shape)),
            **_owned(equations.get(i.name), rows),
        )

    def made(name: str, depth: int = 0) -> str:
        """The instruction that makes a value: a parameter of a fusion is the fusion's operand."""
        i = module.instructions.get(name)
        holder = holders.get(i.computation) if i else None
        number = re.search(r" parameter\((\d{1,6})\)", i.text) if holder and i.opcode == "parameter" else None
        if number and depth < 50 and holder.opcode in ("fusion", "call"):
            if int(number[1]) < len(holder.operands):
                return made(holder.operands[int(number[1])], depth + 1)
        return name

    for name in nodes:
        for operand in module.instructions[name].operands:
            source = made(operand)
            edges.append((source, name, nodes[source]["shape"] if source in nodes else ""))


READERS = {"jaxpr": _jaxpr, "stablehlo": _stablehlo, "hlo": _hlo}
