"""The optimised HLO as nodes and edges."""

from __future__ import annotations

import re
from typing import Any

from ..flow import parameter_number
from ..stages import hlo
from .facts import equations, node, owned

_TYPES = re.compile(r"\w+\[[\d,]*\](?:\{[^}]*\})?")


def read(walk: Any, nodes: dict, edges: list) -> None:
    """Computations stand in the instruction that calls them; their parameters are its operands."""
    module = hlo.parse(walk.hlo.text)
    owners = {row["instruction"]: row["equations"] for row in walk.hlo.table.to_dict("records")}
    rows = equations(walk)
    holders = {c: i for c, i in module.callers().items() if i.opcode in hlo.CALLING}
    shown = {module.entry, *holders}
    for i in module.instructions.values():
        holder = holders.get(i.computation)
        if i.computation not in shown or (holder and i.opcode == "parameter"):
            continue
        nodes[i.name] = node(
            i.name,
            i.opcode,
            parent=holder.name if holder else "",
            shape=" ".join(_TYPES.findall(i.shape)),
            root=i.root,
            given=bool(i.operands),
            **owned(owners.get(i.name), rows),
        )

    def made(name: str, depth: int = 0) -> str:
        """The instruction that makes a value: a parameter of a fusion is the fusion's operand."""
        i = module.instructions.get(name)
        holder = holders.get(i.computation) if i else None
        if holder and depth < 50 and i.opcode == "parameter" and holder.opcode in ("fusion", "call"):
            number = parameter_number(i)
            if number < len(holder.operands):
                return made(holder.operands[number], depth + 1)
        return name

    for name in nodes:
        for operand in module.instructions[name].operands:
            source = made(operand)
            edges.append((source, name, nodes[source]["shape"] if source in nodes else ""))
