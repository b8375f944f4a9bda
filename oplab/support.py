"""Which operator runs where. Asked by really lowering it for each platform, before anyone deploys.

    oplab.support()                            the lab's operators, implementation by implementation
    oplab.support(f, *args, platform="tpu")    any function of yours, equation by equation

"Operator not supported" means that the map from operators to code has no entry. This is that map, printed. It
says what lowering says: a compiler that is not at hand may still refuse what was lowered for it, and a
library that a program calls by name (see `note`) may be missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from .alone import Program
from .display import progress
from .lowerable import INTERPRET, Answer, ask, no_backend, platforms
from .ops import CATALOGUE
from .ops.operator import IMPLEMENTATIONS, PLATFORMS, Operator
from .stages.stage import frame
from .tracing import kind
from .views.matrix import Support

OPERATOR_COLUMNS = ["operator", "implementation", "platform", "supported", "reason", "nearest", "note"]
EQUATION_COLUMNS = ["platform", "equation", "primitive", "file", "line", "text",
                    "supported", "reason", "nearest", "note"]  # fmt: skip
EVERYWHERE = (*PLATFORMS, INTERPRET, "ascend", "metal")


def support(f: Callable | None = None, *args: Any, platform: str | Iterable[str] | None = None,
            **kwargs: Any) -> Support:  # fmt: skip
    """Who runs where, a DataFrame with one row a cell. In a notebook it shows as a matrix with its reasons.

    Without f: operator, implementation, platform, supported, reason, nearest, note; each operator of the lab
    on the shapes of its example.
    With f, and arguments (or `jax.ShapeDtypeStruct`s) as for `oplab.walk`: platform, equation, primitive,
    file, line, text, supported, reason, nearest, note. The row `whole` is the verdict on f itself; the others
    are its equations, nested ones too, each lowered alone. A Pallas kernel, or an operator such as scatter
    with a small function inside, is one equation.

    platform: one or several of "cpu", "cuda", "rocm", "tpu", "interpret" (Pallas kernels run by Pallas'
        interpreter on the CPU), or any other name, such as "ascend"; None for all that make sense.
    supported: False with the reason and the nearest that does lower; missing where an equation cannot stand
        alone and what is around it does not lower.
    note: "in bfloat16" where float32 is refused, "interpreted", or what the code calls by name, which is
        looked for only when it is compiled.

    Raises WalkError where f cannot be traced, ValueError for "gpu", which is "cuda" or "rocm".
    """
    if f is None:
        return _table(_operators(platforms("support", platform, EVERYWHERE)), OPERATOR_COLUMNS)
    if not callable(f):
        raise TypeError(f"support expects a function and example arguments, got {kind(f)}: write "
                        "oplab.support(f, x), not oplab.support(f(x)).")
    return _table(_function(f, args, kwargs, platforms("support", platform)), EQUATION_COLUMNS)


def _table(rows: Iterable[tuple], columns: list[str]) -> Support:
    table = Support(frame(list(rows), columns))
    table["supported"] = table["supported"].astype("boolean")
    return table


# The lab's operators --------------------------------------------------------------------------------------


def _operators(names: list[str]) -> Iterator[tuple]:
    for operator in progress(list(CATALOGUE.values()), desc="support"):
        answer = functools.cache(functools.partial(_cell, operator))
        for implementation in IMPLEMENTATIONS:
            for platform in names:
                supported, reason, note = answer(implementation, platform)
                nearest = "" if supported else _nearest(answer, implementation, platform)
                yield operator.name, implementation, platform, supported, reason, nearest, note


def _cell(operator: Operator, implementation: str, platform: str) -> Answer:
    """Lower one implementation of an operator, on its example, for one platform."""
    if missing := no_backend(platform):
        return Answer(False, missing)
    if platform == INTERPRET and implementation != "pallas":
        return Answer(False, f"{implementation!r} is no Pallas kernel, so there is nothing to interpret")
    where = "cpu" if platform == INTERPRET else platform
    call = functools.partial(operator.function, implementation=implementation)

    def lower(dtype: str) -> Any:
        example = {name: jax.ShapeDtypeStruct(tuple(axes.values()), dtype)
                   for name, axes in operator.example.items()}  # fmt: skip
        return jax.jit(call).trace(**example).lower(lowering_platforms=(where,))

    answer = ask(functools.partial(lower, "float32"), operator.name, where)
    if not answer.supported:  # kernels for matrix units may know narrow types only
        narrow = ask(functools.partial(lower, "bfloat16"), operator.name, where)
        if narrow.supported:
            answer = narrow._replace(note="; ".join(filter(None, ["in bfloat16", narrow.note])))
    # A compiled kernel is code called by name; what the interpreter does is written out, op by op.
    interpreted = answer.supported and implementation == "pallas" and not answer.note
    return answer._replace(note="interpreted") if interpreted else answer


def _nearest(answer: Callable[[str, str], Answer], implementation: str, platform: str) -> str:
    """Another implementation there; else this one elsewhere; else any other, anywhere."""
    here = [name for name in IMPLEMENTATIONS if answer(name, platform).supported]
    if here:
        return f"{' or '.join(here)} on {platform}"
    for name in (implementation, *IMPLEMENTATIONS):
        elsewhere = [other for other in PLATFORMS if answer(name, other).supported]
        if elsewhere:
            return f"{name} on {', '.join(elsewhere)}"
    return ""


# Any function ---------------------------------------------------------------------------------------------


def _function(f: Callable, args: tuple, kwargs: dict, names: list[str]) -> Iterator[tuple]:
    program = Program(f, args, kwargs)
    rows = [(name, equation) for name in names for equation in (None, *program.equations)]
    for platform, equation in progress(rows, desc="support"):
        supported, reason, note = program.answer(equation, platform)
        nearest = "" if supported else program.nearest(equation, platform)
        yield platform, *program.place(equation), supported, reason, nearest, note
