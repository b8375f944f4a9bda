"""The attention benchmark's measurements: times of all variants in rounds, their memory, their error.

Every function takes the variants' processes and a shape, and returns rows. A variant that cannot run the
shape gets a row too, with the reason in `note`.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil

from oplab.timing import NOISY_CORES, NOISY_SPREAD, other_cores
from oplab.tools.bench_attention_problem import Missing, Shape, exact, largest_error
from oplab.tools.bench_attention_worker import Process, quartiles

# How many matrices of scores a variant may hold at once, forward and with the backward pass: those that would
# need more than three quarters of the free memory are left out, since swapping is not what is measured.
SCORES_HELD = {"onnxruntime": (1, 1), "jax.nn": (3, 5), "jit naive": (2, 4), "jit with barriers": (3, 5),
               "eager": (4, 7), "xla": (3, 5)}
AGREE = {"float32": 2e-4, "bfloat16": 5e-2}  # of a result's mean size: above this two variants disagree
DISAGREES = "its numbers disagree with the others'"
PAUSE_S = 0.1  # between turns: threads of other libraries spin on for a while, onnxruntime's longest


# One shape --------------------------------------------------------------------------------------------------


def time_shape(processes: dict[str, Process], shape: Shape, limits: dict[str, Process], rounds: int,
               budget_s: float) -> list[dict]:
    """One row for each variant. `limits`, matrix products, take turns too: rows get a share of the best."""
    prepared, missing = prepare(processes, shape)
    missing |= strangers(prepared, shape)
    prepared = {name: answer for name, answer in prepared.items() if name not in missing}
    turns = {name: processes[name] for name in prepared} | limits
    samples: dict[str, list[dict]] = {name: [] for name in turns}
    started = time.perf_counter()
    with other_cores(lambda: spent_s(turns.values())) as others:
        for turn in range(rounds):
            if turn >= 3 and time.perf_counter() - started > budget_s:
                break
            for name, process in turns.items():
                time.sleep(PAUSE_S)
                samples[name].append(process.ask("sample"))
    walls = {name: [s["wall_us"] for s in found] for name, found in samples.items()}
    best = fastest(limits, walls)
    rows = [row(shape, name, prepared[name], samples[name], walls, best) for name in prepared]
    if others[0] > NOISY_CORES:
        load = f"other programs kept {others[0]:.1f} cores busy"
        rows = [r | {"noise": "; ".join(filter(None, [r["noise"], load]))} for r in rows]
    return rows + [described(shape, name) | {"note": why} for name, why in missing.items()]


def prepare(processes: dict[str, Process], shape: Shape) -> tuple[dict[str, dict], dict[str, str]]:
    """What each variant answered, and for those that cannot run this shape the reason."""
    prepared, missing = {}, {}
    for name, process in processes.items():
        needs = SCORES_HELD.get(name, (0, 0))[shape.backward] * shape.scores_bytes
        free = psutil.virtual_memory().available
        if needs > 0.75 * free:
            missing[name] = f"left out: it may need {needs / 2**30:.0f} GiB; {free / 2**30:.0f} are free"
            continue
        try:
            prepared[name] = process.ask("prepare", shape=shape._asdict())
        except Missing as why:
            missing[name] = str(why)
    return prepared, missing


def strangers(prepared: dict[str, dict], shape: Shape) -> dict[str, str]:
    """Those that disagree with most others on a few numbers of a result: a wrong answer is worth no time."""
    if not prepared:
        return {}
    probes = {name: np.array(answer["probe"]) for name, answer in prepared.items()}
    middle = np.nanmedian(list(probes.values()), axis=0)
    sizes = np.repeat(middle[::7], 7)  # each result's mean size, for the seven numbers of its probe
    apart = {name: float(np.max(np.abs(found - middle) / sizes)) for name, found in probes.items()}
    return {name: f"{DISAGREES} by {far:.1e} of the mean size, and was not timed"
            for name, far in apart.items() if not far < AGREE[shape.dtype]}


def row(shape: Shape, name: str, prepared: dict, samples: list[dict], walls: dict[str, list[float]],
        best: list[float]) -> dict:
    wall = walls[name]
    median, spread = quartiles(wall)
    share, per_s = spread / median, prepared["flops"] / (median * 1e-6)
    found = described(shape, name) | {
        "median_us": median, "spread_us": spread,
        "user_us": statistics.mean(s["user_us"] for s in samples),
        "system_us": statistics.mean(s["system_us"] for s in samples),
        "rounds": len(wall), "calls": prepared["calls"], "first_us": 1e6 * prepared["first_s"],
        "noise": f"spread is {100 * share:.0f}% of the median" if share > NOISY_SPREAD else "",
        "form": prepared["form"], "flops": prepared["flops"], "bytes": prepared["bytes"],
        "flops_per_s": per_s, "samples_us": wall,
    }
    if "native" in walls:
        found["ratio"] = statistics.median(own / ours for own, ours in zip(wall, walls["native"]))
    if best:
        found["limit_flops_per_s"] = statistics.median(best)
        found["share_of_limit"] = statistics.median(
            prepared["flops"] / (us * 1e-6) / most for us, most in zip(wall, best))
    return found


def spent_s(processes: Iterable[Process]) -> float:
    """Processor time so far of this process and of the variants'."""
    every = [psutil.Process(), *(psutil.Process(process.child.pid) for process in processes)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def described(shape: Shape, name: str) -> dict:
    return {"S": shape.seq, "variant": name, "heads": shape.heads, "dim": shape.dim, "causal": shape.causal,
            "backward": shape.backward, "dtype": shape.dtype, "note": ""}


# The machine's own limit ------------------------------------------------------------------------------------


def products(start: Callable[[str], Process], dtype: str) -> dict[str, Process]:
    """The libraries' matrix products, ready to take turns. Each has `flops`, the FLOPs of one call.

    They take turns at every shape, and the fastest one there is the limit: a busy moment at the start would
    otherwise set the limit for all that follows.
    """
    processes = {f"product by {library}": start(f"matmul {library}") for library in ("jax", "numpy", "torch")}
    prepared, _ = prepare(processes, Shape(1, 1, 1, dtype=dtype))
    for name, answer in prepared.items():
        processes[name].flops = answer["flops"]
    return {name: processes[name] for name in prepared}


def fastest(limits: dict[str, Process], walls: dict[str, list[float]]) -> list[float]:
    """FLOP/s in each round of the product whose median is the best; empty where there is none."""
    rates = [[process.flops / (us * 1e-6) for us in walls[name]] for name, process in limits.items()]
    return max(rates, key=statistics.median, default=[])


# Memory and error -------------------------------------------------------------------------------------------


def memory_rows(processes: dict[str, Process], shape: Shape) -> list[dict]:
    """Peak memory of one call above its resting level, read from each variant's process."""
    prepared, missing = prepare(processes, shape)
    rows = [described(shape, name) | {"note": why} for name, why in missing.items()]
    for name in prepared:
        with contextlib.suppress(Missing):
            answer = processes[name].ask("memory")
            if answer["peak_bytes"] < shape.array_bytes / 2:  # less than the result that has to lie somewhere
                answer = {"note": "its allocator keeps what it had before, so the process does not grow"}
            rows.append(described(shape, name) | answer)
    return rows


def error_rows(processes: dict[str, Process], shape: Shape) -> list[dict]:
    """Largest difference from NumPy in float64, over every number of every result."""
    prepared, missing = prepare(processes, shape)
    rows, wanted = [described(shape, name) | {"note": why} for name, why in missing.items()], exact(shape)
    with tempfile.TemporaryDirectory() as folder:
        for name in prepared:
            file = str(Path(folder, "result.npz"))
            processes[name].ask("result", file=file)
            with np.load(file) as saved:
                found = [saved[key] for key in saved.files]
            rows.append(described(shape, name) | {"error": largest_error(found, wanted)})
    return rows
