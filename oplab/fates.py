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

from collections import Counter, defaultdict

import pandas as pd

from .attribution import HANDS_OUT, Owner, parameter_number
from .dataflow import Uses
from .provenance import Equation, Tagged
from .stages.hlo import FREE, Instruction, Module, parse_line
from .stages.passes import Dump
from .stages.stage import frame

COLUMNS = ["equation", "primitive", "line", "fate", "by_pass", "into"]
FATES = ("kept", "fused", "merged", "folded", "absorbed", "dead", "library", "inlined")
_CALLS = {"jit", "pjit", "closed_call", "core_call"}  # they hold a jaxpr, be it an empty one
_HOLDING = frozenset(
    {"call", "while", "conditional", "custom-call"}
)  # opcodes of an equation that holds others
_MAKING = frozenset(
    {"broadcast_in_dim", "iota", "reshape", "copy", "convert_element_type", "squeeze", "transpose"}
)
_MOVING = frozenset(
    {"broadcast", "reshape", "transpose", "copy", "convert", "slice", "pad", "concatenate", "reverse", "iota"}
)


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
    gone = _Gone(tagged, dump, stablehlo, alive.homes)
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
            working = [i for i in working if i.opcode in _HOLDING]
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


class _Gone:
    """The equations that have none: followed through the dumps to the pass after which they were no more.

    A pass is known by the lines that it took out and put in (`Dump.changes`). That is enough: whoever used an
    instruction that went was changed in the same stroke.
    """

    def __init__(
        self, tagged: Tagged, dump: Dump, stablehlo: set[str], homes: dict[str, list[Instruction]]
    ) -> None:
        self.tagged, self.dump, self.stablehlo, self.homes = tagged, dump, stablehlo, homes
        self.uses = Uses(tagged)
        self.last = len(dump.snapshots) - 1
        self.seen: dict[str, int] = {}  # equation -> last snapshot with an instruction of it
        self.worked: dict[str, int] = {}  # ... with one that computes
        self.held: dict[str, int] = {}  # ... with a call, loop or branch
        self.events: dict[str, list[tuple[int, int, str]]] = defaultdict(
            list
        )  # snapshot, came (1) or went (-1), line
        self.owners: dict[str, tuple[str, ...]] = {}  # instruction -> equations, as last seen
        self.opcodes: dict[str, str] = {}
        self.known: dict[str, tuple[str, str, str]] = {}  # the fates found so far
        self.passes: dict[int, _Pass] = {}
        self._follow()

    def _follow(self) -> None:
        """Count each equation's lines from snapshot to snapshot; where a count falls to 0, it was last seen
        before.
        """
        counts: tuple[Counter, Counter, Counter] = Counter(), Counter(), Counter()
        lasts = self.seen, self.worked, self.held
        for index, (added, removed, _) in enumerate(self.dump.changes):
            touched: set[str] = set()
            for lines, step in ((added, 1), (removed, -1)):
                for line in lines:
                    parts = parse_line(line, self.dump.known)
                    if not parts:
                        continue
                    name, opcode, op_name = parts[0], parts[1], parts[5]
                    equations = tuple(e.id for e in self.tagged.of(op_name)) if "#" in op_name else ()
                    self.owners[name], self.opcodes[name] = equations, opcode
                    touched.update(equations)
                    for equation in equations:
                        self.events[equation].append((index, step, line))
                        counts[0][equation] += step
                        counts[1][equation] += step if opcode not in FREE and opcode != "broadcast" else 0
                        counts[2][equation] += step if opcode in _HOLDING else 0
            for equation in touched:
                for count, last in zip(counts, lasts, strict=True):
                    if count[equation]:
                        last[equation] = self.last  # until a later snapshot has none
                    elif last.get(equation) == self.last:
                        last[equation] = index - 1

    def _after(self, index: int | None) -> str:
        """The pass that came after a snapshot."""
        return "lowering" if index is None else self.dump.snapshots[min(index + 1, self.last)][1]

    def fate(self, equation: Equation) -> tuple[str, str, str]:
        if equation.children or equation.primitive in _CALLS:
            fate = "dead" if self.uses.unused(equation) else "inlined"
            return fate, self._after(self.held.get(equation.id)), ""
        index = self.seen.get(equation.id)
        if index is None:  # JAX gave XLA nothing that carries its tag
            if self.uses.unused(equation):
                return "dead", "lowering", ""
            step = "StableHLO import" if equation.id in self.stablehlo else "lowering"
            users = self.uses.users(equation)
            if users and all(self.known[u.id][0] == "folded" for u in users):
                return "folded", step, ", ".join(dict.fromkeys(self.known[u.id][2] for u in users))
            return "absorbed", step, self.uses.next_living(equation, self.homes)
        if index >= self.last:  # its tag is there to the end, on a constant, a bitcast or a tuple
            return self._left_free(equation)
        return self._vanished(equation, index)

    def _left_free(self, equation: Equation) -> tuple[str, str, str]:
        step = self._after(self.worked.get(equation.id))
        free = self.homes.get(equation.id, [])
        constant = next((i for i in free if i.opcode in ("constant", "broadcast")), None)
        if constant is not None:
            return "folded", step, constant.name
        return "absorbed", step, free[0].name if free else self.uses.next_living(equation, self.homes)

    def _vanished(self, equation: Equation, index: int) -> tuple[str, str, str]:
        """What the pass put in its place. DCE only sweeps: the pass that dropped the last user counts."""
        mine = self._mine(equation, index)
        change = self._pass(index)
        dropped = change.dropped(mine)
        while index and not dropped and self._after(index) in ("dce", "tuple-simplifier"):
            index -= 1
            mine, change = self._mine(equation, index), self._pass(index)
            if not mine:
                return "dead", self._after(self.seen[equation.id]), ""
            dropped = change.dropped(mine)
        step = self._after(index)
        if step == "dce":
            return "dead", step, ""
        roots = [new for new in change.roots if any(self._is_root(line) for line in mine.values())]
        replaced = change.now_used(mine, dropped) + roots
        owners = [e for name in replaced for e in self.owners.get(name, ()) if e != equation.id]
        if "constant" in step or replaced and all(self.opcodes.get(name) == "constant" for name in replaced):
            return "folded", step, replaced[0] if replaced else ""
        if not owners:  # its users were changed in the same stroke
            owners = [e for user in dropped for e in self.owners.get(user[0], ()) if e != equation.id]
        into = ", ".join(dict.fromkeys(owners)) or self.uses.next_living(equation, self.homes)
        if step == "cse":
            return "merged", step, ", ".join(dict.fromkeys(owners)) or self._twin(equation) or into
        opcodes = {self.opcodes[name] for name in mine} - _MOVING
        if any(
            self.opcodes[name] in opcodes
            for e in owners
            for name in self._mine(self.tagged.equations[e], index + 1)
        ):
            return "merged", step, into
        users = self.uses.users(equation)
        if not replaced and users and all(self.known[u.id][0] in ("dead", "folded") for u in users):
            return "dead", step, ""  # whoever needed it became a constant
        return "absorbed", step, into

    def _twin(self, equation: Equation) -> str:
        """An equation of the same operator and type that is still there."""
        type_of = [str(v.aval) for v in equation.eqn.outvars]
        for other in self.tagged.equations.values():
            if other.primitive == equation.primitive and other.id in self.homes and other is not equation:
                if [str(v.aval) for v in other.eqn.outvars] == type_of:
                    return other.id
        return ""

    def _mine(self, equation: Equation, index: int) -> dict[str, str]:
        """The equation's instructions in a snapshot, name -> line; those that compute, if there are any."""
        lines: dict[str, str] = {}
        for at, step, line in self.events[equation.id]:
            if at > index:
                break
            name = parse_line(line, self.dump.known)[0]
            if step > 0:
                lines[name] = line
            elif lines.get(name) == line:
                del lines[name]
        working = {name: line for name, line in lines.items() if self.opcodes[name] not in FREE}
        return working or lines

    def _is_root(self, line: str) -> bool:
        return parse_line(line, self.dump.known)[6]

    def _pass(self, index: int) -> _Pass:
        if index not in self.passes:
            self.passes[index] = _Pass(self.dump, index + 1)
        return self.passes[index]


