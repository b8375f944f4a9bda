"""Finding the Pallas kernels in a function: one `pallas_call` equation each, however deep it is nested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd

from .. import _jax
from ..display import reason
from .kernel import WITHOUT_BLOCKS, Kernel, kernel_of, signature, where
from .known import Place, body_of_call

_jax.hide_frames(__file__)  # the line that asked for a kernel is never one of ours

COLUMNS = ["kernel", "name", "grid", "steps", "operands", "semantics", "equation", "file", "line", "note"]


def kernels(f: Callable, *args: Any, **kwargs: Any) -> pd.DataFrame:
    """One row for each kernel that a call `f(*args, **kwargs)` would run, in the order of its equations.

    - `kernel`: "k0", "k1", ..., by which the other functions of this package know it; `name`: its own name.
    - `grid`: how many steps along each axis, None where data decides; `steps`: how many in all.
    - `operands`: the names in the kernel's signature, "x_ref, y_ref -> o_ref"; scalar-prefetch operands stand
      in square brackets, scratch in round ones.
    - `semantics`: what was declared for each axis: "parallel" (any order, any core) or "arbitrary".
    - `equation`: where it stands in the jaxpr, "e7" or "e7.jaxpr.e2"; `file`, `line`: and in the script.
    - `note`: why a kernel's steps cannot be listed, if so.

    Arrays are traced and may be `jax.ShapeDtypeStruct`s; all other arguments are passed on as they are.
    """
    rows = [_row(kernel) for kernel in find(f, args, kwargs)]
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object)
    return table.astype({"steps": "Int64", "line": "Int64"})


def _row(kernel: Kernel) -> tuple:
    return (
        kernel.id,
        kernel.name,
        kernel.grid,
        kernel.steps,
        signature(kernel.operands),
        kernel.semantics,
        kernel.equation,
        *where(kernel.eqn, kernel.asked),
        kernel.unknown,
    )


def one(f: Callable, args: tuple, kwargs: dict, kernel: str | None) -> Kernel:
    """The kernel asked for, or the only one there is; its steps are known. ValueError otherwise."""
    found = chosen(f, args, kwargs, kernel)
    if len(found) != 1:
        raise ValueError(f"Expected kernel= to say which of {len(found)} kernels is meant: {_listed(found)}.")
    if found[0].unknown:
        raise ValueError(
            f"The steps of {found[0].id} ({found[0].name}) cannot be listed: {found[0].unknown}."
        )
    return found[0]


def chosen(f: Callable, args: tuple, kwargs: dict, kernel: str | None) -> list[Kernel]:
    """All kernels of `f`, or the one with the id `kernel`; ValueError where there is none."""
    found = find(f, args, kwargs)
    if not found:
        raise ValueError(f"Expected a function with a Pallas kernel, and {name_of(f)} has no pallas_call.")
    if kernel is None:
        return found
    named = [k for k in found if k.id == kernel]
    if not named:
        raise ValueError(f"Expected kernel= to be one of {_listed(found)}, got {kernel!r}.")
    return named


def _listed(found: list[Kernel]) -> str:
    return ", ".join(f"{k.id!r} ({k.name})" for k in found)


# From a function to its pallas_call equations --------------------------------------------------------------


def find(f: Callable, args: tuple, kwargs: dict) -> list[Kernel]:
    """Every kernel in a function, nested ones too."""
    place = _trace(f, args, kwargs)
    return [kernel_of(f"k{i}", *found) for i, found in enumerate(_equations(place, ""))]


def _trace(f: Callable, args: tuple, kwargs: dict) -> Place:
    """The jaxpr of a call, arrays traced and everything else as it is.

    A jitted function is one equation around its own jaxpr: that one is returned, so that ids of equations
    are those of the jaxpr stage.
    """
    if not callable(f):
        kind = type(f).__name__
        raise TypeError(f"Expected a function to read, got {kind}: write steps(f, x), not steps(f(x)).")
    leaves, tree = jax.tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def call(*arrays: Any) -> Any:
        filled = list(leaves)
        for i, array in zip(places, arrays):
            filled[i] = array
        positional, named = jax.tree.unflatten(tree, filled)
        return f(*positional, **named)

    given = [leaves[i] for i in places]
    try:
        top = Place(jax.make_jaxpr(call)(*given), given=given)
    except Exception as error:
        said = f"{type(error).__name__}: {reason(error)[:600]}"
        raise ValueError(f"{name_of(f)} could not be traced, {said}") from error
    equations = _jax.open_jaxpr(top.jaxpr).eqns
    body = body_of_call(equations[0]) if isinstance(f, jax.stages.Wrapped) and len(equations) == 1 else None
    return top if body is None else Place(body, top, equations[0])


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))


def name_of(f: Callable) -> str:
    while isinstance(f, functools.partial):
        f = f.func
    return getattr(f, "__name__", None) or type(f).__name__


def _equations(place: Place, prefix: str) -> Iterator[tuple[str, Any, Place, Any]]:
    """Path, equation and place of each kernel, and the equation that the user's line wrote."""
    for i, eqn in enumerate(_jax.open_jaxpr(place.jaxpr).eqns):
        path = f"{prefix}e{i}"
        if eqn.primitive.name == "pallas_call" or eqn.primitive.name in WITHOUT_BLOCKS:
            yield path, eqn, place, eqn
            continue
        if eqn.params.get("implementation") == "pallas" and (body := body_of_call(eqn)) is not None:
            # Its launcher is in no jaxpr before it is lowered: the operator is what stands there.
            yield from ((path, inner, at, eqn) for _, inner, at, _ in _equations(Place(body, place, eqn), ""))
            continue
        for key, body in _jax.sub_jaxprs(eqn.params):
            yield from _equations(Place(body, place, eqn, key), f"{path}.{key}.")
