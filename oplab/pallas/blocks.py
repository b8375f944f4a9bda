"""The walk over the grid: at each step, which block of an operand the index map picks, and what that moves.

The order is that of nested loops, the last axis of the grid fastest, as one core of a TPU and the interpreter
go ("Grids and BlockSpecs"). What moves follows "Writing TPU kernels with Pallas": when two consecutive steps
use the same block, the copy for the second is skipped, for the data is there already. In the same way an
output block stays in fast memory while consecutive steps use it, and is written back when it is left
("Software Pipelining"). A GPU runs the steps in any order and keeps nothing for the next one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np

from .. import _jax
from .kernel import Kernel
from .known import on_cpu
from .operands import Operand


class Unknown(Exception):
    """Why the blocks of an operand cannot be told before the run."""


def programs(grid: tuple[int, ...]) -> np.ndarray:
    """The place of each step in the grid, in the order in which they run: (steps, axes)."""
    steps = int(np.prod(grid, dtype=np.int64))
    return np.indices(grid, dtype=np.int32).reshape(len(grid), steps).T


@dataclass(frozen=True)
class Blocks:
    """The blocks of one operand along the walk.

    index: what the index map returned, one number for each axis of the array: (steps, rank).
    start, stop: the elements that this means, before anything is cut off at the array's edge: (steps, rank).
    shape: of the array. out: is it written rather than read?
    """

    index: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    shape: tuple[int, ...]
    out: bool

    @functools.cached_property
    def clipped(self) -> tuple[np.ndarray, np.ndarray]:
        """First element inside the array, and the one after the last: (steps, rank) each."""
        first = np.clip(self.start, 0, self.shape)
        return first, np.clip(self.stop, first, self.shape)

    @functools.cached_property
    def inside(self) -> np.ndarray:
        """Elements of the block that the array has: (steps,)."""
        first, stop = self.clipped
        return (stop - first).prod(axis=1)

    @functools.cached_property
    def padding(self) -> np.ndarray:
        """Elements of the block beyond the array, whose values are undefined: (steps,)."""
        return (self.stop - self.start).prod(axis=1) - self.inside

    @functools.cached_property
    def entered(self) -> np.ndarray:
        """Is the block another one than in the step before? (steps,)"""
        corners = np.concatenate([self.start, self.stop], axis=1)
        return np.concatenate([[True], (corners[1:] != corners[:-1]).any(axis=1)])[: len(corners)]

    @functools.cached_property
    def left(self) -> np.ndarray:
        """Is it another one in the step after, or is this the last step? (steps,)"""
        return np.concatenate([self.entered[1:], [True]])[: len(self.entered)]

    @property
    def moved(self) -> np.ndarray:
        """Is the block copied: fetched before this step, or written back after it? (steps,)"""
        return self.left if self.out else self.entered

    @functools.cached_property
    def key(self) -> np.ndarray:
        """A number for each distinct block, in no particular order: (steps,)."""
        corners = np.concatenate([self.start, self.stop - self.start], axis=1)
        if not corners.size:
            return np.zeros(len(corners), np.int64)
        low = corners.min(axis=0)
        spans = corners.max(axis=0) - low + 1
        if np.prod(spans.astype(float)) < 2**62:  # one integer for all axes sorts much faster than rows do
            strides = np.concatenate([np.cumprod(spans[:0:-1])[::-1], [1]]).astype(np.int64)
            return np.unique((corners - low) @ strides, return_inverse=True)[1].reshape(-1)
        return np.unique(corners, axis=0, return_inverse=True)[1].reshape(-1)


def blocks(kernel: Kernel, operand: Operand, places: np.ndarray) -> Blocks:
    """The blocks of an input or output at each of `places`. Unknown, with the reason, where data decides."""
    if any(dim.kind == "unknown" for dim in operand.dims):
        raise Unknown("its block shape has an axis of a kind that oplab does not know")
    found = _index_map(kernel, operand, places)
    index, start, size = [], [], []
    for dim, value in zip(operand.dims, found):
        extent = dim.size
        if dim.kind == "bounded":
            value, extent = value.start, value.size
        value = np.broadcast_to(np.asarray(value, np.int64), len(places))
        first = value * dim.size if dim.kind == "blocked" else value - dim.low
        index.append(value)
        start.append(first)
        size.append(np.broadcast_to(np.asarray(extent, np.int64), len(places)))
    rows = [
        np.stack(columns, axis=1) if columns else np.zeros((len(places), 0), np.int64)
        for columns in (index, start, size)
    ]
    return Blocks(rows[0], rows[1], rows[1] + rows[2], operand.shape, operand.role == "out")


def reads_prefetched(kernel: Kernel, operand: Operand) -> list[int]:
    """The scalar-prefetch operands, by number, that an operand's index map reads."""
    inner = _jax.open_jaxpr(operand.mapping.index_map_jaxpr)
    used = {atom for eqn in inner.eqns for atom in eqn.invars if not hasattr(atom, "val")}
    return [i for i, ref in enumerate(inner.invars[len(kernel.grid) :]) if ref in used]


def _index_map(kernel: Kernel, operand: Operand, places: np.ndarray) -> tuple:
    """What an index map returns over all steps: for each axis numbers, or a slice of them."""
    jaxpr, read = operand.mapping.index_map_jaxpr, reads_prefetched(kernel, operand)
    scalars = [o for o in kernel.operands if o.role == "prefetch"]
    for i in read:
        if kernel.prefetched[i] is None:
            raise Unknown(
                f"its index map reads {scalars[i].name}, whose values are not known: give a concrete array "
                "for it, outside of any loop"
            )
    with on_cpu():
        refs = [
            jax.new_ref(np.asarray(kernel.prefetched[i])) if i in read else np.int32(0)
            for i in range(len(scalars))
        ]

        def at(place: Any) -> list[Any]:
            return jax.extend.core.jaxpr_as_fun(jaxpr)(*place, *refs)

        try:
            flat = _at_all_steps(at, places, len(_jax.open_jaxpr(jaxpr).outvars), one_by_one=bool(read))
        except Exception as error:
            reason = " ".join(str(error).split("\n\n")[0].split())[:200]
            raise Unknown(f"its index map could not be computed, {type(error).__name__}: {reason}") from error
    return operand.mapping.index_map_out_tree.unflatten([np.asarray(value) for value in flat])


def _at_all_steps(at: Callable, places: np.ndarray, results: int, one_by_one: bool) -> list[Any]:
    """The results of a function of the place in the grid: (steps,) each, or () where all are the same."""
    columns = tuple(places.T)
    if not len(places):
        return [np.zeros(0, np.int64)] * results
    if not columns:
        return at(())
    if not one_by_one:  # a `cond` on Refs cannot be vmapped
        try:
            return jax.vmap(at)(columns)
        except NotImplementedError:  # nor can every primitive, such as that of `pl.multiple_of`
            pass
    return jax.jit(lambda columns: jax.lax.map(at, columns))(columns)
