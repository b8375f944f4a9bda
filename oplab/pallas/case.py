"""What a check looks at, and what it says: one operand of a kernel with its blocks, and a finding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .. import _jax
from .blocks import Blocks, reads_prefetched
from .body import Access
from .kernel import Kernel
from .operands import Operand


class Finding(NamedTuple):
    """One row of the table that `check` returns, but for the kernel."""

    finding: str
    operand: str | None
    step: int | None
    detail: str


class Case(NamedTuple):
    """One operand, and all that is known about it.

    places: the place of each step in the grid, (steps, axes). walk: the blocks of each input and output whose
    blocks are known, by position. body: what the kernel does with this operand's Ref, in program order.
    """

    kernel: Kernel
    operand: Operand
    places: np.ndarray
    walk: dict[int, Blocks]
    body: list[Access]

    @property
    def blocks(self) -> Blocks | None:
        return self.walk.get(self.operand.position)

    @property
    def decided_by_data(self) -> bool:
        """May its blocks be others in the next call? Then a gap between them may be meant."""
        return self.kernel.sized_by_data or bool(reads_prefetched(self.kernel, self.operand))

    @property
    def discarded(self) -> bool:
        """Is it an output that nobody takes? Then it is working memory, and what it holds does not matter."""
        first = self.kernel.mapping.num_index_operands + self.kernel.mapping.num_inputs
        result = self.kernel.eqn.outvars[self.operand.position - first]
        around = _jax.open_jaxpr(self.kernel.place.jaxpr)
        taken = [*around.outvars, *(atom for eqn in around.eqns for atom in eqn.invars)]
        return not any(atom is result for atom in taken)

    def block(self, step: int) -> str:
        """The number of the block at a step, in words."""
        return str(tuple(self.blocks.index[step].tolist()))

    def program(self, step: int) -> str:
        """The place of a step in the grid, in words."""
        return str(tuple(self.places[step].tolist()))


def count(some: int, total: int, what: str) -> str:
    """`3 of 8 blocks`"""
    return f"{int(some)} of {int(total)} {what}{'' if total == 1 else 's'}"
