"""StableHLO: what JAX hands to the compiler, read from MLIR's own text with its locations.

A location is a name (`loc("jit(f)/#3#/add"(#loc7))`) that a table at the foot of the text resolves, or two of
them joined (`callsite`, `fused`). The name holds our tag; the first tagged name found is the op's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..provenance import TAG, Tagged, strip
from .script import hide_addresses
from .stage import Stage, frame

COLUMNS = ["op", "name", "operands", "result", "equation", "equations", "text_line"]
_ALIAS = re.compile(r"^#loc(\d*) = loc\((.*)\)$")
_LOC = re.compile(r' ?loc\((#loc\d*|unknown|"(?:[^"\\]|\\.)*"(?:\([^()]*\))?)\)')
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OP = re.compile(
    r'^\s*(?:(%[\w:]+)(?:, %[\w:]+)* = )?"?'
    r'((?:stablehlo|chlo|func|sdy|mhlo|vhlo|tensor|shape|builtin)\.[\w.]+|call|return|module)\b"?'
)
_OPERAND = re.compile(r"%[\w#]+")


def stage(text_with_locations: str, tagged: Tagged) -> Stage:
    """The StableHLO stage. `equation` is the op's owner when it has just one, `equations` all (a shared
    function has several).
    """
    body, aliases = _split(text_with_locations)
    known: dict[str, tuple[str, ...]] = {}  # owners by location
    lines: list[str] = []
    ops: list[_Op] = []
    opened: list[_Op | None] = []  # for each open region: the op that opened it
    function = ""
    for raw in body:
        plain, location = _without_locations(raw)
        lines.append(plain)
        stripped = plain.strip()
        op: _Op | None = None
        if stripped.startswith("}"):
            op = opened.pop() if opened else None
        elif match := _OP.match(plain):
            if match[2] == "func.func":
                function = _symbol(plain)
            operands = tuple(_OPERAND.findall(plain[match.end() :].partition(" : ")[0]))
            op = _Op(match[2], match[1] or "", operands, _result(plain), function, _symbol(plain), len(lines))
            ops.append(op)
        elif stripped.endswith("{") and ops:
            op = ops[-1]  # `cond {` after the line of its while
        if location and op is not None:
            if location not in known:
                known[location] = _owners(location, aliases, tagged)
            op.equations = known[location]
        if stripped.endswith("{"):
            opened.append(op)
    _inherit(ops)
    rows = [
        (
            f"op{n}",
            op.name,
            op.operands,
            op.type,
            op.equations[0] if len(op.equations) == 1 else None,
            op.equations,
            op.line,
        )
        for n, op in enumerate(ops)
    ]
    text = hide_addresses("\n".join(lines).rstrip())
    return Stage("stablehlo", strip(text), frame(rows, COLUMNS))


@dataclass(slots=True)
class _Op:
    name: str
    result: str
    operands: tuple[str, ...]
    type: str
    function: str  # that it stands in
    symbol: str  # that it defines or calls
    line: int
    equations: tuple[str, ...] = ()


def _inherit(ops: list[_Op]) -> None:
    """Owners for what has no tag: the body of a function that JAX made for itself belongs to its callers, a
    constant to the op that uses it.
    """
    for _ in range(3):  # such functions call each other, not deeply
        callers: dict[str, dict[str, None]] = {}
        for op in ops:
            if op.symbol and op.name != "func.func":
                callers.setdefault(op.symbol, {}).update(dict.fromkeys(op.equations))
        for op in ops:
            if not op.equations and op.function in callers and op.name not in ("module", "func.func"):
                op.equations = tuple(callers[op.function])
    users = {(op.function, operand): op for op in reversed(ops) if op.equations for operand in op.operands}
    for op in ops:
        if not op.equations and op.name == "stablehlo.constant" and (op.function, op.result) in users:
            op.equations = users[op.function, op.result].equations


def _symbol(line: str) -> str:
    match = re.search(r"@([\w.$\-]+)", line)
    return match[1] if match else ""


def _without_locations(line: str) -> tuple[str, str]:
    """The line as MLIR prints it without locations, and the op's own location, which stands at its end."""
    head, mark, tail = line.rpartition(" loc(")
    if not mark:
        return line, ""
    own = tail[:-1] if tail.endswith(")") else ""
    if " loc(" not in head and own.startswith("#"):
        return head, own  # by far the most lines
    locations = _LOC.findall(line)
    return _LOC.sub("", line), locations[-1] if locations and line.rstrip().endswith(")") else ""


def _split(text: str) -> tuple[list[str], dict[str, str]]:
    """The lines of the module, and the table of locations."""
    body, aliases = [], {}
    for line in text.split("\n"):
        alias = _ALIAS.match(line) if line.startswith("#loc") else None
        if alias:
            aliases["#loc" + alias[1]] = alias[2]
        else:
            body.append(line)
    return body, aliases


def _owners(location: str, aliases: dict[str, str], tagged: Tagged) -> tuple[str, ...]:
    path = _path(location, aliases, 0)
    return tuple(e.id for e in tagged.ending(path)) if path else ()


def _path(location: str, aliases: dict[str, str], depth: int) -> tuple[str, ...]:
    """The tags of a location; those of an alias, of the callee of a call site, of the first part of a fused
    one.
    """
    name = _NAME.match(location)
    if name:
        found = tuple(TAG.findall(name[1]))
        if found:
            return found
    if depth < 8:
        for alias in re.findall(r"#loc\d*", location):
            found = _path(aliases.get(alias, ""), aliases, depth + 1)
            if found:
                return found
    return ()


def _result(line: str) -> str:
    """The type after the last ` -> ` or ` : `; empty for an op without results."""
    if " = " not in line:
        return ""
    types = line.rsplit(" : ", 1)[-1] if " : " in line else ""
    return types.rsplit(" -> ", 1)[-1].strip().rstrip("{").strip()
