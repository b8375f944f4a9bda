"""The dataflow of the compiled program: through fusions, calls and loops as if they had no walls."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from .stages.hlo import CALLING, Instruction, Module


class Flow:
    """Which instruction's value flows where."""

    def __init__(self, module: Module) -> None:
        self.ups: dict[str, list[str]] = defaultdict(list)
        self.downs: dict[str, list[str]] = defaultdict(list)
        for instruction in module.instructions.values():
            inside = (
                [module.computations.get(c, []) for c in instruction.called]
                if instruction.opcode in CALLING
                else []
            )
            for body in inside:
                self._enter(instruction, body)
            if not inside or instruction.opcode in ("while", "conditional"):
                for operand in instruction.operands:
                    self._edge(operand, instruction.name)

    def _enter(self, caller: Instruction, body: list[Instruction]) -> None:
        parameters = [i for i in body if i.opcode == "parameter"]
        for parameter in parameters:
            number = parameter_number(parameter)
            if caller.opcode in ("fusion", "call") and number < len(caller.operands):
                self._edge(caller.operands[number], parameter.name)
            elif caller.operands:
                self._edge(caller.operands[-1], parameter.name)
        for instruction in body:
            if instruction.root:
                self._edge(instruction.name, caller.name)

    def _edge(self, source: str, target: str) -> None:
        self.ups[target].append(source)
        self.downs[source].append(target)


def parameter_number(parameter: Instruction) -> int:
    digits = parameter.text.rsplit("parameter(", 1)[-1].partition(")")[0]
    return int(digits) if digits.isdigit() else 0


def only_constants(instruction: Instruction, flow: Flow, module: Module, depth: int = 4) -> bool:
    """Does the instruction's value come from constants alone?"""
    if instruction.opcode in ("constant", "iota"):
        return True
    sources = [
        module.instructions[name]
        for name in flow.ups.get(instruction.name, ())
        if name in module.instructions
    ]
    return bool(depth and sources) and all(
        only_constants(source, flow, module, depth - 1) for source in sources
    )


def nearest(
    start: str, edges: dict[str, list[str]], owners: Mapping[str, tuple], limit: int
) -> tuple[str, ...]:
    """The exact (or else inferred) owners that are the fewest steps away, breadth first."""
    seen, queue = {start}, deque(edges.get(start, ()))
    while queue and limit:
        name = queue.popleft()
        if name in seen:
            continue
        seen.add(name)
        limit -= 1
        if owners[name][0]:
            return owners[name][0]
        queue.extend(edges.get(name, ()))
    return ()
