"""One kernel: what its `pallas_call` equation says of the grid, of the operands, and of itself."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from typing import Any

from .. import _jax
from .known import Place, values
from .operands import ROLES, Operand, operands

# Kernels of these equations move data by themselves: there are no block specs to read.
WITHOUT_BLOCKS = {"core_map", "mpmd_map"}


@dataclass(frozen=True)
class Kernel:
    """One kernel of a function.

    id: "k0", "k1", ... in the order of the equations. equation: the path of its own, as in the jaxpr stage.
    grid: its axes, None for one whose size is not known before the run; None for a kernel without blocks.
    semantics: one word for each axis, "parallel" or "arbitrary"; () when nothing was declared.
    eqn, place: the equation and the jaxpr it stands in. asked: the equation that asked for it, which may be
    one of oplab's operators.
    """

    id: str
    name: str
    equation: str
    eqn: Any
    place: Place
    asked: Any
    grid: tuple[int | None, ...] | None = None
    operands: tuple[Operand, ...] = ()
    semantics: tuple[str, ...] = ()

    @property
    def steps(self) -> int | None:
        return None if self.grid is None or None in self.grid else math.prod(self.grid)

    @property
    def mapping(self) -> Any:
        """What JAX keeps of the grid and the block specs."""
        return self.eqn.params["grid_mapping"]

    @property
    def own_axes(self) -> list[int]:
        """The axes of the grid that the kernel's own code sees: not those that `vmap` put in front."""
        return [axis for axis in range(len(self.mapping.grid)) if axis not in self.mapping.vmapped_dims]

    @property
    def sized_by_data(self) -> bool:
        """Is an axis of the grid computed while the program runs?"""
        return any(not isinstance(size, int) for size in self.mapping.grid)

    @functools.cached_property
    def prefetched(self) -> list[Any]:
        """The values of the scalar-prefetch operands, None for each that is not known."""
        first = self.mapping.num_dynamic_grid_bounds
        return values(self.place, self.eqn.invars[first : first + self.mapping.num_index_operands])

    @property
    def unknown(self) -> str:
        """Why its steps cannot be listed; "" when they can."""
        if self.grid is None:
            return "no grid of blocks: this kernel copies what it needs by itself"
        if None in self.grid:
            return (
                f"axis {self.grid.index(None)} of the grid is computed from data: give concrete arrays "
                "in place of shapes, outside of any loop"
            )
        return ""


def kernel_of(id: str, path: str, eqn: Any, place: Place, asked: Any) -> Kernel:
    """The kernel of an equation."""
    name = eqn.params.get("name") or _source(eqn).split(" at ")[0]
    if eqn.primitive.name != "pallas_call" or eqn.params.get("mesh") is not None or _other_ids(eqn):
        return Kernel(id, name, path, eqn, place, asked)
    return Kernel(id, name, path, eqn, place, asked, _grid(eqn, place), operands(eqn), _semantics(eqn))


def _other_ids(eqn: Any) -> bool:
    """Does `pl.program_id` answer something else than the place in the grid?"""
    return eqn.params["grid_mapping"].local_grid_env is not None


def _source(eqn: Any) -> str:
    """What JAX remembers of the kernel function: "matmul_kernel at /some/file.py:5"."""
    info = getattr(eqn.params.get("jaxpr"), "debug_info", None)
    return getattr(info, "func_src_info", None) or "kernel"


def _grid(eqn: Any, place: Place) -> tuple[int | None, ...]:
    """The grid; its dynamic axes come first among the operands of the equation."""
    mapping = eqn.params["grid_mapping"]
    sizes = iter(values(place, eqn.invars[: mapping.num_dynamic_grid_bounds]))
    grid = (size if isinstance(size, int) else next(sizes, None) for size in mapping.grid)
    return tuple(None if size is None else int(size) for size in grid)


def _semantics(eqn: Any) -> tuple[str, ...]:
    """What was declared for each axis of the grid. Those that `vmap` puts in front are parallel."""
    mapping = eqn.params["grid_mapping"]
    declared = getattr(eqn.params.get("compiler_params"), "dimension_semantics", None)
    if not declared:
        return ()
    words = iter(str(getattr(word, "value", word)).rsplit(".", 1)[-1].lower() for word in declared)
    axes = range(len(mapping.grid))
    return tuple("parallel" if axis in mapping.vmapped_dims else next(words, "arbitrary") for axis in axes)


def where(eqn: Any, asked: Any) -> tuple[str | None, int | None]:
    """The line that asked for the kernel; if that is the caller's, the line at which the kernel begins."""
    for frame in _jax.frames(asked)[-1:] if asked is not eqn else _jax.frames(eqn):
        return _file(frame.file), frame.line
    file, _, line = _source(eqn).partition(" at ")[2].rpartition(":")
    return (_file(file), int(line)) if line.isdigit() else (None, None)


def _file(path: str) -> str:
    """A file without its folder. A notebook cell pretends to be a file whose name changes: it is "<cell>"."""
    return "<cell>" if "ipykernel" in path or path.startswith("<ipython") else os.path.basename(path)


def signature(operands: tuple[Operand, ...]) -> str:
    """`[table_ref] x_ref, y_ref -> o_ref (acc_ref)`"""
    names = {role: ", ".join(o.name for o in operands if o.role == role) for role in ROLES}
    marks = {"prefetch": "[{}]", "in": "{}", "out": "-> {}", "scratch": "({})"}
    return " ".join(marks[role].format(names[role]) for role in ROLES if names[role])
