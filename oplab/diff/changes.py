"""What changed from one walk to another, in tables: what is certain and, apart from it, what was measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..display import Measured
from ..stages.execution import busy_us
from ..stages.hlo import FREE
from ..views.records import records
from . import renamed
from .pairing import Part, same_code, same_hlo, same_text

COLUMNS = ["stage", "what", "left", "right", "change"]
TIMES = ["what", "left_us", "left_spread_us", "right_us", "right_spread_us", "verdict"]
TEXTS = ("jaxpr", "stablehlo", "hlo")  # the stages whose lines are compared
FEWEST_RUNS = 5  # with fewer, a median says too little
_VECTOR = re.compile(r"\b(?:([xyz])mm\d+|v\d+\.\d*[bhsd]|z\d+\.[bhsd])")
_BITS = {"x": 128, "y": 256, "z": 512}
_SCALAR = re.compile(r"(?:ss|sd|sh)$")  # x86's names of what works on one number of a vector register

Row = tuple[str, str, Any, Any, str]
Pairs = list[tuple[Part | None, Part | None]]


def certain(left: dict[str, Any], right: dict[str, Any], pairs: Pairs) -> pd.DataFrame:
    """One row per difference that is the same on every run; the columns are COLUMNS. Empty if none is."""
    rows = [*_jaxpr(left, right), *_stablehlo(left, right), *_passes(left, right), *_hlo(left, right),
            *_kernels(pairs), *_fates(left, right), *_costs(left, right)]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object)


class Times(Measured):
    """What was measured on both sides; shown as dashes in the stable mode."""

    _columns = tuple(TIMES[1:])

    @property
    def _constructor(self) -> type:
        return Times


def measured(left: dict[str, Any], right: dict[str, Any], pairs: Pairs) -> Times:
    """Median and interquartile range per call, of all kernels and of each pair; empty if one was not run.

    verdict: "within noise" where the ranges overlap, and a factor only where they do not.
    """
    if any("execution" not in d["stages"] for d in (left, right)):
        return Times(columns=TIMES)
    rows = [("all kernels", *(v for d in (left, right) for v in _whole_call(d)))]
    known = [{r["instruction"]: r for r in records(d["summary"])} for d in (left, right)]
    for a, b in pairs:
        if a and b:
            one, other = known[0].get(a.name, {}), known[1].get(b.name, {})
            what = a.name if a.name == b.name else f"{a.name} → {b.name}"
            numbers = (side.get(key) for side in (one, other) for key in ("median_us", "spread_us"))
            rows.append((what, *numbers))
    runs = [len({row["run"] for row in records(d["stages"]["execution"]["table"])}) for d in (left, right)]
    table = [(*row, verdict(*row[1:], fewest=min(runs))) for row in rows if None not in row]
    return Times(table, columns=TIMES)


def verdict(left: float, left_spread: float, right: float, right_spread: float, fewest: int = 99) -> str:
    """Two medians with their interquartile ranges in one word or two."""
    if fewest < FEWEST_RUNS:
        return f"too few runs to say (fewer than {FEWEST_RUNS})"
    if not (left > 0 and right > 0) or abs(left - right) <= (left_spread + right_spread) / 2:
        return "within noise"
    quick, slow = sorted((left, right))
    return f"{'left' if left > right else 'right'} takes {slow / quick:.3g} times as long"


# ---- one stage after the other ---------------------------------------------------------------------------


def _jaxpr(left: dict, right: dict) -> Iterator[Row]:
    takes = [_arguments(d["stages"]["jaxpr"]["text"]) for d in (left, right)]
    if takes[0] != takes[1]:
        yield "jaxpr", "arguments", *takes, "other shapes or types"
    yield from _counts("jaxpr", "primitive {}", *(_column(d, "jaxpr", "primitive") for d in (left, right)))
    yield from _lines("jaxpr", left, right)


def _stablehlo(left: dict, right: dict) -> Iterator[Row]:
    numbers = [len(_column(d, "stablehlo", "op")) for d in (left, right)]
    yield from _number("stablehlo", "ops", *numbers)
    yield from _lines("stablehlo", left, right)


def _passes(left: dict, right: dict) -> Iterator[Row]:
    names = [set(_column(d, "passes", "pass")) for d in (left, right)]
    only = [sorted(map(str, names[side] - names[1 - side])) for side in (0, 1)]
    if any(only):
        shown = [_short(", ".join(o)) or "–" for o in only]
        yield "passes", "passes that changed something on one side only", *shown, _plus_minus(*map(len, only))


def _hlo(left: dict, right: dict) -> Iterator[Row]:
    opcodes = [_column(d, "hlo", "opcode") for d in (left, right)]
    yield from _number("hlo", "instructions", *map(len, opcodes))
    yield from _counts("hlo", "opcode {}", *([o for o in side if o not in FREE] for side in opcodes))
    aliases = [_donated(d["stages"]["hlo"]["text"]) for d in (left, right)]
    yield from _number("hlo", "results written into a donated argument", *aliases)
    yield from _lines("hlo", left, right)


def _kernels(pairs: Pairs) -> Iterator[Row]:
    yield from _number("kernels", "kernels", *(sum(p[side] is not None for p in pairs) for side in (0, 1)))
    for a, b in pairs:
        if a is None or b is None:
            part, change = (a, "gone") if a else (b, "new")
            yield "kernels", part.name, a.kind if a else "–", b.kind if b else "–", change
            continue
        name = a.name if a.name == b.name else f"{a.name} → {b.name}"
        if a.kind != b.kind:
            yield "kernels", f"{name}: whose code", a.kind, b.kind, "other hands"
        if not same_hlo(a, b):
            yield "kernels", f"{name}: HLO lines", len(a.hlo), len(b.hlo), _changed(a.hlo, b.hlo, "hlo")
        if a.kind == b.kind:
            yield from _code(name, a, b)


def _code(name: str, a: Part, b: Part) -> Iterator[Row]:
    """How two kernels' code differs: counted where it can be, line by line where the counts are equal."""
    if same_code(a, b):
        if not same_code(a, b, "llvm"):
            texts = [renamed.cleaned(p.code.get("llvm", ""), "llvm") for p in (a, b)]
            change = f"{_changed(*texts, 'llvm')}, same machine code"
            yield "code", f"{name}: LLVM IR lines", *map(len, texts), change
        return
    counts = [asm_counts(p.code.get("asm", "")) for p in (a, b)]
    rows = [row for key in counts[0] for row in _number("code", f"{name}: {key}", *(c[key] for c in counts))]
    texts = [renamed.cleaned(p.code.get("asm", ""), "asm") for p in (a, b)]
    yield from rows or [("code", f"{name}: lines of assembly", *map(len, texts), _changed(*texts, "asm"))]


