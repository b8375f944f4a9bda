"""A kernel as plain lists and numbers: its blocks along the walk, what the body does to them, and its texts.

A walk of 100,000 steps is mostly repetition. Each different block is listed once, a step names its block by
number, and all columns are differences from one entry to the next, which compress to almost nothing.
"""

from __future__ import annotations

import inspect
import linecache
import tokenize
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _jax
from .blocks import Blocks, Unknown, blocks, programs
from .body import accesses
from .kernel import Kernel, _source
from .operands import Operand, _bits
from .steps import _note

# What the body does to a Ref at a step, as bits that add up; MAYBE: under a condition that data decides.
READ, WRITE, ADD, OTHER, MAYBE = 1, 2, 4, 8, 16
KINDS = {"read": READ, "write": WRITE, "add": ADD, "other": OTHER}
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "//", "floor_divide": "//", "rem": "%",
         "remainder": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}  # fmt: skip
SAME = {"convert_element_type", "multiple_of", "squeeze", "reshape", "broadcast_in_dim", "copy"}
LONGEST = 200  # characters of an index map
LINES, TEXT = 400, 40_000  # lines and characters of a kernel's source, and of its jaxpr


def walked(kernel: Kernel, maps: dict[int, str]) -> list[dict[str, Any]]:
    """Every operand of a kernel, in the order of its arguments, with its blocks where they are known."""
    places = programs(kernel.grid)
    body = accesses(kernel, places)
    return [_operand(kernel, operand, places, body, maps) for operand in kernel.operands]


def _operand(
    kernel: Kernel, operand: Operand, places: np.ndarray, body: list, maps: dict[int, str]
) -> dict[str, Any]:
    known = {
        "name": operand.name,
        "role": operand.role,
        "array": operand.array,
        "shape": list(operand.shape),
        "block_shape": list(operand.block_shape),
        "drawn": _drawn(operand),
        "memory": operand.memory,
        "moves": operand.moves,
        "bits": _bits(operand.dtype),
        "note": _note(operand),
        "map": maps.get(operand.position, ""),
        "uses": _runs(_uses([access for access in body if access.ref == operand.position], len(places))),
    }
    if operand.role not in ("in", "out"):
        return known
    try:
        return known | _columns(blocks(kernel, operand, places))
    except Unknown as reason:
        return known | {"note": f"Its blocks are not known: {reason}."}


def _columns(walk: Blocks) -> dict[str, Any]:
    """Each different block once, axis by axis, and the number of the block at each step."""
    first = np.unique(walk.key, return_index=True)[1]
    order = np.argsort(first)  # in the order in which they are first used
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    chosen = first[order]
    return {
        "at": _differences(number[walk.key]),
        "start": [_differences(column) for column in walk.start[chosen].T],
        "size": [_differences(column) for column in (walk.stop - walk.start)[chosen].T],
        "index": [_differences(column) for column in walk.index[chosen].T],
    }


def _differences(column: np.ndarray) -> list[int]:
    return np.diff(column, prepend=0).tolist()


def _drawn(operand: Operand) -> list[int]:
    """The axes that make the picture: the last two, but for those that the kernel does not see."""
    axes = range(len(operand.shape))
    seen = [axis for axis in axes if not operand.dims or operand.dims[axis].kind != "squeezed"]
    return list((seen if len(seen) >= min(2, len(axes)) else axes)[-2:])


def _uses(own: list, steps: int) -> np.ndarray:
    """For each step the sum of the bits above: what happens to one Ref."""
    total = np.zeros(steps, np.int64)
    for access in own:
        total |= np.where(access.possible, KINDS[access.kind], 0)
        total |= np.where(access.possible & ~access.certain, MAYBE, 0)
    return total


def _runs(column: np.ndarray) -> list[int]:
    """value, length, value, length, ..."""
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    lengths = np.diff(starts, append=len(column))
    return np.stack([column[starts], lengths], axis=1).reshape(-1).tolist() if len(column) else []


# ---- index maps, in words that a person would write ------------------------------------------------------


