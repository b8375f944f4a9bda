"""What the page needs of a walk's document: the texts, and for each line the equations it belongs to.

The equation is the hinge here as everywhere: a line lights up every line that shares an equation with it.
What the document's `links` say beyond that travels as `more` (an equation that only lives on inside another's
instruction) or as `pairs` (lines that no equation joins, such as a kernel and the parameters in its fusion).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from oplab.display import stable
from oplab.views import highlight
from oplab.views.page.model_memory import memory
from oplab.views.page.model_roofline import roofs
from oplab.views.page.model_timeline import timeline
from oplab.views.picture import COLOURS
from oplab.views.records import records
from oplab.views.timeline import operator

TEXTS = {"script": "python", "jaxpr": "jaxpr", "stablehlo": "mlir", "hlo": "hlo"}  # linked texts, languages
FORMS = {form: form for form in ("mlir", "llvm", "asm", "ptx", "sass")}  # of a kernel's code: the language
IDS = {"script": "", "jaxpr": "equation", "stablehlo": "op", "hlo": "instruction", "kernels": "instruction"}
HOW = {"exact": 0, "inferred": 1, "compiler": 2}
# HLO instructions that do no work of their own; coverage leaves them out.
FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})
MEASURED = ("runs", "median_us", "spread_us", "share")
PASS = ("index", "pipeline", "pass", "instructions", "added", "removed", "text_line", "does")
_NUMBERED = re.compile(r"^ *(\d+)  ?")  # "  12  y = x @ w" in the script's text


def model(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the page's script reads, ready for JSON."""
    stages = document.get("stages", {})
    tables = {name: records(stages.get(name, {}).get("table")) for name in (*TEXTS, "kernels", "passes")}
    summary = {str(row.get("instruction")): row for row in records(document.get("summary"))}
    equations = _equations(tables["jaxpr"], records(document.get("fates")))
    number = {e["id"]: n for n, e in enumerate(equations)}
    rows = {name: [_row(name, record, number) for record in tables[name]] for name in TEXTS}
    _share_lines(rows["jaxpr"])
    rows["kernels"] = _kernels(tables["kernels"], summary, rows["hlo"], number, tables["jaxpr"])
    pairs = _join(rows, records(document.get("links")), number)
    return {
        "function": str(document.get("function", "")), "target": str(document.get("target", "")),
        "equations": equations, "rows": rows, "pairs": pairs,
        "texts": {name: _lines(name, stages) for name in TEXTS}, "numbers": _line_numbers(stages),
        "passes": [{key: row.get(key) for key in PASS} for row in tables["passes"]],
        "coverage": coverage(tables["hlo"]), "executed": _executed(stages), "measured": _run(stages),
        "patterns": highlight.PATTERNS, "languages": {**TEXTS, **FORMS}, "colours": COLOURS,
        "runs": [_runs(line) for line in _lines("script", stages)],
        "memory": memory(records(document.get("buffers")), rows["hlo"]),
        "timeline": timeline(records(stages.get("execution", {}).get("table")), rows["hlo"]),
        "roofs": roofs(document.get("peaks")),
    }


def code(document: Mapping[str, Any]) -> dict[str, Any]:
    """The long texts, read only when someone looks: every kernel's code, and what the passes changed.

    Equal kernels share their code, so each text stands in `texts` once, and kernels name theirs by number.
    """
    number: dict[str, int] = {}
    kernels = {str(name): {form: number.setdefault(str(forms[form]), len(number))
                           for form in FORMS if form in forms}
               for name, forms in document.get("code", {}).items()}
    passes = document.get("stages", {}).get("passes", {}).get("text", "")
    return {"kernels": kernels, "texts": [text.split("\n") for text in number],
            "passes": str(passes).split("\n"), "pass_lines": _pass_lines(document)}


def _pass_lines(document: Mapping[str, Any]) -> dict[str, list[int]]:
    """Line of the passes' text (from 1) -> the numbers of the equations that its tag names."""
    jaxpr = records(document.get("stages", {}).get("jaxpr", {}).get("table"))
    number = {str(row.get("equation")): n for n, row in enumerate(jaxpr)}
    return {str(row["text_line"]): _numbers(row["equations"], number)
            for row in records(document.get("pass_lines"))}


def coverage(hlo: Iterable[Mapping[str, Any]]) -> list[int]:
    """How many instructions that compute are exact, inferred, and the compiler's own."""
    counts = [0, 0, 0]
    for row in hlo:
        if row.get("opcode") not in FREE:
            counts[HOW.get(row.get("how"), 2)] += 1
    return counts


# ---- the rows --------------------------------------------------------------------------------------------


def _equations(jaxpr: list[dict], fates: list[dict]) -> list[dict[str, Any]]:
    """One entry per equation, in the jaxpr's order; `parent` is the number of the equation it lies in."""
    fate = {str(row.get("equation")): row for row in fates}
    number = {str(row.get("equation")): n for n, row in enumerate(jaxpr)}
    return [{"id": id_, "primitive": str(row.get("primitive", "")), "parent": _parent(id_, number),
             "where": f"{row['file']}:{row['line']}" if row.get("line") is not None else "",
             **{key: str(fate.get(id_, {}).get(key) or "") for key in ("fate", "by_pass", "into")}}
            for row in jaxpr for id_ in [str(row.get("equation"))]]