def asm_counts(text: str) -> dict[str, int]:
    """Of a kernel's assembly: instructions, those that work on vectors, and the widest vector in bits."""
    lines = [line.partition(":  ")[2] for line in text.split("\n") if ":  " in line]
    vector = [line for line in lines if _VECTOR.search(line) and not _SCALAR.search(line.split(" ")[0])]
    bits = [_BITS.get(m[1] or "", 128) for line in vector for m in _VECTOR.finditer(line)]
    return {"instructions": len(lines), "vector instructions": len(vector),
            "widest vector, bits": max(bits, default=0)}  # fmt: skip


def _fates(left: dict, right: dict) -> Iterator[Row]:
    """Equation by equation where both programs have the same ones; by how many elsewhere."""
    rows = [records(d["fates"]) for d in (left, right)]
    ids = [[(r["equation"], r["primitive"]) for r in side] for side in rows]
    if ids[0] != ids[1]:
        yield from _counts("fates", "equations {}", *([r["fate"] for r in side] for side in rows))
        return
    for a, b in zip(*rows, strict=True):
        if a["fate"] != b["fate"]:
            what = f"{a['equation']} {a['primitive']}"
            yield "fates", what, *(_fate(r) for r in (a, b)), "other fate"


def _fate(row: dict[str, Any]) -> str:
    return f"{row['fate']} ({row['by_pass']})" if row["by_pass"] else str(row["fate"])


