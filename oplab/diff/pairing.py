"""Which kernel of one program is which of another: by what it does, then by which operators it came from.

Names say nothing here (`fusion.3` may be anyone), nor do the numbers of equations once a line was added.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..stages.hlo import Instruction, Module, parse
from . import renamed

ENOUGH = 0.35  # of all that two kernels do must be common to both, or they are two different kernels


@dataclass(frozen=True)
class Part:
    """A kernel of a saved walk: its HLO, its code, and what it is made of."""

    name: str
    kind: str  # "compiled", or the library's name
    equations: tuple[str, ...]
    hlo: tuple[str, ...]  # its instruction and the computations that it calls, cleaned
    code: dict[str, str]  # form -> text
    made_of: Counter[str]  # opcodes and primitives


def parts(document: dict[str, Any]) -> list[Part]:
    """The kernels of a walk's document, in the order in which they run."""
    module = parse(document["stages"]["hlo"]["text"])
    primitives = dict(_columns(document["stages"]["jaxpr"]["table"], "equation", "primitive"))
    table = document["stages"]["kernels"]["table"]
    found = []
    for name, kind, library, equations in _columns(table, "instruction", "kind", "library", "equations"):
        lines, opcodes = _hlo(name, module)
        made_of = Counter(opcodes) + Counter(str(primitives.get(e)) for e in equations or ())
        code = document["code"].get(name, {})
        text = renamed.cleaned("\n".join(lines), "hlo")
        found.append(Part(name, str(library or kind), tuple(equations or ()), tuple(text), code, made_of))
    return found


def pairs(left: list[Part], right: list[Part]) -> list[tuple[Part | None, Part | None]]:
    """Every kernel with its partner: (left, right), or None where it has none. In the order of the left."""
    free = list(right)
    partner: dict[int, Part] = {}
    for test in (_same_content, _same_hlo, _same_owners):
        for number, part in enumerate(left):
            found = next((r for r in free if test(part, r)), None) if number not in partner else None
            if found is not None:
                partner[number] = found
                free.remove(found)
    rest = [(likeness(part, r), -n, -m) for n, part in enumerate(left) if n not in partner
            for m, r in enumerate(free)]  # fmt: skip
    waiting = list(free)
    for score, n, m in sorted(rest, reverse=True):
        if score >= ENOUGH and -n not in partner and waiting[-m] in free:
            partner[-n] = waiting[-m]
            free.remove(waiting[-m])
    return [(part, partner.get(n)) for n, part in enumerate(left)] + [(None, r) for r in free]


def likeness(left: Part, right: Part) -> float:
    """How much of what two kernels are made of is common to both, from 0 to 1."""
    union = left.made_of | right.made_of
    return sum((left.made_of & right.made_of).values()) / max(1, sum(union.values()))


def same_text(left: list[str] | tuple[str, ...], right: list[str] | tuple[str, ...], language: str) -> bool:
    """Do two cleaned texts say the same but for names?"""
    if len(left) != len(right):
        return False
    return list(left) == renamed.same_names(list(left), list(right), language)


def same_code(left: Part, right: Part, form: str = "asm") -> bool:
    """Do two kernels run the same code but for names and addresses?"""
    a, b = left.code.get(form), right.code.get(form)
    if a is None or b is None or a == b:
        return a == b
    return same_text(renamed.cleaned(a, form), renamed.cleaned(b, form), form)


def same_hlo(left: Part, right: Part) -> bool:
    return same_text(left.hlo, right.hlo, "hlo")


def _same_content(left: Part, right: Part) -> bool:
    return left.kind == right.kind and _same_hlo(left, right) and same_code(left, right)


def _same_hlo(left: Part, right: Part) -> bool:
    return left.made_of == right.made_of and same_hlo(left, right)


def _same_owners(left: Part, right: Part) -> bool:
    """The same equations, where they are the same primitives; or nearly all the same operators."""
    return bool(left.equations) and left.equations == right.equations and likeness(left, right) > 0.8


def _hlo(name: str, module: Module) -> tuple[list[str], list[str]]:
    """The lines of an instruction with all that it calls, and the opcodes in them."""
    top = module.instructions.get(name)
    if top is None:
        return [], []
    lines, opcodes = [_alone(top)], [top.opcode]
    todo, seen = list(top.called), set()
    while todo:
        computation = todo.pop(0)
        if computation in seen:
            continue
        seen.add(computation)
        lines.append(f"%{computation} {{")
        for member in module.computations.get(computation, ()):
            lines.append(member.text)
            opcodes.append(member.opcode)
            todo += member.called
    return lines, [opcode for opcode in opcodes if opcode not in ("parameter", "fusion")]


def _alone(instruction: Instruction) -> str:
    return re.sub(r"^\s*(?:ROOT )?", "  ", instruction.text)  # where it stands is not what it does


def _columns(table: dict[str, Any], *names: str) -> list[tuple]:
    """Some columns of a document's table, row by row."""
    places = [table["columns"].index(name) for name in names]
    return [tuple(row[place] for place in places) for row in table["rows"]]
