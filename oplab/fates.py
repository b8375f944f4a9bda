"""The fate ledger: what became of every equation, and which pass did it.

An equation that has an instruction left is *kept* (it is a kernel of its own, or a loop or branch still
there), *fused* (it shares a kernel), or *library* (a library's kernel does its work). One that has none left
was, at the pass after which no instruction carries its tag any more,

    merged    with an equal or adjacent equation: CSE, or (x + 2) + 1 becoming x + 3
    folded    into a constant
    absorbed  into how another instruction reads or writes (a transpose into a dot, a broadcast into a fusion)
    dead      because nothing used its result
    inlined   a call, a rule or a checkpoint whose body took its place

The pass is found by following the tags through XLA's own dumps; what JAX itself drops before XLA is marked
"lowering".
"""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from .attribution import HANDS_OUT, Owner
from .flow import parameter_number
from .provenance import Equation, Tagged
from .stages.hlo import FREE, Instruction, Module
from .stages.passes import Dump
from .stages.stage import frame
from .vanished import HOLDING, Vanished

COLUMNS = ["equation", "primitive", "line", "fate", "by_pass", "into"]
FATES = ("kept", "fused", "merged", "folded", "absorbed", "dead", "library", "inlined")
_MAKING = frozenset("broadcast_in_dim iota reshape copy convert_element_type squeeze transpose".split())


def ledger(
    tagged: Tagged,
    module: Module,
    owners: dict[str, Owner],
    kinds: dict[str, str],
    dump: Dump,
    lines: dict[str, int | None],
    stablehlo: set[str],
) -> pd.DataFrame:
    """One row per equation.

    kinds: kernel instruction -> "compiled", "library" or "runtime", see `stages.kernels`. stablehlo: the
    equations that some StableHLO op carries. lines: equation -> script line.
    """
    alive = _Alive(module, owners, kinds)
    gone = Vanished(tagged, dump, stablehlo, alive.homes)
    for equation in reversed(
        tagged.equations.values()
    ):  # users first: a user's fate may decide its operand's
        gone.known[equation.id] = alive.fate(equation) or alive.handed_out(equation, gone.fate(equation))
    rows = [(e.id, e.primitive, lines[e.id], *gone.known[e.id]) for e in tagged.equations.values()]
    return frame(rows, COLUMNS)


class _Alive:
    """The equations that have an instruction in the compiled program."""

    def __init__(self, module: Module, owners: dict[str, Owner], kinds: dict[str, str]) -> None:
        self.owners, self.kinds, self.callers = owners, kinds, module.callers()
        self.instructions = module.instructions
        self.homes: dict[str, list[Instruction]] = defaultdict(list)  # members of fusions, not the fusions
        self.handed: dict[str, list[Instruction]] = defaultdict(list)  # copies and constants at an output
        for instruction in module.instructions.values():
            equations, _, reason = owners[instruction.name]
            # What only hands out a result is no home: nothing of the equation's work is in it.
            kept = self.handed if reason.startswith(HANDS_OUT) else self.homes
            if instruction.opcode != "fusion":
                for equation in equations:
                    kept[equation].append(instruction)

    def fate(self, equation: Equation) -> tuple[str, str, str] | None:
        working = [i for i in self.homes.get(equation.id, ()) if i.opcode not in FREE]
        if equation.primitive not in _MAKING and all(self._spread(i) for i in working):
            return None  # its value was folded into a constant; what is left spreads that constant out
        if equation.children:  # a call has no work of its own, though its name may stand on what was inlined
            working = [i for i in working if i.opcode in HOLDING]
        kernels = [k for i in working if (k := self._kernel(i)) is not None]
        # Where several kernels share the work, a library's is the one that does it: the others pack and
        # unpack for it.
        for kernel in kernels:
            if self.kinds[kernel.name] == "library":
                return "library", "", kernel.name
        if kernels:
            shared = kernels[0].opcode == "fusion" and len(self.owners[kernels[0].name][0]) > 1
            return "fused" if shared else "kept", "", kernels[0].name
        return ("kept", "", working[0].name) if working else None

    def handed_out(self, equation: Equation, fate: tuple[str, str, str]) -> tuple[str, str, str]:
        """A vanished result that is still handed out: as a constant, or as a copy of something else."""
        handed = self.handed.get(equation.id)
        if not handed or fate[0] in ("dead", "inlined") or fate[2]:
            return fate
        constant = all(i.opcode in ("constant", "iota") or self._spread(i) for i in handed)
        return ("folded" if constant else fate[0]), fate[1], handed[0].name

    def _spread(self, instruction: Instruction) -> bool:
        """Does it only spread a constant out?"""
        if instruction.opcode != "broadcast":
            return False
        return self._outside(instruction.operands[0]).opcode == "constant"

    def _outside(self, name: str) -> Instruction:
        """The instruction of that name; for a fusion's parameter, what the fusion is given."""
        instruction = self.instructions[name]
        caller = self.callers.get(instruction.computation)
        if instruction.opcode == "parameter" and caller is not None and caller.opcode == "fusion":
            return self.instructions[caller.operands[parameter_number(instruction)]]
        return instruction

    def _kernel(self, instruction: Instruction) -> Instruction | None:
        while instruction.name not in self.kinds:
            caller = self.callers.get(instruction.computation)
            if caller is None:
                return None
            instruction = caller
        return instruction
