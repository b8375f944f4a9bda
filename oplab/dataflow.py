"""The dataflow of a jaxpr: whose result goes where, and whose result anybody needs.

An equation that holds others (a call, a loop) is looked into: values flow through its walls.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Container, Iterable

from . import _jax
from .provenance import Equation, Tagged

LOOPS = frozenset({"while", "scan", "cond", "fori_loop", "switch"})


def graph(tagged: Tagged) -> dict[str, tuple[set[str], set[str]]]:
    """Equation id -> (the equations whose results it uses, the equations that use its result), through nested
    jaxprs.
    """
    found: dict[str, tuple[set[str], set[str]]] = {e: (set(), set()) for e in tagged.equations}
    top = [e for e in tagged.equations.values() if e.parent is None]
    _wire(top, {}, found)
    return found


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


def twins(tagged: Tagged) -> dict[str, list[str]]:
    """Equation id -> the equations that compute the same from the same (itself among them), within one jaxpr:
    what common subexpression elimination may make one of.
    """
    numbers: dict[object, int] = {}  # a variable, or what computes it -> the number of its value
    alike: dict[int, list[str]] = defaultdict(list)
    for equation in tagged.equations.values():
        eqn = equation.eqn
        if equation.children or eqn.effects:
            continue  # two loops, or two prints, stay two
        body = (equation.parent.id if equation.parent else "", equation.where)  # calls may share one jaxpr
        operands = tuple(("literal", str(v.aval), str(v.val)) if hasattr(v, "val")
                         else numbers.setdefault((body, v), len(numbers)) for v in eqn.invars)
        value = (body, equation.primitive, operands, repr(sorted(eqn.params.items())), len(eqn.outvars))
        number = numbers.setdefault(value, len(numbers))
        for place, v in enumerate(eqn.outvars):
            numbers[body, v] = number if not place else numbers.setdefault((value, place), len(numbers))
        alike[number].append(equation.id)
    return {e: group for group in alike.values() for e in group}


class Uses:
    """Who uses an equation's results inside its own jaxpr, and whether anybody needs them."""

    def __init__(self, tagged: Tagged) -> None:
        self.readers: dict[tuple, list[Equation]] = defaultdict(list)  # (jaxpr, variable) -> equations
        self.writers: dict[tuple, Equation] = {}
        self.needed: set[str] = set()
        bodies: dict[tuple[str, str], list[Equation]] = defaultdict(list)
        for equation in tagged.equations.values():
            key = self._key(equation)
            bodies[key].append(equation)
            self.writers.update(((key, v), equation) for v in equation.eqn.outvars)
            for v in equation.eqn.invars:
                if not hasattr(v, "val"):
                    self.readers[key, v].append(equation)
        self._live(bodies, "", "", tagged.top, [True] * len(tagged.top.outvars))

    @staticmethod
    def _key(equation: Equation) -> tuple[str, str]:
        return (equation.parent.id if equation.parent else "", equation.where)

    def _live(self, bodies: dict, parent: str, where: str, jaxpr: object, wanted: list[bool]) -> None:
        """Backwards through one jaxpr: an equation is needed when a needed one reads it, or when it has an
        effect.
        """
        live = {
            v
            for v, is_wanted in zip(jaxpr.outvars, wanted, strict=True)
            if is_wanted and not hasattr(v, "val")
        }
        for equation in reversed(bodies[parent, where]):
            eqn = equation.eqn
            results = [v in live for v in eqn.outvars]
            if not (any(results) or eqn.effects):
                continue
            self.needed.add(equation.id)
            live.update(v for v in eqn.invars if not hasattr(v, "val"))
            for path, inner in _jax.sub_jaxprs(eqn.params) if equation.children else ():
                body = _jax.open_jaxpr(inner)
                plain = equation.primitive not in LOOPS and len(results) == len(body.outvars)
                self._live(bodies, equation.id, path, body, results if plain else [True] * len(body.outvars))

    def unused(self, equation: Equation) -> bool:
        """JAX leaves such equations out of the lowering, or XLA drops them first thing."""
        return equation.id not in self.needed

    def next_living(self, equation: Equation, living: Container[str]) -> str:
        """The nearest equation downstream that has an instruction; failing that, upstream."""
        for neighbours in (self.users, self._sources):
            seen: set[str] = set()
            todo = deque([equation])
            while todo:
                here = todo.popleft()
                if here.id in seen:
                    continue
                seen.add(here.id)
                if here is not equation and here.id in living:
                    return here.id
                todo += neighbours(here)
        return ""

    def users(self, equation: Equation) -> list[Equation]:
        return [user for v in equation.eqn.outvars for user in self.readers.get((self._key(equation), v), ())]

    def _sources(self, equation: Equation) -> list[Equation]:
        return [
            self.writers[self._key(equation), v]
            for v in equation.eqn.invars
            if not hasattr(v, "val") and (self._key(equation), v) in self.writers
        ]
