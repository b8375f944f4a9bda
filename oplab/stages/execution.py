"""Execution: what the runtime really ran, thunk by thunk, from JAX's own profiler.

Events are joined to the program by the HLO instruction's name, not by the name of the thread they ran on:
threads are named differently by every version, and a big kernel runs on several of them.
"""

from __future__ import annotations

import glob
import os
import tempfile
import time
import warnings
from collections.abc import Callable

import jax
import pandas as pd

from ..display import Measured, stable
from .stage import Stage

COLUMNS = ["run", "instruction", "start_us", "duration_us"]
EMPTY = (
    "The profiler recorded no kernel: another profile may be running in this process, or the temporary "
    "folder cannot be written; stop the other profile or set TMPDIR, and execute again."
)


def measure(
    compiled: Callable, prepare: Callable[[], tuple], repeats: int, names: set[str], bar: Callable
) -> tuple[list[float], pd.DataFrame, str]:
    """Run `compiled(*args, **kwargs)` `repeats` times under the profiler; `prepare` gives each run its (args,
    kwargs).

    Returns (wall time of each run in microseconds, the table of executed thunks, a problem in words or "").
    `run` counts from 0, `start_us` from the start of that run. A kernel that several threads share has one
    row for each thread's part.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own frames would drown the kernels
    options.host_tracer_level = 2
    _run_us(compiled, *prepare())  # warm: the first run also touches fresh memory
    wall_us: list[float] = []
    try:
        with tempfile.TemporaryDirectory(prefix="oplab-", ignore_cleanup_errors=True) as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                for _ in bar(range(repeats)):
                    args, kwargs = prepare()
                    with jax.profiler.TraceAnnotation("oplab_run"):
                        wall_us.append(_run_us(compiled, args, kwargs))
            table = _read(folder, names)
    except (OSError, RuntimeError) as error:
        wall_us = wall_us or [_run_us(compiled, *prepare()) for _ in range(repeats)]
        return wall_us, pd.DataFrame(columns=COLUMNS), f"{EMPTY} ({str(error).splitlines()[0][:120]})"
    return wall_us, table, "" if len(table) else EMPTY


def _run_us(compiled: Callable, args: tuple, kwargs: dict) -> float:
    start = time.perf_counter()
    jax.block_until_ready(compiled(*args, **kwargs))
    return (time.perf_counter() - start) * 1e6


def _read(folder: str, names: set[str]) -> pd.DataFrame:
    """Read the profile: our markers cut it into runs, events with an `hlo_op` of this program fill them."""
    files = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
    if not files:
        return pd.DataFrame(columns=COLUMNS)
    with warnings.catch_warnings():
        # jaxlib makes its types on first use, with a warning that, where warnings are errors, would end the
        # process.
        warnings.simplefilter("ignore", DeprecationWarning)
        runs, events = _events(files[0], names)
    rows = []
    for number, (start, end) in enumerate(sorted(runs)):
        rows += [
            (number, name, (at - start) / 1e3, duration / 1e3)
            for at, duration, name in events
            if start <= at <= end
        ]
    return pd.DataFrame(sorted(rows, key=lambda r: (r[0], r[2])), columns=COLUMNS)


def _events(file: str, names: set[str]) -> tuple[list[tuple[float, float]], list[tuple[float, float, str]]]:
    """The runs (start, end) and the kernels (start, duration, instruction), in nanoseconds."""
    runs, events = [], []
    profile = jax.profiler.ProfileData.from_file(file)  # held: its planes and lines point into it
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                if event.name.startswith("oplab_run"):
                    runs.append((event.start_ns, event.end_ns))
                    continue
                if event.name in names and any(key == "hlo_op" for key, _ in event.stats):
                    events.append((event.start_ns, event.duration_ns, event.name))
    return runs, events


def stage(wall_us: list[float], table: pd.DataFrame, problem: str) -> Stage:
    """The execution stage. It is measured, so it differs from run to run and is never compared as text."""
    if stable():
        text = problem or f"{len(wall_us)} runs"
    else:
        median = float(pd.Series(wall_us).median())
        shown = f"{median:.1f} us" if median < 1e4 else f"{median / 1e3:.1f} ms"
        text = problem or f"{len(wall_us)} runs, median wall time {shown}"
    return Stage("execution", text, Measured(table))


def busy_us(table: pd.DataFrame) -> pd.Series:
    """For each run, the union of its intervals: two kernels at the same time count once."""
    totals = {}
    for run, part in table.groupby("run"):
        end = total = 0.0
        for start, duration in sorted(zip(part["start_us"], part["duration_us"], strict=True)):
            total += max(0.0, start + duration - max(end, start))
            end = max(end, start + duration)
        totals[run] = total
    return pd.Series(totals, name="busy_us", dtype=float)