def _costs(left: dict, right: dict) -> Iterator[Row]:
    for key, what in (("flops", "FLOPs of all kernels"), ("bytes", "bytes that all kernels read and write")):
        totals = [sum(r[key] or 0 for r in records(d["summary"])) for d in (left, right)]
        yield from _number("cost", what, *totals)
    memory = [buffer_bytes(d) for d in (left, right)]
    for what in sorted(memory[0].keys() & memory[1].keys()):
        yield from _number("memory", what, *(side[what] for side in memory))


def buffer_bytes(document: dict[str, Any]) -> dict[str, int]:
    """Of XLA's buffers, where the document has them: the bytes of temporary ones, and of all at the peak."""
    rows = records(document.get("buffers"))
    if not rows:
        return {}
    peak = max(r["in_use_bytes"] for r in rows)
    places = {r["allocation"]: r["allocation_bytes"] for r in rows if r["kind"] == "temporary"}
    return {"bytes in use at the peak": peak, "bytes of temporary buffers": sum(places.values())}


# ---- small parts -----------------------------------------------------------------------------------------


def _lines(stage: str, left: dict, right: dict) -> Iterator[Row]:
    language = renamed.language(stage)
    texts = [renamed.cleaned(d["stages"][stage]["text"], language) for d in (left, right)]
    if not same_text(*texts, language):
        yield stage, "lines of text", *map(len, texts), _changed(*texts, language)


def _changed(left: list[str], right: list[str], language: str) -> str:
    """How many lines are new, and how many are gone, names aside."""
    left = list(left)
    right = renamed.same_names(left, list(right), language)
    steps = [step for step in renamed.opcodes(left, right) if step[0] != "equal"]
    return _plus_minus(sum(s[2] - s[1] for s in steps), sum(s[4] - s[3] for s in steps)) + " lines"


def _plus_minus(gone: int, new: int) -> str:
    return f"−{gone} +{new}"


def _counts(stage: str, what: str, left: list, right: list) -> Iterator[Row]:
    one, other = Counter(map(str, left)), Counter(map(str, right))
    for name in sorted(one | other):
        yield from _number(stage, what.format(name), one[name], other[name])


def _number(stage: str, what: str, left: float, right: float) -> Iterator[Row]:
    if left == right:
        return
    factor = max(left, right) / min(left, right) if min(left, right) > 0 else 0
    by = f" ({factor:.3g} times)" if factor >= 1.2 and max(left, right) > 20 else ""
    yield stage, what, left, right, f"{right - left:+,}".replace("-", "−") + by


def _short(text: str, length: int = 160) -> str:
    return text if len(text) <= length else f"{text[:length].rsplit(', ', 1)[0]}, …"


def _arguments(text: str) -> str:
    """The types between `lambda` and `let` in a jaxpr's first line."""
    head = text.split(". let", 1)[0].rpartition(";")[2]
    return " ".join(re.findall(r"(?:^|\s)\w+:(\S+)", head))


def _donated(hlo: str) -> int:
    head = hlo.split("\n", 1)[0].partition("input_output_alias={")[2].partition("}, entry")[0]
    return len(re.findall(r"(?:may|must)-alias", head))


def _whole_call(document: dict[str, Any]) -> tuple[float | None, float | None]:
    """Median and interquartile range of the time that a call's kernels keep the machine busy."""
    rows = records(document["stages"]["execution"]["table"])
    if not rows:
        return None, None
    busy = busy_us(pd.DataFrame(rows))
    return float(busy.median()), float(busy.quantile(0.75) - busy.quantile(0.25))


def _column(document: dict[str, Any], stage: str, name: str) -> list[Any]:
    table = document["stages"][stage]["table"]
    place = table["columns"].index(name)
    return [row[place] for row in table["rows"]]