def _parent(equation: str, number: Mapping[str, int]) -> int:
    """`e4.branches.1.e0` lies in `e4`: the longest beginning that is an equation too."""
    parts = equation.split(".")
    heads = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
    return next((number[head] for head in heads if head in number), -1)


def _row(stage: str, record: Mapping[str, Any], number: Mapping[str, int]) -> dict[str, Any]:
    owners = [record.get("equation")] if stage == "jaxpr" else record.get("equations") or ()
    label = f"{record.get('file')}:{record.get('line')}" if stage == "script" else str(record.get(IDS[stage]))
    row = {"line": record.get("text_line"), "label": label, "equations": _numbers(owners, number), "more": [],
           "how": HOW.get(record.get("how"), 0)}
    if stage == "stablehlo" and not row["equations"]:
        row["how"] = HOW["compiler"]
    if record.get("opcode") in FREE:
        row["free"] = record["opcode"]
    if record.get("reason"):
        row["note"] = str(record["reason"])
    return row


def _share_lines(rows: list[dict[str, Any]]) -> None:
    """JAX prints a short jaxpr on one line: who points at that line means every equation on it."""
    on = defaultdict(set)
    placed = [row for row in rows if row["line"] is not None]
    for row in placed:
        on[row["line"]].update(row["equations"])
    for row in placed:
        row["equations"] = sorted(on[row["line"]])


def _numbers(ids: Iterable[Any], number: Mapping[str, int]) -> list[int]:
    return sorted({number[str(i)] for i in ids if str(i) in number})


def _kernels(kernels: list[dict], summary: Mapping[str, Mapping], hlo: list[dict], number: Mapping[str, int],
             jaxpr: list[dict]) -> list[dict[str, Any]]:
    """The kernels with what they cost. How sure their equations are, the instruction in the HLO says."""
    how = {row["label"]: row["how"] for row in hlo}
    by_id = {str(row.get("equation")): row for row in jaxpr}
    rows = []
    for kernel in kernels:
        name = str(kernel.get("instruction"))
        cost = dict(summary.get(name, {}))
        if stable():
            cost |= dict.fromkeys(MEASURED)
        row = _row("kernels", kernel, number)
        row["how"] = how.get(name, row["how"])
        row["more"] = [n for n in _numbers(cost.get("equations") or (), number) if n not in row["equations"]]
        owners = cost.get("equations") or kernel.get("equations") or ()
        operators = dict.fromkeys(operator(str(e), by_id) for e in owners)
        row |= {"kind": str(kernel.get("kind") or ""), "library": str(kernel.get("library") or ""),
                "switch": str(kernel.get("switch") or ""), "lines": [str(x) for x in cost.get("lines") or ()],
                "operators": [o for o in operators if o != "other"] or ["other"],
                **{key: cost.get(key) for key in ("flops", "bytes", *MEASURED)}}
        rows.append(row)
    return rows


def _join(rows: dict[str, list[dict]], links: list[dict], number: Mapping[str, int]) -> list[list[Any]]:
    """Take in what `links` say and the columns do not: into `more`, or as pairs where none joins two."""
    at = {stage: {row["label"]: n for n, row in enumerate(rows[stage])} for stage in rows}
    loose = []
    for link in links:
        a, b = str(link.get("from_stage")), str(link.get("to_stage"))
        i, j = at.get(a, {}).get(str(link.get("from_id"))), at.get(b, {}).get(str(link.get("to_id")))
        if i is None or j is None:
            continue
        if a == "jaxpr":
            equation, row = number[str(link.get("from_id"))], rows[b][j]
            if equation not in row["equations"] and equation not in row["more"]:
                row["more"].append(equation)
        elif a != "script":
            loose.append((a, i, b, j, HOW.get(link.get("how"), 0)))
    owned: dict[tuple[str, int], set[int]] = defaultdict(set)
    for stage in rows:
        for n, row in enumerate(rows[stage]):
            owned[stage, n] = {*row["equations"], *row["more"]}
    return [[a, i, b, j, how] for a, i, b, j, how in loose if owned[a, i].isdisjoint(owned[b, j])]


# ---- the texts -------------------------------------------------------------------------------------------


def _lines(name: str, stages: Mapping[str, Any]) -> list[str]:
    """A stage's text; the script without its line numbers, which stand in the margin."""
    lines = str(stages.get(name, {}).get("text", "")).split("\n")
    return [_NUMBERED.sub("", line) for line in lines] if name == "script" else lines


def _line_numbers(stages: Mapping[str, Any]) -> list[int]:
    """The number of each line of the script in its own file; 0 for a heading."""
    lines = str(stages.get("script", {}).get("text", "")).split("\n")
    return [int(found[1]) if (found := _NUMBERED.match(line)) else 0 for line in lines]


def _runs(line: str) -> list[Any]:
    """A line of Python, coloured: class, length, class, length, ..."""
    return [part for name, text in highlight.spans(line, "python") for part in (name, len(text))]


def _executed(stages: Mapping[str, Any]) -> bool:
    return bool(records(stages.get("execution", {}).get("table")))


def _run(stages: Mapping[str, Any]) -> str:
    """The execution's own sentence, such as "20 runs, median wall time 855.3 us"."""
    if stable() or not _executed(stages):
        return ""
    return str(stages["execution"].get("text", "")).split("\n")[0]
