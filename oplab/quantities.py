"""What is counted, and from what: a Cost, and the sizes of the arrays that an equation takes and returns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class Cost:
    """Counts of operations and bytes; `notes` say what they leave out or how they were guessed."""

    flops: int | None = 0
    transcendentals: int | None = 0
    bytes: int | None = 0
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.notes

    @property
    def note(self) -> str:
        return "; ".join(self.notes)

    def __add__(self, other: Cost) -> Cost:
        notes = tuple(dict.fromkeys(self.notes + other.notes)) if self.notes or other.notes else ()
        return Cost(
            _plus(self.flops, other.flops),
            _plus(self.transcendentals, other.transcendentals),
            _plus(self.bytes, other.bytes),
            notes,
        )

    def __mul__(self, times: int) -> Cost:
        if times == 0:
            return Cost()
        counts = (None if n is None else n * times for n in (self.flops, self.transcendentals, self.bytes))
        return Cost(*counts, self.notes)

    __rmul__ = __mul__


def _plus(a: int | None, b: int | None) -> int | None:
    """Unknown and something is at least something; unknown and nothing stays unknown."""
    return (a or 0) + (b or 0) or (None if a is None or b is None else 0)


# Sizes, in elements and bytes: of an abstract value (a shape and a dtype), of an operand, of the result -----


def size(aval: Any) -> int:
    return math.prod(map(int, aval.shape))  # int() refuses a symbolic dimension


def size_in(eqn: Any, index: int = 0) -> int:
    return size(eqn.invars[index].aval)


def size_out(eqn: Any) -> int:
    return size(eqn.outvars[0].aval)


@lru_cache(maxsize=256)
def _bits(dtype: Any) -> int:
    if dtype == jax.dtypes.float0 or jax.dtypes.issubdtype(dtype, jax.dtypes.extended):  # PRNG keys
        return 8 * getattr(dtype, "itemsize", 0)
    return jax.dtypes.itemsize_bits(dtype)


def nbytes(aval: Any) -> int:
    """Bytes of an array, int4 packed two to a byte. What is no array, and what is only a reference, is 0."""
    if hasattr(aval, "inner_aval") or not hasattr(aval, "dtype"):
        return 0
    return -(-size(aval) * _bits(aval.dtype) // 8)


def is_complex(eqn: Any) -> bool:
    return getattr(eqn.invars[0].aval.dtype, "kind", "") == "c"
