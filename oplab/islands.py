"""Islands: unnamed instructions of the compiled program, and the equations that vanished where they stand."""

from __future__ import annotations

from functools import cached_property

from .dataflow import Uses, graph, twins
from .flow import Flow
from .provenance import Tagged
from .stages.hlo import FREE, Instruction, Module

# Equations that only rename, reshape or simplify away: they vanish all the time, and leave no island behind.
_SHAPE_ONLY = frozenset(
    "reshape squeeze expand_dims broadcast_in_dim convert_element_type transpose copy copy_p stop_gradient "
    "pvary optimization_barrier mul add sub div neg select_n".split()
)


class Islands:
    """Islands of unnamed instructions, and the equations that may have vanished there."""

    def __init__(self, module: Module, tagged: Tagged, flow: Flow, owners: dict[str, tuple]) -> None:
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
        gone = [e.id for e in candidates if e.id not in self.living and e.primitive not in _SHAPE_ONLY]
        alike = twins(self.tagged) if gone else {}
        return [e for e in gone if self.living.isdisjoint(alike.get(e, ()))]  # a living twin does its work

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
