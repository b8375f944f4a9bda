"""What ran, as Perfetto reads it: the Trace Event Format, in JSON."""

from __future__ import annotations

from typing import Any

from ..views.page.model_timeline import lanes
from ..views.records import records

GAP_US = 5.0  # between two runs on the timeline


def trace(document: dict[str, Any]) -> dict[str, Any]:
    """The runs as Trace Event JSON: one slice per executed kernel, the runs one after another.

    ts and dur are microseconds. Kernels that ran at the same time lie in several lanes.
    """
    if "execution" not in document["stages"]:
        raise ValueError("export to perfetto needs what was measured: call w.execute() first.")
    rows = records(document["stages"]["execution"]["table"])
    kernels = {row["instruction"]: row for row in records(document["summary"])}
    primitives = {r["equation"]: r["primitive"] for r in records(document["stages"]["jaxpr"]["table"])}
    events, at = [_named("process_name", 0, document["function"]), _named("thread_name", 0, "runs")], 0.0
    most = 0
    for run in sorted({row["run"] for row in rows}):
        part = [row for row in rows if row["run"] == run]
        start = min(row["start_us"] for row in part)
        end = max(row["start_us"] + row["duration_us"] for row in part)
        events.append(_slice(f"run {run}", "run", at, end - start, 0, {}))
        for row, lane in lanes(part):
            kernel = kernels.get(row["instruction"], {})
            name, begins = _title(row["instruction"], kernel, primitives), at + row["start_us"] - start
            args = {"instruction": row["instruction"], **{
                key: _plain(kernel.get(key)) for key in ("kind", "equations", "lines", "flops", "bytes")}}
            events.append(_slice(name, "kernel", begins, row["duration_us"], lane + 1, args))
            most = max(most, lane + 1)
        at += end - start + GAP_US
    events += [_named("thread_name", lane, f"kernels, lane {lane}") for lane in range(1, most + 1)]
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"versions": document["versions"]}}


def _title(instruction: str, kernel: dict[str, Any], primitives: dict[str, str]) -> str:
    """The operators that a kernel came from; its own name where the compiler made it for itself."""
    names = dict.fromkeys(str(primitives[e]) for e in kernel.get("equations") or () if e in primitives)
    return ", ".join(names) or instruction


def _slice(name: str, category: str, ts: float, dur: float, tid: int, args: dict) -> dict[str, Any]:
    return {"name": name, "cat": category, "ph": "X", "ts": round(ts, 3), "dur": round(dur, 3),
            "pid": 1, "tid": tid, "args": args}  # fmt: skip


def _named(what: str, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": tid, "args": {"name": name}}


def _plain(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
