"""How an equation vanished: followed through XLA's dumps to the pass after which no instruction carries its
tag.

A pass is known by the lines that it took out and put in (`Dump.changes`). That is enough: whoever used an
instruction that went was changed in the same stroke.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from .dataflow import Uses
from .provenance import Equation, Tagged
from .stages.hlo import FREE, Instruction, Line, parse_line
from .stages.passes import Dump

HOLDING = frozenset({"call", "while", "conditional", "custom-call"})  # opcodes of equations that hold others
NO_DUMPS = "(unknown: there are no dumps)"  # in place of a pass
_CALLS = {"jit", "pjit", "closed_call", "core_call"}  # they hold a jaxpr, be it an empty one
_MOVING = frozenset("broadcast reshape transpose copy convert slice pad concatenate reverse iota".split())


class Vanished:
    """The fates of the equations that have no instruction left."""

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
                    read = parse_line(line, self.dump.known)
                    if not read:
                        continue
                    name, opcode = read.name, read.opcode
                    equations = tuple(e.id for e in self.tagged.of(read.op_name))
                    self.owners[name], self.opcodes[name] = equations, opcode
                    touched.update(equations)
                    for equation in equations:
                        self.events[equation].append((index, step, line))
                        counts[0][equation] += step
                        counts[1][equation] += step if opcode not in FREE and opcode != "broadcast" else 0
                        counts[2][equation] += step if opcode in HOLDING else 0
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
            step = (
                self._after(self.held.get(equation.id)) if self.dump.snapshots or fate == "dead" else NO_DUMPS
            )
            return fate, step, ""
        index = self.seen.get(equation.id)
        if not self.dump.snapshots and not self.uses.unused(equation):
            return "absorbed", NO_DUMPS, self.uses.next_living(equation, self.homes)
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
            owners = [e for user in dropped for e in self.owners.get(user.name, ()) if e != equation.id]
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
            name = parse_line(line, self.dump.known).name
            if step > 0:
                lines[name] = line
            elif lines.get(name) == line:
                del lines[name]
        working = {name: line for name, line in lines.items() if self.opcodes[name] not in FREE}
        return working or lines

    def _is_root(self, line: str) -> bool:
        return parse_line(line, self.dump.known).root

    def _pass(self, index: int) -> _Pass:
        if index not in self.passes:
            self.passes[index] = _Pass(self.dump, index + 1)
        return self.passes[index]


class _Pass:
    """What one pass took out and put in, by instruction and by operand."""

    def __init__(self, dump: Dump, index: int) -> None:
        added, removed, _ = dump.changes[index]
        self.now = {read.name: read for line in added if (read := parse_line(line, dump.known))}
        self.roots = [read.name for read in self.now.values() if read.root]
        self.readers: dict[str, list[Line]] = defaultdict(list)
        for line in removed:
            read = parse_line(line, dump.known)
            for operand in dict.fromkeys(read.operands if read else ()):
                self.readers[operand].append(read)

    def dropped(self, mine: dict[str, str]) -> list[Line]:
        """The users that no longer use these instructions."""
        users = [user for name in mine for user in self.readers.get(name, ()) if user.name not in mine]
        return [
            user
            for user in users
            if not (now := self.now.get(user.name)) or not set(mine) & set(now.operands)
        ]

    def now_used(self, mine: dict[str, str], dropped: list[Line]) -> list[str]:
        """What those users use in their place."""
        found = []
        for user in dropped:
            now = self.now.get(user.name)
            if now and len(now.operands) == len(user.operands):
                found += [new for old, new in zip(user.operands, now.operands, strict=True) if old in mine]
        return found
