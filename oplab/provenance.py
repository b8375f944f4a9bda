"""Provenance: from an instruction of the compiled program back to the jaxpr equation and the line that asked
for it.

Every equation gets a short tag in its name stack, `#1f#`, nested jaxprs included, before the jaxpr is
lowered. XLA keeps name stacks in its metadata (`op_name`), puts the caller's in front when it inlines a call,
and the compiled program is otherwise the same, byte for byte. An instruction's op_name then reads
`jit(f)/#3#/while/body/#7#/tanh`: equation 7 inside equation 3.

A jaxpr that is used twice (one jitted function, two calls) is tagged once and stays shared, so the program
grows no larger; the sequence of tags tells the two calls apart. That is why an equation's `path` is a tuple
of tags.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from . import _jax

# A tag is a whole component of an op_name: after "/", "(" or the start, before "/", ")" or the end.
TAG = re.compile(r"(?:(?<=[/(\"])|^)#([0-9a-z]+)#(?=[/)\"]|$)")
# The same, to be cut out. It begins with the "#" itself, so that a long text is searched fast.
_FIRST = re.compile(r"#(?<=[/(\"]#)[0-9a-z]+#/")
_LAST = re.compile(r"/?#(?<=[/(\"]#)[0-9a-z]+#(?=[)\"])")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(eq=False)
class Equation:
    """One jaxpr equation where it stands: `e7`, or `e7.jaxpr.e2` for the third one in the body of `e7`."""

    id: str
    path: tuple[str, ...]  # its tag, after those of the equations around it
    depth: int
    primitive: str
    eqn: Any  # the JaxprEqn
    parent: Equation | None
    where: str  # the parameter of the parent that holds it: "jaxpr", "branches.0", ""
    children: list[Equation] = field(default_factory=list, repr=False)


@dataclass
class Tagged:
    """A tagged jaxpr and the equations behind its tags."""

    jaxpr: Any
    top: Any  # the open jaxpr before tagging
    equations: dict[str, Equation]  # by id, in the order of the program
    by_path: dict[tuple[str, ...], Equation]
    by_tag: dict[str, list[Equation]]
    _known: dict[str, tuple[Equation, ...]] = field(default_factory=dict, repr=False)

    def of(self, op_name: str) -> tuple[Equation, ...]:
        """The equations that an HLO op_name names. XLA joins with ";" the names of what it merged;
        whatever is not ours is passed over.
        """
        if "#" not in op_name:
            return ()
        if op_name not in self._known:
            found: dict[Equation, None] = {}
            for name in op_name.split(";"):
                path = tuple(tag for tag in TAG.findall(name) if tag in self.by_tag)
                if path in self.by_path:
                    found[self.by_path[path]] = None
                elif path:
                    found.update(dict.fromkeys(self.ending(path)[:1]))
            self._known[op_name] = tuple(found)
        return self._known[op_name]

    def ending(self, path: tuple[str, ...]) -> list[Equation]:
        """All equations whose path ends so: a StableHLO function knows its own tags, not those of its
        callers.
        """
        return [e for e in self.by_tag.get(path[-1], ()) if e.path[-len(path) :] == path]


def strip(text: str) -> str:
    """The compiler's text without our tags: what it would have written for the untagged program."""
    text = _FIRST.sub("", text)
    return _LAST.sub("", text) if "#" in text else text


def tag(jaxpr: Any) -> Tagged:
    """Tag every equation of a (closed) jaxpr, nested ones too. Nothing else about it changes."""
    tagger = _Tagger()
    tagged = tagger.jaxpr(jaxpr)
    equations: list[Equation] = []
    tagger.enumerate(jaxpr, None, "", equations)
    by_tag = defaultdict(list)
    for equation in equations:
        by_tag[equation.path[-1]].append(equation)
    return Tagged(
        tagged,
        _jax.open_jaxpr(jaxpr),
        {e.id: e for e in equations},
        {e.path: e for e in equations},
        dict(by_tag),
    )


class _Tagger:
    """Remembers which jaxprs were tagged already, so that shared ones stay shared."""

    def __init__(self) -> None:
        self.count = 0
        self.shared: dict[int, tuple[Any, Any, list]] = {}  # id of a jaxpr -> (it, its tagged form, its tags)

    def jaxpr(self, jaxpr: Any) -> Any:
        return self._tagged(jaxpr)[1]

    def _tagged(self, jaxpr: Any) -> tuple[Any, Any, list]:
        if id(jaxpr) not in self.shared:
            self.shared[id(jaxpr)] = self._tag(jaxpr)
        return self.shared[id(jaxpr)]

    def _tag(self, jaxpr: Any) -> tuple[Any, Any, list]:
        equations, tags = [], []
        for eqn in _jax.open_jaxpr(jaxpr).eqns:
            mine = _base36(self.count)
            self.count += 1
            inside: list = []  # (path in params, jaxpr, its tags)

            def change(inner: Any, inside: list = inside) -> Any:
                # Two branches of one cond may be the same jaxpr; each gets tags of its own, or nothing could
                # tell them apart.
                again = any(inner is seen for seen, _ in inside)
                entry = self._tag(inner) if again else self._tagged(inner)
                inside.append((inner, entry[2]))
                return entry[1]

            params = {key: _jax.map_jaxprs(value, change) for key, value in eqn.params.items()}
            equations.append(_jax.with_scope(eqn, f"#{mine}#", params))
            tags.append((mine, [inner_tags for _, inner_tags in inside]))
        return jaxpr, _jax.with_equations(jaxpr, equations), tags

    def enumerate(self, jaxpr: Any, parent: Equation | None, where: str, out: list[Equation]) -> None:
        """List the equations depth first: each before the equations inside it."""
        self._enumerate(jaxpr, self._tagged(jaxpr)[2], parent, where, out)

    def _enumerate(
        self, jaxpr: Any, tags: list, parent: Equation | None, where: str, out: list[Equation]
    ) -> None:
        prefix = f"{parent.id}.{where}." if parent else ""
        for i, (eqn, (mine, inner_tags)) in enumerate(zip(_jax.open_jaxpr(jaxpr).eqns, tags, strict=True)):
            equation = Equation(
                f"{prefix}e{i}",
                (parent.path if parent else ()) + (mine,),
                parent.depth + 1 if parent else 0,
                eqn.primitive.name,
                eqn,
                parent,
                where,
            )
            if parent:
                parent.children.append(equation)
            out.append(equation)
            for (path, inner), its_tags in zip(_jax.sub_jaxprs(eqn.params), inner_tags, strict=True):
                self._enumerate(inner, its_tags, equation, path, out)


def _base36(number: int) -> str:
    text = ""
    while True:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
        if not number:
            return text
