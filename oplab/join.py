"""The stages joined: which line belongs to which, what each kernel costs, how many of each operator there
are.

Tables in, tables out. The equation is the hinge: script lines lead to equations, equations to ops and
instructions, instructions to kernels.
"""

from __future__ import annotations

import math
import re

import pandas as pd

from .display import Measured
from .stages.execution import busy_us
from .stages.hlo import Module
from .stages.stage import frame

LINKS = ["from_stage", "from_id", "to_stage", "to_id", "how"]
SUMMARY = [
    "instruction",
    "kind",
    "equations",
    "lines",
    "flops",
    "bytes",
    "runs",
    "median_us",
    "spread_us",
    "share",
]
_GONE = ("merged", "folded", "absorbed")
_SHAPE = re.compile(r"\b(pred|token|bf16|c64|c128|[fsu]\d+\w*)\[([\d,]*)\]")


def links(
    script: pd.DataFrame,
    jaxpr: pd.DataFrame,
    stablehlo: pd.DataFrame,
    hlo: pd.DataFrame,
    kernels: pd.DataFrame,
    fates: pd.DataFrame,
) -> pd.DataFrame:
    """Every line linked to the next stage's. A script line's id is `file:line`.

    `how` is that of the instruction at the far end; an equation that was merged, folded or absorbed is
    linked, as
    *inferred*, with the instructions of the equation that took it in.
    """
    rows = []
    for line in script.itertuples():
        rows += [
            ("script", f"{line.file}:{line.line}", "jaxpr", equation, "exact") for equation in line.equations
        ]
    ops: dict[str, list[str]] = {}
    for op in stablehlo.itertuples():
        for equation in op.equations:
            ops.setdefault(equation, []).append(op.op)
            rows.append(("jaxpr", equation, "stablehlo", op.op, "exact"))
    homes: dict[str, list[tuple[str, str]]] = {}
    for i in hlo.itertuples():
        for equation in i.equations:
            homes.setdefault(equation, []).append((i.instruction, i.how))
    for equation, into in taken_in(fates).items():
        known = {name for name, _ in homes.get(equation, ())}
        homes.setdefault(equation, []).extend(
            (name, "inferred") for e in into for name, _ in homes.get(e, ()) if name not in known
        )
    for equation, instructions in homes.items():
        rows += [("jaxpr", equation, "hlo", name, how) for name, how in instructions]
    seen: dict[tuple[str, str], str] = {}
    for equation, its_ops in ops.items():
        for op in its_ops:
            seen.update({(op, name): how for name, how in homes.get(equation, ())})
    rows += [("stablehlo", op, "hlo", name, how) for (op, name), how in seen.items()]
    inside: dict[str, list[tuple[str, str]]] = {}
    for i in hlo.itertuples():
        if i.fusion:
            inside.setdefault(i.fusion, []).append((i.instruction, i.how))
    for kernel in kernels.itertuples():
        rows.append(("hlo", kernel.instruction, "kernels", kernel.instruction, "exact"))
        rows += [
            ("hlo", name, "kernels", kernel.instruction, "exact")
            for name, _ in inside.get(kernel.instruction, ())
        ]
    return frame(rows, LINKS)


def taken_in(fates: pd.DataFrame) -> dict[str, list[str]]:
    """Vanished equation -> the equations that took it in, followed to ones that are still there."""
    direct = {f.equation: [e for e in f.into.split(", ") if e] for f in fates.itertuples() if f.fate in _GONE}
    found = {}
    for equation in direct:
        heirs, todo, seen = [], [equation], set()
        while todo:
            here = todo.pop()
            if here in seen:
                continue
            seen.add(here)
            (todo.extend(direct[here]) if here in direct else heirs.append(here))
        found[equation] = heirs
    return found


