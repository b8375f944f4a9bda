"""Who owns an instruction of the compiled program: exactly, by inference, or nobody but the compiler.

Most instructions carry our tag: *exact*. Some lose it on the way: XLA rewrites a cumulative sum or a
convolution into other instructions and forgets the metadata, broadcasts constants, copies the state of a
loop. Those are *inferred*, in this order:

1. a region (the `add` inside a reduction) belongs to the instruction that applies it;
2. a constant spread out for one equation's instruction belongs to that equation;
3. an island of unnamed instructions belongs to the equations that have no instruction left anywhere and
stand, in the jaxpr's
   dataflow, just where the island stands in the program's;
4. what is left belongs to the nearest named instruction that uses it, or that it uses.

What nothing named is connected with was made by the *compiler* for itself. Every inference says its reason.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from . import _jax
from .provenance import Equation, Tagged
from .stages.hlo import CALLING, FREE, Instruction, Module

Owner = tuple[tuple[str, ...], str, str]  # equations, how, reason
NOBODY: Owner = ((), "compiler", "")
# Equations that only rename or reshape what they are given: they vanish all the time, and leave no island
# behind.
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
    for instruction in lost:
        if instruction.computation not in regions and _only_constants(instruction, flow, module):
            users = _nearest(instruction.name, flow.downs, owners, limit=6)
            if users:
                owners[instruction.name] = (users, "inferred", f"a constant spread out for {users[0]}")
    graph: dict[str, tuple[set[str], set[str]]] | None = None
    for instruction in lost:
        if owners[instruction.name] is not NOBODY or instruction.computation in regions:
            continue
        graph = graph if graph is not None else dataflow(tagged)
        _own_island(instruction, flow, module, tagged, graph, owners)
    for instruction in lost:
        if owners[instruction.name] is NOBODY and instruction.computation not in regions:
            users = _nearest(instruction.name, flow.downs, owners, limit=40)
            if users:
                owners[instruction.name] = (users, "inferred", f"its result goes to {users[0]}")
            elif sources := _nearest(instruction.name, flow.ups, owners, limit=40):
                owners[instruction.name] = (sources, "inferred", f"it works on the result of {sources[0]}")
    for instruction in lost:
        caller = regions.get(instruction.computation)
        if caller is not None and owners[caller.name] is not NOBODY:
            owners[instruction.name] = (
                owners[caller.name][0],
                "inferred",
                f"the region that {caller.name} applies",
            )


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
        equations = (
            tuple(dict.fromkeys(e for owner in members for e in owner[0])) or owners[instruction.name][0]
        )
        if not equations:
            continue
        exact = owners[instruction.name][1] == "exact" or any(how == "exact" for _, how, _ in members)
        reasons = [] if exact else [reason for _, _, reason in members if reason]
        owners[instruction.name] = (
            equations,
            "exact" if exact else "inferred",
            reasons[0] if reasons else "",
        )


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
            number = _parameter_number(parameter)
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


def _parameter_number(parameter: Instruction) -> int:
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


def _own_island(
    start: Instruction, flow: _Flow, module: Module, tagged: Tagged, graph: dict, owners: dict[str, Owner]
) -> None:
    """Give the island around `start` to the equations that vanished there, if there are any."""
    island, before, after = _island(start.name, flow, module, owners)
    living = {e for equations, _, _ in owners.values() for e in equations}
    vanished = [
        e
        for e in tagged.equations.values()
        if e.id not in living and not e.children and e.primitive not in _SHAPE_ONLY
    ]
    fitting = [e.id for e in vanished if _stands(e.id, graph, living, before, after)]
    if not fitting and not before and not after:
        fitting = [e.id for e in vanished]
    if not fitting:
        return
    names = ", ".join(tagged.equations[e].primitive for e in fitting[:3])
    reason = f"{names} lost its name here, between its neighbours"
    for name in island:
        if module.instructions[name].opcode not in FREE:
            owners[name] = (tuple(fitting), "inferred", reason)


def _island(
    start: str, flow: _Flow, module: Module, owners: dict[str, Owner]
) -> tuple[set[str], set[str], set[str]]:
    """The unnamed instructions connected with `start`, and the equations just before and just after them."""
    island, before, after, todo = {start}, set(), set(), [start]
    while todo:
        name = todo.pop()
        for edges, border in ((flow.ups, before), (flow.downs, after)):
            for near in edges.get(name, ()):
                if near in island:
                    continue
                if owners[near][0]:
                    border.update(owners[near][0])
                elif module.instructions[near].opcode != "constant":
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


def dataflow(tagged: Tagged) -> dict[str, tuple[set[str], set[str]]]:
    """Equation id -> (the equations whose results it uses, the equations that use its result), through nested
    jaxprs.
    """
    graph: dict[str, tuple[set[str], set[str]]] = {e: (set(), set()) for e in tagged.equations}
    top = [e for e in tagged.equations.values() if e.parent is None]
    _wire(top, {}, graph)
    return graph


def _wire(equations: Iterable[Equation], env: dict, graph: dict) -> None:
    """Follow the variables of one jaxpr; `env` holds, for each variable, the equations that its value comes
    from.
    """
    for equation in equations:
        eqn = equation.eqn
        sources = [env.get(v, set()) if not hasattr(v, "val") else set() for v in eqn.invars]
        results: list[set[str]] = [{equation.id} for _ in eqn.outvars]
        for producer in set().union(*sources) if sources else ():
            graph[equation.id][0].add(producer)
            graph[producer][1].add(equation.id)
        for where, inner in _jax.sub_jaxprs(eqn.params) if equation.children else ():
            body = _jax.open_jaxpr(inner)
            # Operands stand at the end in every higher-order primitive: cond has its index in front, while
            # its constants.
            inside = dict(zip(reversed(body.invars), reversed(sources), strict=False))
            _wire([c for c in equation.children if c.where == where], inside, graph)
            for result, v in zip(reversed(results), reversed(body.outvars), strict=False):
                if not hasattr(v, "val"):
                    result |= inside.get(v, set())
        env.update(zip(eqn.outvars, results, strict=True))
