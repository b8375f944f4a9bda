"""The stepper: a kernel's walk over its grid as a page with a slider, and as a picture where no page shows.

What the page draws is made here, as plain lists and numbers, from the same tables as `steps` and `check`;
`oplab.views.stepper` turns it into HTML and knows nothing of JAX.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ..views.static import write
from .check import findings as findings_of
from .kernel import Kernel, signature, where
from .kernels import chosen, name_of
from .reading import body_text, index_maps, source_text, walked
from .values import recorded

STEPS = 200_000  # of one kernel, in one page: about a megabyte at the worst


class Shown:
    """A kernel to step through: a notebook shows it by itself, `save` makes a file of it.

    document: what is shown, as plain Python values; see `show`.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the stepper as one static HTML file, which needs nothing but itself. Returns the path."""
        path = os.fspath(path)
        if not path.endswith(".html"):
            raise ValueError(f"Expected a path that ends in .html, got {path!r}: the stepper is a web page.")
        from ..views import stepper  # it draws with matplotlib, which writes files when it is first imported

        return write(path, stepper.render(self.document))

    def __repr__(self) -> str:
        from ..views import stepper

        return stepper.words(self.document)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        from ..views import stepper

        bundle = {"text/plain": repr(self), "text/html": stepper.embed(self.document)}
        picture = stepper.strip(self.document)
        if picture is None:
            return bundle, {}
        drawn, described = picture._repr_mimebundle_()
        return bundle | {"image/png": drawn["image/png"]}, described


def show(
    f: Callable,
    *args: Any,
    kernel: str | None = None,
    values: bool = False,
    limit: int = STEPS,
    **kwargs: Any,
) -> Shown:
    """The kernels of `f`, step by step: which block of which array, what is moved, what is written by now.

    A page with a slider over the grid. At each step it draws every operand's array to scale with its block,
    says what was fetched, what the step before had left there, what is written back and when, and what that
    comes to in bytes; what `check` finds is drawn where it happens. Steps run in the order of `steps`.

    kernel: show one only, by its id; without it a menu chooses. limit: a kernel with more steps is not drawn,
    and a sentence says so. values: run each kernel in Pallas's interpreter, on the CPU, and show the numbers
    in its blocks too. That needs concrete arrays, and records no more than a page can hold: what was left
    out is said. (A block that lies outside its array the interpreter moves back inside.)

    ValueError where `f` has no kernel. Arrays may be `jax.ShapeDtypeStruct`s, except for values=True.
    """
    found = chosen(f, args, kwargs, kernel)
    return Shown({"function": name_of(f), "kernels": [_document(k, values, limit) for k in found]})


def _document(kernel: Kernel, values: bool, limit: int) -> dict[str, Any]:
    """One kernel: all that the page knows of it."""
    file, line = where(kernel.eqn, kernel.asked)
    known = {
        "id": kernel.id,
        "name": kernel.name,
        "where": f"{file}:{line}" if file else "",
        "signature": signature(kernel.operands),
        "grid": list(kernel.grid or ()),
        "semantics": list(kernel.semantics),
        "source": source_text(kernel),
        "body": body_text(kernel),
    }
    reason = kernel.unknown
    if not reason and kernel.steps > limit:
        reason = f"its {kernel.steps:,} steps are more than limit={limit:,}, which can be raised"
    if reason:
        return known | {"steps": 0, "note": f"{kernel.name} is not drawn: {reason}."}
    axes, maps = index_maps(kernel)
    findings = [finding._asdict() for finding in findings_of(kernel, limit)]
    operands = walked(kernel, maps)
    record = recorded(kernel) if values else None
    return known | {
        "steps": kernel.steps,
        "note": "" if kernel.steps else f"{kernel.name} has no step: its grid is {kernel.grid}.",
        "axes": axes,
        "operands": operands,
        "findings": findings,
        "values": record,
    }
