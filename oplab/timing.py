"""How long one call takes: samples of several variants that take turns, and who else used the machine.

`oplab.bench` makes a table of it and says what makes such a number honest.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
import psutil

try:
    import resource
except ImportError:  # Windows has no getrusage; os.times() answers there, in coarser steps
    resource = None

NOISY_SPREAD = 0.25  # interquartile range over median: above this a timing is flagged
NOISY_CORES = 0.25  # cores that other programs kept busy meanwhile: above this every timing is flagged
SAMPLE_US = 1_000.0  # short calls are repeated until one sample lasts about this long


class Sample(NamedTuple):
    """Microseconds of wall time and of user and system processor time, for all calls of one sample."""

    wall_us: float
    user_us: float
    system_us: float


def call(f: Callable, args: tuple) -> Any:
    out = jax.block_until_ready(f(*args))
    jax.effects_barrier()  # debug.print and callbacks run beside the program: wait for them as well
    return out


def _sample(f: Callable, args: tuple, calls: int) -> Sample:
    user, system = _processor_s()
    start = time.perf_counter_ns()
    for _ in range(calls):
        call(f, args)
    wall = (time.perf_counter_ns() - start) / 1e3
    user_after, system_after = _processor_s()
    return Sample(wall, (user_after - user) * 1e6, (system_after - system) * 1e6)


def _processor_s() -> tuple[float, float]:
    if resource is None:
        return os.times()[:2]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def time_case(
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
