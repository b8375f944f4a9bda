"""StableHLO: what JAX hands to the compiler, read from MLIR's own text with its locations.

A location is a name (`loc("jit(f)/#3#/add"(#loc7))`) that a table at the foot of the text resolves, or two of
them joined (`callsite`, `fused`). The name holds our tag; the first tagged name found is the op's.
"""

from __future__ import annotations

import re

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
    owners: dict[str, tuple[str | None, tuple[str, ...]]] = {}  # by location
    lines: list[str] = []
    rows: list[list] = []
    opened: list[int | None] = []  # for each open region: the row of the op that opened it
    for raw in body:
        plain, location = _without_locations(raw)
        lines.append(plain)
        stripped = plain.strip()
        closes = stripped.startswith("}")
        row: int | None = opened.pop() if closes and opened else None
        op = None if closes else _OP.match(plain)
        if op:
            row = len(rows)
            operands = tuple(_OPERAND.findall(plain[op.end() :].partition(" : ")[0]))
            rows.append([f"op{row}", op[2], operands, _result(plain), None, (), len(lines)])
        if location and row is not None:
            if location not in owners:
                owners[location] = _owners(location, aliases, tagged)
            rows[row][4:6] = owners[location]
        if stripped.endswith("{"):
            opened.append(row)
    text = hide_addresses("\n".join(lines).rstrip())
    return Stage("stablehlo", strip(text), frame(rows, COLUMNS))


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


def _owners(location: str, aliases: dict[str, str], tagged: Tagged) -> tuple[str | None, tuple[str, ...]]:
    path = _path(location, aliases, 0)
    equations = tuple(e.id for e in tagged.ending(path)) if path else ()
    return (equations[0] if len(equations) == 1 else None), equations


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