def summary(
    kernels: pd.DataFrame,
    jaxpr: pd.DataFrame,
    module: Module,
    fates: pd.DataFrame,
    measured: pd.DataFrame | None,
) -> pd.DataFrame:
    """One row per kernel, see `Walk.summary`."""
    rows_of = {row.equation: row for row in jaxpr.itertuples()}
    taken = taken_in(fates)
    heirs: dict[str, list[str]] = {}
    for equation, into in taken.items():
        for heir in into:
            heirs.setdefault(heir, []).append(equation)
    flops = _flops(rows_of, fates, taken)
    busy = _busy(measured)
    total = sum(median for median, _, _ in busy.values())
    rows = []
    for kernel in kernels.itertuples():
        owners = [e for owner in kernel.equations for e in (owner, *heirs.get(owner, ()))]
        equations = tuple(dict.fromkeys(owners))
        placed = [e for e in sorted(equations, key=_order) if not pd.isna(rows_of[e].line)]
        lines = {f"{rows_of[e].file}:{rows_of[e].line}": None for e in placed}
        trips = [rows_of[e].trips for e in kernel.equations if not pd.isna(rows_of[e].trips)]
        moved = _bytes(module, kernel.instruction) * int(max(trips, default=1))
        median, spread, runs = busy.get(kernel.instruction, (math.nan, math.nan, 0))
        kind = kernel.kind if kernel.library is None else kernel.library
        share = median / total if total else math.nan
        name, work = kernel.instruction, flops.get(kernel.instruction, 0)
        rows.append((name, kind, equations, tuple(lines), work, moved, runs, median, spread, share))
    table = frame(rows, SUMMARY)
    counts, times = ("flops", "bytes", "runs"), ("median_us", "spread_us", "share")
    return Measured(table.astype({**dict.fromkeys(counts, "int64"), **dict.fromkeys(times, float)}))


def _flops(rows_of: dict, fates: pd.DataFrame, taken: dict[str, list[str]]) -> dict[str, int]:
    """Kernel -> FLOPs. Each equation's stand with the one kernel that its fate names.

    Where equations were merged, one of them is left to do: the dearest counts, once.
    """
    holders = {parent(e) for e in rows_of}
    known = {e: int(row.flops) for e, row in rows_of.items() if e not in holders and not pd.isna(row.flops)}
    merged: dict[str, int] = {}
    for fate in fates.itertuples():
        if fate.fate == "merged":
            for heir in taken.get(fate.equation, ()):
                merged[heir] = max(merged.get(heir, 0), known.get(fate.equation, 0))
    found: dict[str, int] = {}
    for fate in fates.itertuples():
        if fate.fate in ("kept", "fused", "library"):
            work = max(known.get(fate.equation, 0), merged.get(fate.equation, 0))
            found[fate.into] = found.get(fate.into, 0) + work
    return found


def parent(equation: str) -> str:
    """`e7` of `e7.branches.0.e2`; empty for an equation that stands at the top."""
    parts = equation.split(".")[:-1]
    while parts and not re.fullmatch(r"e\d+", parts[-1]):
        parts.pop()
    return ".".join(parts)


def _order(equation: str) -> list[tuple[bool, str | int]]:
    """The order of the program: e2 before e10."""
    return [(part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", equation)]


def _busy(measured: pd.DataFrame | None) -> dict[str, tuple[float, float, int]]:
    """Kernel -> (median, interquartile range) over the runs of its busy time, and how often it was started in
    all.
    """
    if measured is None or not len(measured):
        return {}
    found = {}
    for name, part in measured.groupby("instruction"):
        per_run = busy_us(part)
        found[name] = (per_run.median(), per_run.quantile(0.75) - per_run.quantile(0.25), len(part))
    return found


def _bytes(module: Module, name: str) -> int:
    """What a kernel must read and write: its operands and its result, each once."""
    instruction = module.instructions[name]
    shapes = [
        instruction.shape,
        *(
            module.instructions[o].shape
            for o in dict.fromkeys(instruction.operands)
            if o in module.instructions
        ),
    ]
    return sum(shape_bytes(shape) for shape in shapes)


def shape_bytes(shape: str) -> int:
    """Bytes of an HLO shape, tuples included: 256 for `f32[8,8]{1,0}`."""
    return sum(
        math.ceil(math.prod(int(n) for n in dims.split(",") if n) * _bits(dtype) / 8)
        for dtype, dims in _SHAPE.findall(shape)
    )


def _bits(dtype: str) -> int:
    if dtype in ("pred", "token"):
        return 8 if dtype == "pred" else 0
    bits = int(re.search(r"\d+", dtype)[0])
    return {"c64": 64, "c128": 128, "bf16": 16}.get(dtype, bits)


def census(jaxpr: pd.DataFrame, holders: set[str]) -> pd.DataFrame:
    """Operators counted: equations as written and runs in one call. Equations that only hold others are left
    out.

    `runs` is a lower bound where `bounded` is False: some loop around stops on the data, and one trip was
    counted.
    """
    leaves = jaxpr[~jaxpr["equation"].isin(holders)]
    rows = []
    for primitive, part in leaves.groupby("primitive", sort=False):
        rows.append(
            (primitive, len(part), int(part["trips"].fillna(1).sum()), bool(part["trips"].notna().all()))
        )
    table = pd.DataFrame(rows, columns=["operator", "equations", "runs", "bounded"])
    return table.sort_values(["runs", "operator"], ascending=[False, True], ignore_index=True)
