"""Who owns an instruction of the compiled program: exactly, by inference, or nobody but the compiler.

Most instructions carry our tag: *exact*. Some lose it on the way: XLA rewrites a cumulative sum or a
convolution into other instructions and forgets the metadata, broadcasts constants, copies the state of a
loop. Those are *inferred*, in this order:

1. a region (the `add` inside a reduction) belongs to the instruction that applies it;
2. a constant spread out for one equation's instruction belongs to that equation;
3. an island of unnamed instructions belongs to the equations that have no instruction left anywhere and
   stand, in the jaxpr's dataflow, just where the island stands in the program's;
4. what is left belongs to the nearest named instruction that uses it, or that it uses;
5. what only hands out a result of the function belongs to the equation of that result.

What none of these reaches was made by the *compiler* for itself. Every inference says its reason.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import cached_property

from .dataflow import Uses, graph
from .provenance import Tagged
from .stages.hlo import CALLING, FREE, Instruction, Module

Owner = tuple[tuple[str, ...], str, str]  # equations, how, reason
NOBODY: Owner = ((), "compiler", "")
HANDS_OUT = "it hands out the result of"
# Equations that only rename, reshape or simplify away: they vanish all the time, and leave no island behind.
_SHAPE_ONLY = frozenset(
    "reshape squeeze expand_dims broadcast_in_dim convert_element_type transpose copy copy_p stop_gradient "
    "pvary optimization_barrier mul add sub div neg select_n".split()
)


def attribute(module: Module, tagged: Tagged) -> dict[str, Owner]:
    """Instruction name -> its owner, for every instruction of the module."""
    owners: dict[str, Owner] = {}
    for instruction in module.instructions.values():
        equations = tagged.of(instruction.op_name)
        owners[instruction.name] = (tuple(e.id for e in equations), "exact", "") if equations else NOBODY
    lost = [i for i in module.instructions.values() if owners[i.name] is NOBODY and i.opcode not in FREE]
    if lost:
        _infer(lost, module, tagged, owners)
    _own_fusions(module, owners)
    return owners


def _infer(lost: list[Instruction], module: Module, tagged: Tagged, owners: dict[str, Owner]) -> None:
    flow = _Flow(module)
    regions = {c: i for i in module.instructions.values() if i.opcode not in CALLING for c in i.called}
    lost_here = [i for i in lost if i.computation not in regions]
    for instruction in lost_here:
        if _only_constants(instruction, flow, module):
            users = _nearest(instruction.name, flow.downs, owners, limit=6)
            if users:
                owners[instruction.name] = (users, "inferred", f"a constant spread out for {users[0]}")
    islands = _Islands(module, tagged, flow, owners)
    for instruction in lost_here:
        if owners[instruction.name] is NOBODY:
            islands.own(instruction)
    for instruction in lost_here:
        if owners[instruction.name] is NOBODY:
            users = _nearest(instruction.name, flow.downs, owners, limit=40)
            if users:
                owners[instruction.name] = (users, "inferred", f"its result goes to {users[0]}")
            elif sources := _nearest(instruction.name, flow.ups, owners, limit=40):
                owners[instruction.name] = (sources, "inferred", f"it works on the result of {sources[0]}")
    _own_results(module, tagged, flow, owners)
    for instruction in lost:
        caller = regions.get(instruction.computation)
        if caller is not None and owners[caller.name] is not NOBODY:
            reason = f"the region that {caller.name} applies"
            owners[instruction.name] = (owners[caller.name][0], "inferred", reason)


def _own_results(module: Module, tagged: Tagged, flow: _Flow, owners: dict[str, Owner]) -> None:
    """What hands out the function's i-th result, and nothing else, belongs to the equation of that result."""
    root = next((i for i in module.computations.get(module.entry, ()) if i.root), None)
    if root is None:
        return
    handed_out = root.operands if root.opcode == "tuple" else [root.name]
    if len(handed_out) != len(tagged.top.outvars):
        return  # JAX handed an argument back by itself
    writers = {v: e for e in tagged.equations.values() if e.parent is None for v in e.eqn.outvars}
    for start, v in zip(handed_out, tagged.top.outvars, strict=True):
        equation = None if hasattr(v, "val") else writers.get(v)
        todo = [start] if equation else []
        while todo:
            name = todo.pop()
            opcode = module.instructions[name].opcode
            if owners[name] is NOBODY and opcode != "constant":
                if opcode != "parameter":  # that of a fusion leads on to what the fusion is given
                    owners[name] = ((equation.id,), "inferred", f"{HANDS_OUT} {equation.id}")
                todo += flow.ups.get(name, ())


