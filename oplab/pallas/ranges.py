"""Where the blocks lie: outside their array, at element offsets that were taken for numbers, or with gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .case import Case, Finding, count


def outside(case: Case) -> Iterator[Finding]:
    """Blocks that lie wholly outside the array; one finding for each axis that they miss.

    A block that lies partly outside is fine: "at least one of the elements in each block must be within
    bounds" ("Grids and BlockSpecs").
    """
    operand, walked = case.operand, case.blocks
    for axis, (dim, size) in enumerate(zip(operand.dims, operand.shape)):
        start = walked.start[:, axis]
        wrong = (start >= size + dim.high) | (start < -dim.low)
        if not wrong.any():
            continue
        step = int(wrong.argmax())
        if dim.kind == "blocked" and _are_offsets(walked.index[:, axis], dim.size, size):
            yield Finding("element offsets", operand.name, step, _say_offsets(case, axis))
        else:
            yield Finding("out of range", operand.name, step, _say_outside(case, axis, wrong))


def not_visited(case: Case) -> Iterator[Finding]:
    """Blocks of an output that no step visits. Where data decides which are visited, gaps may be meant."""
    operand, walked = case.operand, case.blocks
    if case.decided_by_data or any(dim.kind not in ("blocked", "squeezed") for dim in operand.dims):
        return  # other windows may overlap: whether they leave a gap is not a matter of counting
    counts = tuple(-(-size // dim.size) for size, dim in zip(operand.shape, operand.dims))
    total = math.prod(counts)
    inside = walked.index[walked.inside > 0]
    visited = np.ravel_multi_index(tuple(inside.T), counts) if counts else np.zeros(len(inside), np.int64)
    visited = np.unique(visited)
    if len(visited) == total:
        return
    gaps = np.flatnonzero(visited != np.arange(len(visited)))
    first = np.unravel_index(gaps[0] if len(gaps) else len(visited), counts)
    yield Finding(
        "never written",
        operand.name,
        None,
        f"{count(total - len(visited), total, 'block')} of {operand.name} are visited by no step, the first "
        f"is {tuple(map(int, first))}, so the values there are undefined: {operand.array} in blocks of "
        f"{operand.block_shape} needs {_numbers(counts)}; let the grid or the index map reach them.",
    )


def _are_offsets(index: np.ndarray, block: int, size: int) -> bool:
    """Would every number be that of a block, if it were divided by the block size?"""
    numbers = index // block
    return bool(
        block > 1 and (index % block == 0).all() and numbers.min() >= 0 and numbers.max() < -(-size // block)
    )


def _say_offsets(case: Case, axis: int) -> str:
    block = case.operand.dims[axis].size
    seen = ", ".join(map(str, list(dict.fromkeys(case.blocks.index[:, axis].tolist()))[:3]))
    return (
        f"The index map of {case.operand.name} returns {seen}, ... on axis {axis}: these are element "
        f"offsets, and Pallas multiplies by the block size {block} itself; return the number of the block, i "
        f"in place of i * {block}."
    )


def _say_outside(case: Case, axis: int, wrong: np.ndarray) -> str:
    operand, walked, step = case.operand, case.blocks, int(wrong.argmax())
    dim, size = operand.dims[axis], operand.shape[axis]
    low, high = walked.start[step, axis], walked.stop[step, axis] - 1
    elements = f"element {low}" if low == high else f"elements {low} to {high}"
    blocks = -(-size // dim.size)
    if dim.kind not in ("blocked", "squeezed"):
        there = f"whose elements there are 0 to {size - 1}"
    else:
        there = f"whose blocks there are 0 to {blocks - 1}" if blocks > 1 else "whose only block there is 0"
    return (
        f"At step {step}, program {case.program(step)}, the index map of {operand.name} returns "
        f"{case.block(step)}: that is {elements} on axis {axis} of {operand.array}, {there} (outside at "
        f"{count(wrong.sum(), len(wrong), 'step')}); correct the index map or the grid."
    )


def _numbers(counts: tuple[int, ...]) -> str:
    """`0 to 3 on axis 0 and 0 to 7 on axis 1`"""
    ranges = [f"0 to {many - 1} on axis {axis}" for axis, many in enumerate(counts) if many > 1]
    return f"the numbers {' and '.join(ranges)}" if ranges else "to be visited once"
