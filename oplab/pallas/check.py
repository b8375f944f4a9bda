"""Mistakes in a kernel that can be seen without running it: in its block specs, its grid and its stores.

A finding is certain, or it is not made. Where the run decides (a grid or an index map that depends on data
which was not given) there is a row "not checked" that says so, and nothing else is said about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from .blocks import Unknown, blocks, programs
from .body import accesses
from .case import Case, Finding
from .kernel import Kernel
from .kernels import chosen
from .ranges import not_visited, outside
from .steps import LIMIT
from .stores import left_and_returned_to, never_stored, overwritten, races, read_before_written

COLUMNS = ["kernel", "finding", "operand", "step", "detail"]


class Findings(pd.DataFrame):
    """The table that `check` returns. It shows its sentences whole, and says so when there are none."""

    @property
    def _constructor(self):
        return Findings

    def __repr__(self) -> str:
        return pd.DataFrame(self).to_string(index=False) if len(self) else NOTHING

    def _repr_html_(self) -> str:
        left = {"selector": "td, th", "props": "text-align: left; vertical-align: top; white-space: normal"}
        shown = pd.DataFrame(self).astype(object).fillna("")
        table = shown.style.hide(axis="index").format(escape="html").set_table_styles([left]).to_html()
        return table if len(self) else f"{table}<p>{NOTHING}</p>"


NOTHING = "No findings."


def check(
    f: Callable, *args: Any, kernel: str | None = None, limit: int = LIMIT, **kwargs: Any
) -> Findings:
    """One row for each mistake in the kernels of `f`; no row at all when none is found.

    `step` is the first step at which it shows; `detail` says what was found, what was expected, what to do.
    `finding` is one of

    - "out of range": an index map picks a block that lies wholly outside its array. A block that lies partly
      outside is fine: what is beyond the edge is padding.
    - "element offsets": an index map returns `i * block_size`. Pallas multiplies by the block size itself, so
      only the first block is the one that was meant.
    - "never written": a block of an output that no step visits, or at which nothing is ever stored.
    - "written twice": a block of an output that loses a value: it is stored again without having been read,
      or it is left for another block and then returned to, which works in the interpreter and not on a TPU.
    - "race": steps that differ on an axis declared "parallel" share an output block.
    - "read before written": an output or scratch is added to before anything is stored in it.
    - "not checked": what is not known before the run, and what to give so that it is.

    kernel: look at one kernel only. limit: a kernel with more steps than that is not checked.
    """
    found = [(k.id, *finding) for k in chosen(f, args, kwargs, kernel) for finding in findings(k, limit)]
    return Findings(pd.DataFrame(found, columns=COLUMNS, dtype=object).astype({"step": "Int64"}))


def findings(kernel: Kernel, limit: int) -> Iterator[Finding]:
    """What is wrong with one kernel, in the order in which it is looked at."""
    reason = kernel.unknown
    if not reason and kernel.steps > limit:
        reason = f"its {kernel.steps:,} steps are more than limit={limit:,}, which can be raised"
    if reason:
        yield Finding("not checked", None, None, f"{kernel.name}: {reason}.")
        return
    places, walk = programs(kernel.grid), {}
    for operand in kernel.operands:
        if operand.role in ("in", "out"):
            try:
                walk[operand.position] = blocks(kernel, operand, places)
            except Unknown as unknown:
                yield Finding("not checked", operand.name, None, f"{operand.name}: {unknown}.")
    body = accesses(kernel, places)
    for operand in kernel.operands:
        own = [access for access in body if access.ref == operand.position]
        yield from _operand(Case(kernel, operand, places, walk, own))


def _operand(case: Case) -> Iterator[Finding]:
    operand = case.operand
    if operand.role == "scratch":
        yield from read_before_written(case)
    if case.blocks is None:
        return
    wrong = list(outside(case))
    yield from wrong
    offsets = any(finding.finding == "element offsets" for finding in wrong)  # all else would follow from it
    if operand.role == "out" and not offsets and not operand.alias and not case.discarded:
        yield from _output(case)


def _output(case: Case) -> Iterator[Finding]:
    """An output that takes over no input's memory and whose value somebody takes."""
    if math.prod(case.operand.shape):
        silent = list(never_stored(case))
        yield from silent
        if case.operand.moves and (not silent or silent[0].step is not None):
            yield from not_visited(case)
    if not case.operand.moves or any(access.kind == "other" for access in case.body):
        return  # the kernel copies, or uses atomic operations: what happens is for it to say
    lost = list(left_and_returned_to(case))
    yield from lost or overwritten(case)
    yield from races(case)
    yield from read_before_written(case)
