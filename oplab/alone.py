"""A program's equations, each lowered alone, and the program as a whole: what stands in its way, and where?

JAX stops at the first equation that has no rule. Here each is bound anew, on the shapes it has in the
program, as a program of its own, so all that have none are found in one go. An equation that has a meaning
only among others (a psum needs its mesh, a Ref its owner) is judged by the whole. The verdict on the whole is
never put together from its parts: it is lowered too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from . import _jax, provenance
from .lowerable import INTERPRET, Answer, ask, no_backend
from .ops.operator import MAP, PLATFORMS
from .provenance import Equation
from .stages import script
from .tracing import jitted, readable_name, trace
from .trips import COMBINERS

_jax.hide_frames(__file__)  # whoever binds an equation anew is the lab, not the experiment

ONE = COMBINERS | {"pallas_call", "core_map"}  # what they hold is lowered with them, by rules of their own


class Program:
    """One traced function, and what was lowered of it already. None in an equation's place: the whole."""

    def __init__(self, f: Callable, args: tuple, kwargs: dict) -> None:
        self.name = readable_name(f)
        self.traced = trace(jitted(f, {}), self.name, args, kwargs)
        tagged = provenance.tag(self.traced.jaxpr)
        self.equations = [e for e in tagged.equations.values() if not _inside_one(e)]
        # The interpreter's program has the same equations, in the same order, with the same ids.
        self.interpreted = provenance.tag(interpreted := _interpreted(self.traced.jaxpr)).equations
        self.traced_interpreted = _jax.with_jaxpr(self.traced, interpreted)
        self.definition = script.definition(f)
        self.locations = script.locate(tagged.equations.values(), self.definition)
        self.alone: dict[Any, Any] = {}  # an equation -> it, traced alone; None if it cannot be
        self.known: dict[Any, Answer] = {}  # (an equation or None, platform) -> what lowering said

    def place(self, equation: Equation | None) -> tuple:
        """The columns from equation to text."""
        where = self.definition if equation is None else self.locations[equation.id][0]
        at = (where.file, where.line, where.text.strip()) if where else (None, None, None)
        if equation is None:
            return "whole", "", *at[:2], f"all of {self.name}"
        return equation.id, equation.primitive, *at

    def answer(self, equation: Equation | None, platform: str) -> Answer:
        """Does it lower? A platform without a backend supports nothing, whatever is lowered for it."""
        said, missing = self._said(equation, platform), no_backend(platform)
        if missing:
            return said if equation and said.supported is False else Answer(False, missing)
        if equation and said.supported is False and self._lowered(None, platform).supported:
            return said._replace(reason=f"{said.reason}, but {self.name} is lowered without this equation")
        return said

    def _said(self, equation: Equation | None, platform: str) -> Answer:
        """As `_lowered`; where it is what stands inside that does not lower, with the reason of that."""
        said = self._lowered(equation, platform)
        if said.supported is None:
            said = self._from_around(equation, platform)
        if said.supported is False and (guilty := self._guilty(equation, platform)):
            more = f" and {len(guilty) - 1} more" if len(guilty) > 1 else ""
            return said._replace(reason=f"{self._lowered(guilty[0], platform).reason} ({guilty[0].id}{more})")
        return said

    def _guilty(self, equation: Equation | None, platform: str) -> list[Equation]:
        """The equations inside that do not lower, without those that only hold such ones."""
        failing = [e for e in self._inside(equation) if self._lowered(e, platform).supported is False]
        return [e for e in failing if not any(other.id.startswith(f"{e.id}.") for other in failing)]

    def _from_around(self, equation: Equation, platform: str) -> Answer:
        """An equation that cannot stand alone, such as a psum without its mesh, lowers if the whole does."""
        whole = self._lowered(None, platform)
        if whole.supported:
            return Answer(True)
        if f"{equation.primitive} has no rule on" in whole.reason or self._guilty(equation, platform):
            return Answer(False, whole.reason)
        there = self._said(None, platform).reason
        return Answer(None, f"{equation.primitive} is lowered only with what is around it, and there {there}")

    def _inside(self, equation: Equation | None) -> list[Equation]:
        if equation is None:
            return self.equations
        return [e for e in self.equations if e.id.startswith(f"{equation.id}.")]

    def _lowered(self, equation: Equation | None, platform: str) -> Answer:
        """What lowering says of an equation alone, or of the whole; the same question is asked once."""
        if equation is None:
            key, who = None, self.name
            traced = self.traced_interpreted if platform == INTERPRET else self.traced
        else:
            eqn = self.interpreted[equation.id].eqn if platform == INTERPRET else equation.eqn
            key, who = _key(eqn), equation.primitive
            traced = self._alone(eqn, key)
        if traced is None:
            return Answer(None)
        if (key, platform) not in self.known:
            where = "cpu" if platform == INTERPRET else platform
            self.known[key, platform] = ask(lambda: traced.lower(lowering_platforms=(where,)), who, where)
        return self.known[key, platform]

    def _alone(self, eqn: Any, key: Any) -> Any:
        if key not in self.alone:
            self.alone[key] = _traced_alone(eqn, eqn.params)
        return self.alone[key]

    def nearest(self, equation: Equation | None, platform: str) -> str:
        """Another implementation there, for an operator of the lab; else the platforms where this lowers."""
        if equation is not None and not no_backend(platform):
            here = _other_implementations(equation.eqn, platform)
            if here:
                return " or ".join(f"implementation={name!r}" for name in here)
        elsewhere = [other for other in PLATFORMS if self._said(equation, other).supported]
        if "cpu" not in elsewhere and self._said(equation, INTERPRET).supported:
            elsewhere.append(INTERPRET)
        return ", ".join(elsewhere)


def _inside_one(equation: Equation) -> bool:
    """Is it a part of an operator that lowers as one, whose inside is no program of JAX's?"""
    parent = equation.parent
    return parent is not None and (parent.primitive in ONE or _inside_one(parent))


def _key(eqn: Any) -> Any:
    """Equal for equations that lower to the same code."""
    params = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
    key = eqn.primitive, tuple(v.aval for v in eqn.invars), params
    try:
        hash(key)
    except TypeError:
        return id(eqn)
    return key


def _traced_alone(eqn: Any, params: dict[str, Any]) -> Any:
    """The equation as a program of its own; None where it has a meaning only among others."""

    def alone(*operands):
        return eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(params))

    try:
        return jax.jit(alone).trace(*(v.aval for v in eqn.invars))
    except Exception:
        return None


def _other_implementations(eqn: Any, platform: str) -> list[str]:
    if "implementation" not in eqn.params or eqn.primitive.name not in MAP:
        return []
    where = "cpu" if platform == INTERPRET else platform
    found = []
    for name in MAP[eqn.primitive.name]:
        traced = _traced_alone(eqn, {**eqn.params, "implementation": name})
        if traced and ask(lambda t=traced: t.lower(lowering_platforms=(where,)), name, where).supported:
            found.append(name)
    return found


def _interpreted(jaxpr: Any) -> Any:
    """The same program with every Pallas kernel run by Pallas' interpreter."""
    equations = []
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        params = {key: _jax.map_jaxprs(value, _interpreted) for key, value in eqn.params.items()}
        if eqn.primitive.name == "pallas_call":
            params = {**eqn.params, "interpret": True}
        equations.append(eqn.replace(params=params))
    return _jax.with_equations(jaxpr, equations)
