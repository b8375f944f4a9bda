"""Honest timing and peak memory of several variants of one computation.

    df = bench({"plain": f, "jit": jax.jit(f)}, x)                                     one set of arguments
    df = bench({"plain": f, "jit": jax.jit(f)}, cases={128: (x,), 256: (y,)}, label="S")   one set per S

What makes a timing honest, here and in `oplab.timing`:
- the clock stops when the result is there, not when the call returns (`call` waits, for effects too);
- the first call, which compiles, is counted apart (`first_us`);
- arrays come in as arguments, because XLA folds closed-over ones into constants (a row without any says so);
- variants take turns (A B C A B C), so a machine that gets slower gets slower for all of them;
- a median with its interquartile range, never a single number or a best case;
- a noisy run is flagged in words (`noise`), not hidden.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from oplab.cost import function_cost
from oplab.display import stable
from oplab.memory import peak_bytes
from oplab.timing import call, time_case

MEASURED = (
    "median_us",
    "spread_us",
    "first_us",
    "user_us",
    "system_us",
    "rounds",
    "calls",
    "peak_bytes",
    "peak_how",
    "other_cores",
    "noise",
    "samples_us",
)


class Timings(pd.DataFrame):
    """The table that `bench` returns: a DataFrame, except that it shows measured columns as a dash under
    `OPLAB_STABLE=1` (the numbers are still in it) and leaves the raw samples out of the picture."""

    @property
    def _constructor(self):
        return Timings

    def _shown(self) -> pd.DataFrame:
        shown = pd.DataFrame(self).drop(columns="samples_us", errors="ignore")
        if stable():
            return shown.assign(**{name: "–" for name in (*MEASURED, "temp_bytes") if name in shown})
        rough = [name for name in shown if name in MEASURED and name.endswith(("_us", "_bytes"))]
        exact = [name for name in shown if name in ("temp_bytes", "flops", "bytes")]
        return shown.assign(
            **{name: [_figures(x, 4) for x in shown[name]] for name in rough},
            **{name: [_figures(x, 17) for x in shown[name]] for name in exact},
        )

    def __repr__(self) -> str:
        return self._shown().to_string()

    def _repr_html_(self) -> str:
        return self._shown().to_html()


def bench(
    variants: Mapping[str, Callable],
    *args: Any,
    cases: Mapping[Any, Any] | None = None,
    label: str = "case",
    repeats: int = 20,
    warmup: int = 1,
    budget_s: float | None = None,
    memory: bool = True,
    cost: bool = False,
    progress: bool = True,
    ci_cases: int | None = None,
) -> Timings:
    """Time every variant on the same arguments and return one row per case and variant.

    Arguments
    - variants: name -> function. A jitted function is timed as one program, a plain one operator by operator.
    - args: the arguments of every variant. NumPy arrays are put on the device once, before the clock starts.
    - cases: instead of `args`, value of `label` -> tuple of arguments (or a function that makes the tuple
      when its turn comes, so that the arrays of all sizes need not exist at once).
    - repeats: timed rounds; fewer when `budget_s` seconds are used up for a case, but at least three.
    - warmup: untimed rounds after the first call.
    - memory: measure peak memory too (four more calls). cost: add `flops` and `bytes` from `oplab.cost`.
    - progress: a plain text bar; never shown in CI or under `OPLAB_STABLE=1`.
    - ci_cases: there, where only the form of the result matters, time only so many of the first cases.

    Measured columns
    - median_us, spread_us: median and interquartile range of the wall time of a call; `samples_us` has the
      rounds (`rounds` of them, each the mean of `calls` calls, more than one only when a call is short).
    - first_us: the first call in this bench, with tracing and compilation unless that had happened before.
    - user_us, system_us: processor time per call over all threads, in the program and in the operating
      system. The system counts this split in ticks: it needs some tenths of a second of work to mean much.
    - peak_bytes: how far the memory of this process rose above its level before the call, result included;
      the median of three, good to some hundred KiB. peak_how: how that was read (see `oplab.memory`).
    - other_cores: cores that other programs kept busy meanwhile. noise: in words, why not to trust the row.

    Certain columns: temp_bytes (what the compiler planned beside arguments and results; empty for a plain
    function, which is many programs), flops and bytes.

    Raises TypeError or ValueError for what cannot be timed, RuntimeError when a variant fails.
    """
    _check(variants, args, cases, repeats, warmup)
    rows: list[dict] = []
    todo = list(cases.items()) if cases is not None else [(None, args)]
    todo = todo[: ci_cases if _in_ci() else None]
    with tqdm(
        total=len(todo) * len(variants),
        unit="variant",
        ascii=True,
        delay=1,
        leave=False,
        disable=not progress or _in_ci(),
    ) as bar:
        for case, given in todo:
            ready = _on_device(given() if callable(given) else given)
            where = "" if case is None else f" at {label} = {case}"
            bar.set_description(f"bench{where}")
            found = time_case(variants, ready, where, repeats, warmup, budget_s)
            for name, row in found.items():
                row |= _memory(variants[name], ready, memory)
                if cost:
                    row |= _cost(variants[name], ready)
                rows.append(({} if case is None else {label: case}) | {"variant": name} | row)
                bar.update()
    table = Timings(rows)
    table.attrs = ran_on()
    return table[[c for c in table if c != "samples_us"] + ["samples_us"]]


def time_us(f: Callable, *args: Any, repeats: int = 20, warmup: int = 2) -> float:
    """Median wall time of one call `f(*args)` in microseconds, compilation excluded, result waited for."""
    return float(
        bench({"f": f}, *args, repeats=repeats, warmup=warmup, memory=False, progress=False)[
            "median_us"
        ].iloc[0]
    )


def ran_on() -> dict[str, Any]:
    """What a measured number belongs to: JAX's and Python's version, the device, and XLA's threads."""
    named = os.environ.get("PJRT_NPROC") or os.environ.get("NPROC")  # XLA sizes its thread pool by these
    affinity = getattr(os, "sched_getaffinity", None)
    threads = int(named) if named and named.isdigit() else len(affinity(0)) if affinity else os.cpu_count()
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "threads": threads,
    }