class _Pass:
    """What one pass took out and put in, by instruction and by operand. An instruction is (name, opcode, ...,
    operands, ...).
    """

    def __init__(self, dump: Dump, index: int) -> None:
        added, removed, _ = dump.changes[index]
        self.now = {parts[0]: parts for line in added if (parts := parse_line(line, dump.known))}
        self.roots = [name for name, parts in self.now.items() if parts[6]]
        self.readers: dict[str, list[tuple]] = defaultdict(list)
        for line in removed:
            parts = parse_line(line, dump.known)
            for operand in dict.fromkeys(parts[3] if parts else ()):
                self.readers[operand].append(parts)

    def dropped(self, mine: dict[str, str]) -> list[tuple]:
        """The users that no longer use these instructions."""
        users = [user for name in mine for user in self.readers.get(name, ()) if user[0] not in mine]
        return [user for user in users if not set(mine) & set(self.now.get(user[0], ((),) * 7)[3])]

    def now_used(self, mine: dict[str, str], dropped: list[tuple]) -> list[str]:
        """What those users use in their place."""
        found = []
        for user in dropped:
            now = self.now.get(user[0])
            if now and len(now[3]) == len(user[3]):
                found += [new for old, new in zip(user[3], now[3], strict=True) if old in mine]
        return found
