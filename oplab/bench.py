"""Honest timing and peak memory of several variants of one computation.

    df = bench({"plain": f, "jit": jax.jit(f)}, x)                                     one set of arguments
    df = bench({"plain": f, "jit": jax.jit(f)}, cases={128: (x,), 256: (y,)}, label="S")   one set per S

What makes a timing honest, and where it happens below:
- the clock stops when the result is there, not when the call returns (`_call` waits for it, and for effects);
- the first call, which compiles, is counted apart (`first_us`);
- arrays come in as arguments, because XLA folds closed-over ones into constants (a row without any says so);
- variants take turns (A B C A B C), so a machine that gets slower gets slower for all of them;
- a median with its interquartile range, never a single number or a best case;
- a noisy run is flagged in words (`noise`), not hidden.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import psutil
from tqdm import tqdm

from oplab.cost import function_cost
from oplab.display import stable
from oplab.memory import peak_bytes

try:
    import resource
except ImportError:  # Windows has no getrusage; os.times() answers there, in coarser steps
    resource = None

NOISY_SPREAD = 0.25  # interquartile range over median: above this a timing is flagged
NOISY_CORES = 0.25  # cores that other programs kept busy meanwhile: above this every timing is flagged
SAMPLE_US = 1_000.0  # short calls are repeated until one sample lasts about this long
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
            found = _time_case(variants, ready, where, repeats, warmup, budget_s)
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


# ---- one call, one case -------------------------------------------------------------------------------


class Sample(NamedTuple):
    """Microseconds of wall time and of user and system processor time, for all calls of one sample."""

    wall_us: float
    user_us: float
    system_us: float


def _call(f: Callable, args: tuple) -> Any:
    out = jax.block_until_ready(f(*args))
    jax.effects_barrier()  # debug.print and callbacks run beside the program: wait for them as well
    return out


def _sample(f: Callable, args: tuple, calls: int) -> Sample:
    user, system = _processor_s()
    start = time.perf_counter_ns()
    for _ in range(calls):
        _call(f, args)
    wall = (time.perf_counter_ns() - start) / 1e3
    user_after, system_after = _processor_s()
    return Sample(wall, (user_after - user) * 1e6, (system_after - system) * 1e6)


def _processor_s() -> tuple[float, float]:
    if resource is None:
        return os.times()[:2]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _time_case(
    variants: Mapping[str, Callable],
    args: tuple,
    where: str,
    repeats: int,
    warmup: int,
    budget_s: float | None,
) -> dict[str, dict]:
    """All variants on one set of arguments, taking turns."""
    first = {name: _first_call(name, f, args, where) for name, f in variants.items()}
    calls = dict.fromkeys(variants, 1)
    samples: dict[str, list[Sample]] = {name: [] for name in variants}
    with _no_collection(), other_cores() as others:
        started = time.perf_counter()
        for turn in range(-warmup, repeats):
            if turn >= 3 and budget_s is not None and time.perf_counter() - started > budget_s:
                break
            for name, f in variants.items():
                sample = _sample(f, args, calls[name])
                if turn >= 0:
                    samples[name].append(sample)
                else:
                    calls[name] = max(1, min(1000, round(SAMPLE_US * calls[name] / sample.wall_us)))
    folded = not jax.tree.leaves(args)
    return {name: _row(samples[name], calls[name], first[name], others[0], folded) for name in variants}


def _first_call(name: str, f: Callable, args: tuple, where: str) -> float:
    try:
        first = _sample(f, args, 1).wall_us
    except Exception as error:
        raise RuntimeError(f"The variant {name!r} failed{where}: {type(error).__name__}: {error}") from error
    if any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves(args)):
        raise ValueError(
            f"The variant {name!r} donates its arguments, which are gone after one call; "
            "time it without donate_argnums."
        )
    return first


def _row(samples: list[Sample], calls: int, first_us: float, other_cores: float, folded: bool) -> dict:
    each = [s.wall_us / calls for s in samples]
    low, median, high = (float(x) for x in np.percentile(each, [25, 50, 75]))
    count = calls * len(samples)
    share = (high - low) / median
    noise = [f"spread is {100 * share:.0f}% of the median"] * (share > NOISY_SPREAD)
    noise += [f"other programs kept {other_cores:.1f} cores busy"] * (other_cores > NOISY_CORES)
    noise += ["no arguments: XLA may have folded the work into a constant"] * folded
    return {
        "median_us": median,
        "spread_us": high - low,
        "first_us": first_us,
        "user_us": sum(s.user_us for s in samples) / count,
        "system_us": sum(s.system_us for s in samples) / count,
        "rounds": len(samples),
        "calls": calls,
        "other_cores": other_cores,
        "noise": "; ".join(noise),
        "samples_us": tuple(each),
    }


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's garbage collector stays out of the timed rounds."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def other_cores(own_s: Callable[[], float] = lambda: sum(_processor_s())) -> Iterator[list[float]]:
    """Yield a list that holds, after the block, how many cores everybody else kept busy during it.

    own_s: processor time so far, in seconds, of whoever is not everybody else: this process, or several.
    """
    found = [0.0]
    start, busy, own = time.perf_counter(), _busy_s(), own_s()
    yield found
    wall = time.perf_counter() - start
    if wall > 0.2:  # the system counts in hundredths of a second: shorter blocks say nothing
        found[0] = max(0.0, round((_busy_s() - busy - (own_s() - own)) / wall, 2))


def _busy_s() -> float:
    spent = psutil.cpu_times()._asdict()
    return sum(spent.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))


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
    peak, how = peak_bytes(lambda: _call(f, args))
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
