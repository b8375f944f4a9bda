"""The walk as tables: every step with its blocks and bytes, and what an operand's array moves in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from .blocks import Blocks, Unknown, blocks, programs
from .kernel import Kernel
from .kernels import one
from .operands import Operand

STEPS = [
    "step",
    "program",
    "operand",
    "role",
    "block",
    "slice",
    "padding",
    "moved_bytes",
    "reused_bytes",
    "note",
]
TRAFFIC = [
    "operand",
    "role",
    "memory",
    "array",
    "block_shape",
    "blocks",
    "moves",
    "moved_bytes",
    "reused_bytes",
    "array_bytes",
    "times",
    "note",
]
LIMIT = 1_000_000


class Moves(pd.DataFrame):
    """The table that `steps` and `traffic` return: it shows bytes with their thousands marked."""

    @property
    def _constructor(self) -> type:
        return Moves

    def _shown(self) -> dict[str, Any]:
        most, cut = pd.get_option("display.max_rows"), pd.get_option("display.min_rows")
        long = most is not None and len(self) > most
        marked = {name: "{:,}".format for name in self if str(name).endswith("_bytes")}
        return {"formatters": marked, "max_rows": cut if long else None, "show_dimensions": long}

    def __repr__(self) -> str:
        return self.to_string(**self._shown(), line_width=pd.get_option("display.width"))

    def _repr_html_(self) -> str:
        return self.to_html(**self._shown())


def steps(
    f: Callable, *args: Any, kernel: str | None = None, limit: int = LIMIT, **kwargs: Any
) -> Moves:
    """One row for each step of a kernel's grid and each input and output, in the order of the walk.

    That is the order of a TPU core and of the interpreter: nested loops, the last axis of the grid fastest.

    - `step`: from 0; `program`: the place in the grid, what `pl.program_id` answers for each axis.
    - `operand`: its name in the kernel's signature; `role`: "in" or "out".
    - `block`: what the index map returns for this step: the number of the block along each axis of the array
      (for a `pl.Element` or `pl.BoundedSlice` axis the first element).
    - `slice`: the elements of the array that this block is, cut off at the array's edge; `padding`: how many
      elements of the block were cut off. In the kernel these are undefined.
    - `moved_bytes`: fetched before this step or, of an output, written back after it. 0 when the step before
      (of an output: after) has the same block; then the bytes are in `reused_bytes`. Only what lies inside
      the array is counted; a chip may round it up to whole tiles.
    - `note`: an operand that is not copied by itself, or why a row is not known (then its cells are empty).

    kernel: its id, as `kernels` gives it, where `f` has several. limit: the most rows that are made.
    """
    chosen = one(f, args, kwargs, kernel)
    shown = [o for o in chosen.operands if o.role in ("in", "out")]
    _within(chosen, chosen.steps * len(shown), "rows", limit)
    places = programs(chosen.grid)
    columns = [_columns(chosen, operand, places) for operand in shown]
    names = list(map(tuple, places.tolist()))
    table = pd.DataFrame({name: _interleave([c[name] for c in columns], len(places)) for name in STEPS[2:]})
    table.insert(0, "step", np.repeat(np.arange(len(places)), len(shown)))
    table.insert(1, "program", [name for name in names for _ in shown])
    return Moves(table.astype({name: "Int64" for name in ("padding", "moved_bytes", "reused_bytes")}))


def traffic(
    f: Callable, *args: Any, kernel: str | None = None, limit: int = LIMIT, **kwargs: Any
) -> Moves:
    """One row for each operand of a kernel: what crosses between large and fast memory in one call.

    - `memory`: where the kernel sees it; `array`: the whole array; `block_shape`: of one block, in elements.
    - `blocks`: how many different blocks are used; `moves`: how often one is copied.
    - `moved_bytes`, `reused_bytes`: the sums of these columns of `steps`.
    - `array_bytes`: of the whole array; `times`: `moved_bytes / array_bytes`, 4.0 for an array that is read
      four times over.
    - Scalar-prefetch operands are copied once, whole, before the first step. Scratch stays in fast memory and
      never moves.

    kernel: its id, where `f` has several. limit: the most steps that are walked. One core is assumed.
    """
    chosen = one(f, args, kwargs, kernel)
    _within(chosen, chosen.steps, "steps", limit)
    places = programs(chosen.grid)
    rows = [_total(chosen, operand, places) for operand in chosen.operands]
    table = pd.DataFrame(rows, columns=TRAFFIC, dtype=object)
    counts = ("blocks", "moves", "moved_bytes", "reused_bytes", "array_bytes")
    return Moves(table.astype(dict.fromkeys(counts, "Int64") | {"times": "Float64"}))


def _within(kernel: Kernel, count: int, what: str, limit: int) -> None:
    if count > limit:
        raise ValueError(
            f"Expected at most limit={limit:,} {what}, and {kernel.id} ({kernel.name}) with its grid "
            f"{kernel.grid} has {count:,}: raise limit=, or look at the kernel on smaller arrays."
        )


def _interleave(columns: list[Any], count: int) -> np.ndarray:
    """Columns of single operands, as one column with the operands of each step together."""
    table = np.empty((count, len(columns)), dtype=object)
    for i, column in enumerate(columns):
        table[:, i] = column
    return table.reshape(-1)


def _columns(kernel: Kernel, operand: Operand, places: np.ndarray) -> dict[str, Any]:
    """The columns of `steps` for one operand, one entry a step."""
    own = {"operand": operand.name, "role": operand.role, "note": _note(operand)}
    columns = dict.fromkeys(STEPS[2:]) | own
    try:
        walked = blocks(kernel, operand, places)
    except Unknown as reason:
        return columns | {"note": f"not known: {reason}"}
    size = operand.bytes_of(walked.inside) if operand.moves else np.zeros(len(places), np.int64)
    moved = np.where(walked.moved, size, 0)
    return columns | {
        "block": _objects(map(tuple, walked.index.tolist()), len(places)),
        "slice": _slices(walked),
        "padding": walked.padding,
        "moved_bytes": moved,
        "reused_bytes": size - moved,
    }


def _slices(walked: Blocks) -> np.ndarray:
    """`[0:16, 32:48]` for each step; made once for each different block."""
    first, stop = walked.clipped
    where = np.unique(walked.key, return_index=True)[1]
    rows = zip(first[where].tolist(), stop[where].tolist())
    made = [f"[{', '.join(f'{low}:{high}' for low, high in zip(*row))}]" for row in rows]
    return _objects(made, len(made))[walked.key]


def _objects(values: Any, count: int) -> np.ndarray:
    column = np.empty(count, dtype=object)
    column[:] = list(values)
    return column


def _note(operand: Operand) -> str:
    if operand.role == "prefetch":
        return "copied once, before the first step"
    if operand.role == "scratch":
        return "stays in fast memory"
    if not operand.moves:
        return "not copied: the kernel copies what it needs by itself"
    if operand.revisits:
        return "blocks that are returned to are also read back, which is not counted"
    return f"takes over the memory of {operand.alias}" if operand.alias else ""


def _total(kernel: Kernel, operand: Operand, places: np.ndarray) -> dict[str, Any]:
    """One row of `traffic`."""
    row = {
        "operand": operand.name,
        "role": operand.role,
        "memory": operand.memory,
        "array": operand.array,
        "block_shape": operand.block_shape if operand.dims else operand.shape,
        "array_bytes": operand.nbytes,
        "note": _note(operand),
    }
    if operand.role == "scratch":
        return row | {"moves": 0, "moved_bytes": 0, "reused_bytes": 0}
    if operand.role == "prefetch":
        return row | {"blocks": 1, "moves": 1, "moved_bytes": operand.nbytes, "reused_bytes": 0, "times": 1.0}
    if not operand.moves:
        return row | {"blocks": 1, "moves": 0, "moved_bytes": 0, "reused_bytes": 0, "times": 0.0}
    try:
        walked = blocks(kernel, operand, places)
    except Unknown as reason:
        return row | {"note": f"not known: {reason}"}
    size = operand.bytes_of(walked.inside)
    moved = int(size[walked.moved].sum())
    return row | {
        "blocks": len(np.unique(walked.key)),
        "moves": int(walked.moved.sum()),
        "moved_bytes": moved,
        "reused_bytes": int(size.sum()) - moved,
        "times": moved / operand.nbytes if operand.nbytes else None,
    }