def _own_fusions(module: Module, owners: dict[str, Owner]) -> None:
    """A fusion belongs to all its members' equations; its own label names only the last of them."""
    for instruction in module.instructions.values():
        if instruction.opcode != "fusion":
            continue
        members = [
            owners[m.name]
            for c in instruction.called
            for m in module.computations.get(c, ())
            if m.opcode not in FREE
        ]
        own, how, _ = owners[instruction.name]
        equations = tuple(dict.fromkeys(e for owner in members for e in owner[0])) or own
        if not equations:
            continue
        if how == "exact" or any(how == "exact" for _, how, _ in members):
            owners[instruction.name] = (equations, "exact", "")
        else:
            reasons = [reason for _, _, reason in members if reason]
            owners[instruction.name] = (equations, "inferred", reasons[0] if reasons else "")


class _Flow:
    """Which instruction's value flows where, through fusions, calls and loops as if their walls were not
    there.
    """

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


def _only_constants(instruction: Instruction, flow: _Flow, module: Module, depth: int = 4) -> bool:
    """Does the instruction's value come from constants alone?"""
    if instruction.opcode in ("constant", "iota"):
        return True
    sources = [
        module.instructions[name]
        for name in flow.ups.get(instruction.name, ())
        if name in module.instructions
    ]
    return bool(depth and sources) and all(
        _only_constants(source, flow, module, depth - 1) for source in sources
    )


def _nearest(
    start: str, edges: dict[str, list[str]], owners: dict[str, Owner], limit: int
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


class _Islands:
    """Islands of unnamed instructions, and the equations that may have vanished there."""

    def __init__(self, module: Module, tagged: Tagged, flow: _Flow, owners: dict[str, Owner]) -> None:
        self.module, self.tagged, self.flow, self.owners = module, tagged, flow, owners

    @cached_property
    def graph(self) -> dict[str, tuple[set[str], set[str]]]:
        return graph(self.tagged)

    @cached_property
    def living(self) -> set[str]:
        return {e for equations, _, _ in self.owners.values() for e in equations}

    @cached_property
    def vanished(self) -> list[str]:
        """The equations that have no instruction left, although somebody needs them."""
        needed = Uses(self.tagged).needed
        candidates = [e for e in self.tagged.equations.values() if e.id in needed and not e.children]
        return [e.id for e in candidates if e.id not in self.living and e.primitive not in _SHAPE_ONLY]

    def own(self, start: Instruction) -> None:
        """Give the island around `start` to the equations that vanished there, if there are any."""
        if not self.vanished:
            return
        island, before, after = self._around(start.name)
        fitting = [e for e in self.vanished if _stands(e, self.graph, self.living, before, after)]
        if not fitting and not before and not after:
            fitting = self.vanished
        if not fitting:
            return
        names = ", ".join(self.tagged.equations[e].primitive for e in fitting[:3])
        reason = f"{names} lost its name here, between its neighbours"
        for name in island:
            if self.module.instructions[name].opcode not in FREE:
                self.owners[name] = (tuple(fitting), "inferred", reason)

    def _around(self, start: str) -> tuple[set[str], set[str], set[str]]:
        """The unnamed instructions connected with `start`, and the equations just before and after them.

        Not through a tuple: it joins strangers.
        """
        island, before, after, todo = {start}, set(), set(), [start]
        while todo:
            name = todo.pop()
            for edges, border in ((self.flow.ups, before), (self.flow.downs, after)):
                for near in edges.get(name, ()):
                    if near in island:
                        continue
                    if self.owners[near][0]:
                        border.update(self.owners[near][0])
                    elif self.module.instructions[near].opcode not in ("constant", "tuple"):
                        island.add(near)
                        todo.append(near)
        return island, before, after


def _stands(equation: str, graph: dict, living: set[str], before: set[str], after: set[str]) -> bool:
    """Is a living neighbour of the equation, looking past other vanished ones, at the island's border on the
    same side?
    """
    sources = _past(equation, graph, 0, living)
    users = _past(equation, graph, 1, living)
    fits_before = not before or bool(sources & before) or not sources
    fits_after = not after or bool(users & after) or not users
    touches = bool(sources & before) or bool(users & after) or not (before or after)
    return fits_before and fits_after and touches


def _past(equation: str, graph: dict, side: int, living: set[str]) -> set[str]:
    found, seen, todo = set(), {equation}, [equation]
    while todo:
        for near in graph[todo.pop()][side]:
            if near not in seen:
                seen.add(near)
                (found.add if near in living else todo.append)(near)
    return found