# ---- memory and cost -----------------------------------------------------------------------------------


def _memory(f: Callable, args: tuple, measure: bool) -> dict:
    """Planned by the compiler (certain) beside read from the process (measured)."""
    row: dict[str, Any] = {"temp_bytes": float("nan")}
    if hasattr(f, "lower"):
        with suppress(Exception):  # a backend may not answer; the column then stays empty
            row["temp_bytes"] = f.lower(*args).compile().memory_analysis().temp_size_in_bytes
    if not measure:
        return row
    if jax.default_backend() != "cpu":
        return row | {"peak_bytes": float("nan"), "peak_how": "not read: the arrays are not in this process"}
    peak, how = peak_bytes(lambda: call(f, args))
    return row | {"peak_bytes": peak, "peak_how": how}


def _cost(f: Callable, args: tuple) -> dict:
    """As written, before the compiler fuses anything: see `oplab.cost` for what is counted."""
    found = function_cost(f, *args)
    return {"flops": found.flops, "bytes": found.bytes}


# ---- what can be timed -----------------------------------------------------------------------------------


def _check(variants: Any, args: tuple, cases: Any, repeats: int, warmup: int) -> None:
    if not isinstance(variants, Mapping) or not variants:
        raise TypeError(
            "bench expects a dictionary of functions such as {'plain': f, 'jit': jax.jit(f)}, "
            f"got {type(variants).__name__ if variants else 'nothing in it'}."
        )
    for name, f in variants.items():
        if not callable(f):
            raise TypeError(
                f"The variant {name!r} should be a function, got {type(f).__name__}; "
                "pass the function and, after the dictionary, its arguments."
            )
    if cases is not None and args:
        raise ValueError("bench takes either arguments or cases=, got both; put the arguments into cases.")
    if cases is not None and (not isinstance(cases, Mapping) or not cases):
        raise TypeError(
            "cases= should be a dictionary such as {128: (q, k, v)}, "
            f"got {type(cases).__name__ if cases else 'nothing in it'}."
        )
    if repeats < 1 or warmup < 0:
        raise ValueError(
            f"bench needs repeats of at least 1 and warmup of at least 0, got {repeats} and {warmup}."
        )


def _on_device(args: Any) -> tuple:
    args = args if isinstance(args, tuple) else (args,)
    return jax.tree.map(lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x, args)


def _in_ci() -> bool:
    return stable() or bool(os.environ.get("CI"))


def _figures(x: Any, count: int) -> str:
    """A number with its thousands marked; four figures are more than a timing holds."""
    rounded = float(f"{x:.{count}g}")
    return "" if x != x else f"{rounded:,.0f}" if x >= 1e4 else f"{rounded:,.{count}g}"
