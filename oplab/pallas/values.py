"""What stands in a kernel's blocks at each step: recorded while Pallas's own interpreter runs it.

The kernel's `pallas_call` is run once more, on the CPU and alone, with a few equations put before and after
its body that hand each Ref to Python. Its operands are computed as those of dynamic grids are, so they must
follow from concrete arrays without another kernel or a loop in between.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from .. import _jax
from .blocks import programs
from .kernel import Kernel
from .known import on_cpu, values

STEPS = 20_000  # of a kernel that is run at all: the interpreter needs about a millisecond for each
NUMBERS = 120_000  # numbers in a page
SIDE = 16  # of one block: this many along each of its last two axes, and the first of all others
SMALLEST = 1e-37  # in absolute value: what is smaller is shown as 0


def recorded(kernel: Kernel) -> dict[str, Any]:
    """The values before and after the steps of a kernel, or a sentence that says why there are none.

    Keys: `note`, what was left out, or why; `shapes`, for each operand the shape of what is kept of a block;
    `steps`, for each recorded step a list for each operand: its numbers, flat, of an input before the step
    and of all others after it (None: not a number, "inf" and "-inf" as such).
    """
    reason, operands = _ready(kernel)
    if reason:
        return {"note": f"No values: {reason}.", "shapes": [], "steps": []}
    taken: list[list[Any]] = []
    shapes = [_kept(aval) for aval in _refs(kernel)]
    most = max(1, NUMBERS // max(1, sum(map(math.prod, shapes))))
    try:
        with on_cpu():
            _run(kernel, operands, shapes, most, taken)
    except Exception as error:
        words = " ".join(str(error).split("\n\n")[0].split())[:200]
        reason = f"the interpreter could not run {kernel.name}, {type(error).__name__}: {words}"
        return {"note": f"No values: {reason}.", "shapes": [], "steps": []}
    return {
        "note": _left_out(kernel, shapes, len(taken)),
        "shapes": [list(shape) for shape in shapes],
        "steps": [[_plain(array) for array in step] for step in taken],
    }


def _ready(kernel: Kernel) -> tuple[str, list[Any]]:
    """Why the kernel cannot be run, if so, and its operands."""
    if kernel.steps > STEPS:
        return f"{kernel.steps:,} steps are too many to interpret, at most {STEPS:,} are", []
    operands = values(kernel.place, kernel.eqn.invars)
    if missing := [i for i, value in enumerate(operands) if value is None]:
        first = kernel.mapping.num_dynamic_grid_bounds
        names = ", ".join(kernel.operands[i - first].name for i in missing if i >= first)
        return (
            f"the contents of {names} are not known before the run; give concrete arrays of less than a "
            "million elements, and look at a kernel that no other kernel or loop feeds"
        ), []
    return "", operands


def _refs(kernel: Kernel) -> list[Any]:
    return [var.aval for var in _jax.open_jaxpr(kernel.eqn.params["jaxpr"]).invars]


def _kept(aval: Any) -> tuple[int, ...]:
    """The shape of what is recorded of a Ref; nothing of semaphores and of what lies in large memory."""
    space = str(getattr(aval, "memory_space", None)).rsplit(".", 1)[-1].lower()
    dtype = getattr(aval, "dtype", None)
    numbers = dtype is not None and not jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
    if not numbers or "semaphore" in space or "semaphore" in str(dtype) or space in ("any", "hbm"):
        return (0,)
    shape = tuple(aval.shape)
    return (*(1 for _ in shape[:-2]), *(min(size, SIDE) for size in shape[-2:]))


def _run(kernel: Kernel, operands: list[Any], shapes: list, most: int, taken: list) -> None:
    """Run the kernel in the interpreter; what it records goes into `taken`.

    A step's two calls to Python may come in any order, but a step is over before the next begins.
    """
    refs, places = _refs(kernel), programs(kernel.grid)[:most, kernel.own_axes].tolist()
    inputs = [i for i, operand in enumerate(kernel.operands) if operand.role in ("prefetch", "in")]
    others = [i for i, operand in enumerate(kernel.operands) if operand.role in ("out", "scratch")]
    before: list[Any] = []
    after: list[Any] = []

    def keep(place: list, *arrays: Any) -> None:
        if len(place) < most:
            place.append([np.asarray(array) for array in arrays])

    body = kernel.eqn.params["jaxpr"]
    axes = len(kernel.own_axes)
    first = _probe(refs, axes, inputs, shapes, functools.partial(keep, before))
    last = _probe(refs, axes, others, shapes, functools.partial(keep, after))
    params = {**kernel.eqn.params, "jaxpr": _joined(body, first, last), "interpret": True}
    results = jax.jit(lambda *given: kernel.eqn.primitive.bind(*given, **params))(*operands)
    jax.block_until_ready(results)
    jax.effects_barrier()
    for place, start, end in zip(places, before, after, strict=True):
        if place != start[:axes] or place != end[:axes]:
            raise RuntimeError("its steps ran in another order than that of the grid")
        step = dict(zip(inputs, start[axes:])) | dict(zip(others, end[axes:]))
        taken.append([step[i] for i in range(len(refs))])


def _probe(refs: list[Any], axes: int, which: list[int], shapes: list, hand_over: Any) -> Any:
    """The jaxpr of a body that hands its program ids and the beginnings of some Refs to a function."""

    def kernel(*given: Any) -> None:
        ids = [pl.program_id(axis) for axis in range(axes)]
        parts = [
            given[i][tuple(slice(0, size) for size in shapes[i])] if 0 not in shapes[i] else jnp.zeros(0)
            for i in which
        ]
        jax.debug.callback(hand_over, *ids, *parts)

    like = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in refs]
    result = jax.ShapeDtypeStruct((), jnp.float32)
    call = pl.pallas_call(kernel, grid=(1,) * axes, out_shape=result, interpret=True)
    equations = _jax.open_jaxpr(jax.make_jaxpr(call)(*like)).eqns
    return next(eqn for eqn in equations if eqn.primitive.name == "pallas_call").params["jaxpr"]


def _joined(body: Any, first: Any, last: Any) -> Any:
    """A body with the equations of a probe before it and of another after it, all on the body's own Refs."""
    inner = _jax.open_jaxpr(body)
    equations, effects = [], set(inner.effects)
    for part in map(_jax.open_jaxpr, (first, body, last)):
        own = dict(zip(part.invars, inner.invars))
        for eqn in part.eqns:
            atoms = [atom if hasattr(atom, "val") else own.get(atom, atom) for atom in eqn.invars]
            equations.append(eqn.replace(invars=atoms))
        effects |= set(part.effects)
    new = inner.replace(eqns=equations, effects=effects)
    return new if inner is body else body.replace(jaxpr=new)


def _left_out(kernel: Kernel, shapes: list, count: int) -> str:
    said = []
    if count < kernel.steps:
        said.append(f"Values of the first {count:,} of {kernel.steps:,} steps")
    pairs = zip(kernel.operands, _refs(kernel), shapes)
    if cut := [o.name for o, aval, shape in pairs if 0 not in shape and shape != tuple(aval.shape)]:
        said.append(f"Of {', '.join(cut)} only the first {SIDE} values along an axis are kept")
    return ". ".join(said) + "." * bool(said)


def _plain(array: np.ndarray) -> list[Any]:
    """Numbers of four digits, for JSON; of complex ones the absolute values."""
    if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
        return array.reshape(-1).astype(int).tolist()
    real = np.abs(array) if np.iscomplexobj(array) else np.asarray(array, np.float64)
    return [_number(value) for value in real.reshape(-1).tolist()]


def _number(value: float) -> float | str | None:
    if math.isfinite(value):
        return float(f"{value:.4g}") if abs(value) > SMALLEST else 0
    return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
