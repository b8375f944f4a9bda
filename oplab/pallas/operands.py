"""The operands of a kernel: its Refs, the arrays behind them, and how each array is cut into blocks.

Everything here is read off the `pallas_call` equation. Its `grid_mapping` holds one block mapping for each
input and output: the shape of a block, the index map as a jaxpr, and the type of the whole array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl

# Memories whose blocks no pipeline copies: the kernel is handed the whole array, where it lies.
IN_PLACE = {"any", "hbm", "gmem", "host"}


ROLES = ("prefetch", "in", "out", "scratch")  # in the order of the kernel's arguments


class Dim(NamedTuple):
    """One axis of a block.

    kind: "blocked" (the index map returns the number of a block), "squeezed" (the same with blocks of one,
        and the kernel does not see the axis), "element" (it returns the first element), "bounded" (it
        returns a `pl.ds`, first element and size), or "unknown" to this version of oplab.
    size: elements of a block along the axis; low and high: those of virtual padding ("element" only).
    """

    kind: str
    size: int
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Operand:
    """One Ref of a kernel.

    role: "prefetch" (scalars that index maps may read), "in", "out", "scratch" (the kernel's own memory).
    shape, dtype: of the whole array; of the Ref itself for scratch.
    memory: "default", "any", "smem", "vmem", "hbm", ...
    dims: how the array is cut; () where it is not. mapping: JAX's own block mapping.
    alias: the input whose memory an output takes over. revisits: may an output block be returned to?
    """

    name: str
    role: str
    position: int
    shape: tuple[int, ...]
    dtype: Any
    memory: str
    dims: tuple[Dim, ...] = ()
    mapping: Any = None
    alias: str | None = None
    revisits: bool = False

    @property
    def moves(self) -> bool:
        """Does the pipeline copy blocks of it in or out?"""
        return self.mapping is not None and self.memory not in IN_PLACE

    @property
    def block_shape(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    @property
    def array(self) -> str:
        """`float32[64,64]`"""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def nbytes(self) -> int:
        return self.bytes_of(math.prod(self.shape))

    def bytes_of(self, elements: Any) -> Any:
        """Bytes of so many elements, int4 packed two to a byte."""
        return -(-elements * _bits(self.dtype) // 8)


def operands(equation: Any) -> tuple[Operand, ...]:
    """All operands of a `pallas_call`, in the order of the kernel's own arguments."""
    kernel, mapping = equation.params["jaxpr"], equation.params["grid_mapping"]
    prefetched, mappings = mapping.num_index_operands, mapping.block_mappings
    count = len(kernel.invars)
    counts = prefetched, mapping.num_inputs, mapping.num_outputs
    roles = [role for role, many in zip(ROLES, (*counts, count - sum(counts))) for _ in range(many)]
    names = _names(kernel, roles)
    outputs = prefetched + mapping.num_inputs
    aliases = {outputs + out: names[into] for into, out in equation.params["input_output_aliases"]}
    return tuple(
        _operand(
            kernel.invars[i].aval,
            name=names[i],
            role=role,
            position=i,
            mapping=mappings[i - prefetched] if role in ("in", "out") else None,
            alias=aliases.get(i),
        )
        for i, role in enumerate(roles)
    )


def _operand(ref: Any, *, mapping: Any, **known: Any) -> Operand:
    array = ref if mapping is None else mapping.array_aval
    mode = getattr(getattr(mapping, "pipeline_mode", None), "revisit", None)
    return Operand(
        shape=tuple(getattr(array, "shape", ())),
        dtype=getattr(array, "dtype", None),
        memory=_memory(ref),
        dims=tuple(map(_dim, mapping.block_shape)) if mapping is not None else (),
        mapping=mapping,
        revisits=getattr(mode, "value", None) == "any",
        **known,
    )


def _names(kernel: Any, roles: list[str]) -> list[str]:
    """The names in the kernel's signature, where JAX kept them."""
    kept = getattr(getattr(kernel, "debug_info", None), "arg_names", None) or ()
    if len(kept) != len(roles):
        kept = [None] * len(roles)
    return [name or f"{role}{i}" for i, (name, role) in enumerate(zip(kept, roles))]


def _memory(ref: Any) -> str:
    space = getattr(ref, "memory_space", None)
    return "default" if space is None else str(space).rsplit(".", 1)[-1].lower()


def _dim(dim: Any) -> Dim:
    match dim:
        case pl.Blocked(block_size=size):
            return Dim("blocked", size)
        case pl.Squeezed():
            return Dim("squeezed", 1)
        case pl.Element(block_size=size, padding=(low, high)):
            return Dim("element", size, low, high)
        case pl.BoundedSlice(block_size=size):
            return Dim("bounded", size)
    return Dim("unknown", getattr(dim, "block_size", 1))


def _bits(dtype: Any) -> int:
    if dtype is None or jax.dtypes.issubdtype(dtype, jax.dtypes.extended):  # semaphores, random keys
        return 8 * getattr(dtype, "itemsize", 0)
    return jax.dtypes.itemsize_bits(dtype)
