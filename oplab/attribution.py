"""Who owns an instruction of the compiled program: exactly, by inference, or nobody but the compiler.

Most instructions carry our tag: *exact*. Some lose it on the way: XLA rewrites a cumulative sum or a
convolution into other instructions and forgets the metadata, broadcasts constants, copies the state of a
loop. Those are *inferred*, in this order:

1. a region (the `add` inside a reduction) belongs to the instruction that applies it;
2. a constant spread out for one equation's instruction belongs to that equation;
3. what applies a region that carries one equation's tag belongs to it, if that equation is next to it or has
   nothing else (a long sum becomes a sum of sums, and only the second keeps its name);
4. an island of unnamed instructions belongs to the equations that have no instruction left anywhere and
   stand, in the jaxpr's dataflow, just where the island stands in the program's;
5. what is left belongs to the nearest named instruction that uses it, or that it uses;
6. what only hands out a result of the function belongs to the equation of that result.

What none of these reaches was made by the *compiler* for itself. Every inference says its reason.
"""

from __future__ import annotations

from .flow import Flow, nearest, only_constants
from .islands import Islands
from .provenance import Tagged
from .stages.hlo import CALLING, FREE, Instruction, Module

Owner = tuple[tuple[str, ...], str, str]  # equations, how, reason
NOBODY: Owner = ((), "compiler", "")
HANDS_OUT = "it hands out the result of"


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
    flow = Flow(module)
    regions = {c: i for i in module.instructions.values() if i.opcode not in CALLING for c in i.called}
    lost_here = [i for i in lost if i.computation not in regions]
    for instruction in lost_here:
        if only_constants(instruction, flow, module):
            users = nearest(instruction.name, flow.downs, owners, limit=6)
            if users:
                owners[instruction.name] = (users, "inferred", f"a constant spread out for {users[0]}")
    for instruction in lost_here:
        if owners[instruction.name] is NOBODY and (owner := _by_region(instruction, module, flow, owners)):
            owners[instruction.name] = ((owner,), "inferred", f"it applies the region of {owner}")
    islands = Islands(module, tagged, flow, owners)
    for instruction in lost_here:
        if owners[instruction.name] is NOBODY:
            islands.own(instruction)
    for instruction in lost_here:
        if owners[instruction.name] is NOBODY:
            users = nearest(instruction.name, flow.downs, owners, limit=40)
            if users:
                owners[instruction.name] = (users, "inferred", f"its result goes to {users[0]}")
            elif sources := nearest(instruction.name, flow.ups, owners, limit=40):
                owners[instruction.name] = (sources, "inferred", f"it works on the result of {sources[0]}")
    _own_results(module, tagged, flow, owners)
    for instruction in lost:
        caller = regions.get(instruction.computation)
        if caller is not None and owners[caller.name] is not NOBODY:
            reason = f"the region that {caller.name} applies"
            owners[instruction.name] = (owners[caller.name][0], "inferred", reason)


def _by_region(instruction: Instruction, module: Module, flow: Flow, owners: dict[str, Owner]) -> str | None:
    """The one equation whose tag stands in the region that the instruction applies, if it fits its place."""
    if instruction.opcode in CALLING:
        return None
    inside = [i for c in instruction.called for i in module.computations.get(c, ())]
    named = {e for i in inside for e in owners[i.name][0]}
    if len(named) != 1:
        return None
    (owner,) = named
    if any(owner in nearest(instruction.name, edges, owners, limit=6) for edges in (flow.downs, flow.ups)):
        return owner
    region = {i.name for i in inside}
    others = (i for i in module.instructions.values() if i.name not in region)
    return None if any(owner in owners[i.name][0] for i in others) else owner


def _own_results(module: Module, tagged: Tagged, flow: Flow, owners: dict[str, Owner]) -> None:
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
