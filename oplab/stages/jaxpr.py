"""The jaxpr: what tracing kept of the script. One equation a row, those of nested jaxprs too."""

from __future__ import annotations

import re
from typing import Any

from .. import _jax
from ..cost import Counted
from ..provenance import TAG, Equation, Tagged
from .script import Location, hide_addresses
from .stage import Stage, frame

COLUMNS = [
    "equation",
    "depth",
    "primitive",
    "inputs",
    "outputs",
    "params",
    "file",
    "line",
    "column",
    "library_file",
    "library_line",
    "scope",
    "effects",
    "trips",
    "flops",
    "bytes",
    "text_line",
]

_NOTE = re.compile(
    r" +# \[(?=[^\n]*#[0-9a-z]).*$"
)  # `   # [#1f/jvp()]` at the end of a line: an equation's name stack


def stage(
    closed: Any,
    tagged: Tagged,
    locations: dict[str, tuple[Location | None, Location | None]],
    counted: dict[str, Counted],
) -> Stage:
    """The jaxpr stage.

    `trips` says how often an equation runs when the function runs once: the product of the trip counts of the
    loops around it. `flops` and `bytes` (see `oplab.cost`) are those of all these runs, for an equation that
    holds others with theirs. Where a loop stops on the data, `trips` is missing and one run is counted.
    """
    text, lines = _text(closed, tagged)
    rows = [_row(e, locations[e.id], counted[e.id], lines.get(e.path[-1])) for e in tagged.equations.values()]
    return Stage("jaxpr", text, frame(rows, COLUMNS))


def _row(
    equation: Equation, where: tuple[Location | None, Location | None], counted: Counted, line: int | None
) -> tuple:
    eqn = equation.eqn
    script, inner = where
    runs = 1 if counted.runs is None else counted.runs
    total = [None if value is None else value * runs for value in (counted.cost.flops, counted.cost.bytes)]
    return (
        equation.id,
        equation.depth,
        equation.primitive,
        tuple(_short(v) for v in eqn.invars),
        tuple(_short(v) for v in eqn.outvars),
        _params(eqn.params),
        script and script.file,
        script and script.line,
        script and script.column,
        inner and inner.file,
        inner and inner.line,
        _jax.name_stack(eqn),
        tuple(str(effect) for effect in eqn.effects),
        counted.runs,
        *total,
        line,
    )


def _short(atom: Any) -> str:
    """`f32[8,16]`, or a literal's value."""
    value = getattr(atom, "val", None)
    if value is not None and getattr(value, "shape", ()) == ():
        return str(value)
    return atom.aval.str_short(short_dtypes=True)


def _params(params: dict[str, Any]) -> str:
    """An equation's parameters on one line; a jaxpr among them is shown as its equations are: by their own
    rows.
    """
    shown = []
    for key, value in params.items():
        if next(_jax.sub_jaxprs({key: value}), None):
            shown.append(f"{key}={{...}}")
        else:
            text = " ".join(hide_addresses(str(value)).split())
            shown.append(f"{key}={text if len(text) <= 120 else text[:117] + '...'}")
    return " ".join(shown)


def _text(closed: Any, tagged: Tagged) -> tuple[str, dict[str, int]]:
    """JAX's own print of the jaxpr, and the line of each tag.

    JAX prints the tagged jaxpr with name stacks as comments at the line ends: the same lines, plus our tags.
    Where several equations stand on one line, the comments of all but the first follow on lines of their own.
    """
    shown: list[str] = []
    lines: dict[str, int] = {}
    for line in tagged.jaxpr.pretty_print(name_stack=True, use_color=False).split("\n"):
        note = _NOTE.search(line)
        words = line[: note.start()] if note else line
        if words or not note:
            shown.append(words)
        for tag in TAG.findall(note[0].replace("[", "(").replace("]", ")")) if note else ():
            lines.setdefault(tag, len(shown))
    return hide_addresses("\n".join(shown)), lines