def index_maps(kernel: Kernel) -> tuple[list[str], dict[int, str]]:
    """Names of the grid's axes, as its index maps call them, and each map: `(i, j, k) -> (i, k)`."""
    mapped = [operand for operand in kernel.operands if operand.mapping is not None]
    axes = _axis_names(kernel, [operand.mapping.index_map_jaxpr for operand in mapped])
    scalars = [operand.name for operand in kernel.operands if operand.role == "prefetch"]
    head = ", ".join(axes)
    return axes, {
        operand.position: f"({head}) -> ({_results(operand, [*axes, *scalars])})" for operand in mapped
    }


def _axis_names(kernel: Kernel, maps: Sequence[Any]) -> list[str]:
    """What the index maps call the axes, where they all agree or only one of them says."""
    count = len(kernel.grid)
    names: list[str] = []
    for axis in range(count):
        said = [_argument_names(jaxpr)[axis : axis + 1] for jaxpr in maps]
        said = [name for found in said for name in found if name and name.strip("_").isidentifier()]
        plain = "ijklmnpq"[axis] if axis < 8 else f"i{axis}"
        name = said[0] if said else plain
        names.append(name if name not in names else f"{plain}{axis}")
    return names


def _argument_names(jaxpr: Any) -> Sequence[str | None]:
    return getattr(_jax.open_jaxpr(jaxpr).debug_info, "arg_names", None) or ()


def _results(operand: Operand, arguments: list[str]) -> str:
    jaxpr = operand.mapping.index_map_jaxpr
    text = ", ".join(_spelt(jaxpr, arguments)) + ("," if len(operand.dims) == 1 else "")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _spelt(jaxpr: Any, arguments: Sequence[str]) -> list[str]:
    """The results of a jaxpr as expressions in its arguments."""
    inner = _jax.open_jaxpr(jaxpr)
    said = dict(zip(inner.constvars, map(_constant, getattr(jaxpr, "consts", ()))))
    said |= dict(zip(inner.invars, arguments))

    def say(atom: Any) -> str:
        return _constant(atom.val) if hasattr(atom, "val") else said.get(atom, "…")

    for eqn in inner.eqns:
        texts = [say(atom)[: LONGEST + 1] for atom in eqn.invars]
        for out, text in zip(eqn.outvars, _equation(eqn, texts)):
            said[out] = text
    return [_bare(say(atom)) for atom in inner.outvars]


def _equation(eqn: Any, texts: list[str]) -> list[str]:
    name = eqn.primitive.name
    called = eqn.params.get("name", name) if name in ("jit", "pjit") else name
    if name in SAME:
        return texts[:1]
    if called in INFIX and len(texts) == 2:  # index maps are integer arithmetic
        return [f"({texts[0]} {INFIX[called]} {texts[1]})"]
    if called == "get":
        return [f"{texts[0]}[{', '.join(map(_bare, texts[1:]))}]"]
    if name in ("jit", "pjit") and called == "clip" or name == "clamp":
        return [f"clip({', '.join(map(_bare, texts))})"]
    if name in ("jit", "pjit"):
        return _spelt(eqn.params["jaxpr"], texts)
    return [f"{name}({', '.join(map(_bare, texts))})"] * len(eqn.outvars)


def _constant(value: Any) -> str:
    return str(np.asarray(value).tolist())


def _bare(text: str) -> str:
    """Without the brackets around the whole of it."""
    inner = text[1:-1]
    depth = [inner[: i + 1].count("(") - inner[: i + 1].count(")") for i in range(len(inner))]
    return inner if text.startswith("(") and text.endswith(")") and min(depth, default=0) >= 0 else text


# ---- the kernel itself -----------------------------------------------------------------------------------


def body_text(kernel: Kernel) -> str:
    """The jaxpr of the body: what runs at each step."""
    body = kernel.eqn.params.get("jaxpr")
    return "" if body is None else _cut(str(body))


def source_text(kernel: Kernel) -> str:
    """The Python of the kernel function, where Python still has it."""
    file, _, line = _source(kernel.eqn).partition(" at ")[2].rpartition(":")
    lines = linecache.getlines(file)[int(line) - 1 :] if line.isdigit() else []
    try:
        block = inspect.getblock(lines) if lines else []
    except (SyntaxError, IndentationError, tokenize.TokenError):
        return ""
    return _cut(inspect.cleandoc("\n" + "".join(block)))


def _cut(text: str) -> str:
    lines = text.split("\n")
    short = "\n".join(lines[:LINES])[:TEXT]
    return short if short == text else f"{short}\n… the rest is left out"
