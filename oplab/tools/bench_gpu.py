"""Attention on one NVIDIA GPU, fused against unfused, within a budget of time, recorded as tables.

    python -m oplab.tools.bench_gpu            all shapes; needs jax[cuda12] or jax[cuda13]
    python -m oplab.tools.bench_gpu --dry      tiny shapes, one round: does it run? (always so without a GPU)

Shapes and FLOPs as in FlashAttention's papers (arXiv 2205.14135, 2307.08691, 2407.08608): hidden size 2048,
heads of 64 or 128 features, 16384 tokens, so a batch of 16384 / S; 4 S^2 D heads batch FLOPs, half if causal,
2.5 times as many backward. With `backward`, both passes are in the time and in the FLOPs.

Every variant must agree with float32 before it is timed. Variants take turns; a time is the median of the
rounds, a round the mean of several calls that the device takes one after the other. When time runs short
there are fewer rounds, and only when it is up are shapes left out, each with a row that says so.

Writes times.csv, kernels.csv and about.json to data/recorded/<chip>/, or to a temporary folder when dry.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from oplab.timing import NOISY_SPREAD
from oplab.tools import bench_gpu_kernels
from oplab.tools.bench_attention_problem import Missing, Shape
from oplab.tools.bench_attention_worker import quartiles
from oplab.tools.bench_gpu_variants import (
    FUSED,
    SCORES_HELD,
    VARIANTS,
    check,
    inputs,
    reference,
    shapes,
    words,
)

ROUNDS, SAMPLE_S = 30, 0.01  # at most so many rounds; a round lasts about so long
KERNELS_SHARE = 0.15  # of the budget, for the profiler
COLUMNS = ["S", "variant", "fused", "batch", "heads", "dim", "causal", "backward", "dtype", "median_us",
           "spread_us", "rounds", "calls", "flops", "flops_per_s", "temp_bytes", "error", "noise", "note",
           "samples_us"]


def main(argv: list[str] | None = None) -> int:
    """Measure, write, and say where. Returns 0 when at least one variant was timed."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the profiler's process needs memory too
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    asked = read_arguments(argv)
    end = time.perf_counter() + asked.budget
    kernels, problem = bench_gpu_kernels.ask(asked.dry, KERNELS_SHARE * asked.budget)
    where = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
    folder, about = folder_for(asked, where), ran_on(asked, where)
    rows: list[dict] = []
    groups = grouped(shapes(asked.dry))
    for number, group in enumerate(groups):
        now = time.perf_counter()
        rows += measure(group, where, now + (end - now) / (len(groups) - number), end, asked.dry)
        # After each group: what is there survives an early end.
        save(folder, rows, kernels, about | {"without kernels": problem})
        print(f"{group[0]}, and its like: {counted(rows)} so far", flush=True)
    print(f"{readable(rows)}\nwritten to {folder}: times.csv, kernels.csv, about.json")
    return 0 if any(not row["note"] for row in rows) else 1


def grouped(every: list[Shape]) -> list[list[Shape]]:
    """Those that are compiled together: all of one dtype, size of head and direction."""
    return [list(group) for _, group in
            itertools.groupby(every, lambda shape: (shape.backward, shape.dtype, shape.dim))]


# One group of shapes ----------------------------------------------------------------------------------------


def measure(group: list[Shape], where: str, deadline: float, end: float, dry: bool) -> list[dict]:
    """One row for each shape and variant. Programs are compiled side by side, and timed one at a time."""
    todo = [(shape, name) for shape in group for name in VARIANTS]
    with ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1))) as threads:
        made = dict(zip(todo, threads.map(lambda each: prepared(*each, where), todo), strict=True))
    rows = []
    for number, shape in enumerate(group):
        here = {name: made.pop((shape, name)) for name in VARIANTS}  # programs go when their shape is done
        now = time.perf_counter()
        if now > end:
            rows += [described(shape, name) | {"note": note or "left out: the time was up"}
                     for name, (_, note) in here.items()]
        else:
            rows += measure_shape(shape, here, now + (deadline - now) / (len(group) - number), dry)
    return rows


def prepared(shape: Shape, name: str, where: str) -> tuple[Callable | None, str]:
    """What to call; or None, and why there is nothing to call."""
    needs = SCORES_HELD[shape.backward] * shape.scores_bytes if name == "unfused" else 0
    if why := too_large(needs):
        return None, why
    try:
        run = VARIANTS[name](shape)
    except (Missing, NotImplementedError) as error:
        return None, f"no rule for {where}: {words(error)}"
    except Exception as error:
        return None, f"could not be compiled for {where}: {type(error).__name__}: {words(error)}"
    why = too_large(run.memory_analysis().temp_size_in_bytes) if hasattr(run, "memory_analysis") else ""
    return (None, why) if why else (run, "")


def too_large(needs: int) -> str:
    """Why a variant that needs so many bytes is left out, or nothing."""
    limit = device_memory()
    if not limit or needs < 0.9 * limit:
        return ""
    return f"left out: it needs {needs / 2**30:.0f} GiB of memory, of {limit / 2**30:.0f} GiB"


def device_memory() -> int:
    return int((jax.devices()[0].memory_stats() or {}).get("bytes_limit", 0))


def measure_shape(shape: Shape, made: dict[str, tuple], deadline: float, dry: bool) -> list[dict]:
    """Check all variants of one shape, then let them take turns until the rounds or the time are over."""
    rows = {name: described(shape, name) | {"note": note} for name, (_, note) in made.items()}
    runs = {name: run for name, (run, note) in made.items() if not note}
    given = inputs(shape)
    wanted = reference(*given, causal=shape.causal, backward=shape.backward)
    calls, samples = {}, {}
    for name, run in runs.items():
        try:
            rows[name]["error"] = check(run(*given), wanted, shape.dtype)
            calls[name] = max(1, min(1000, round(SAMPLE_S / sample_s(run, given, 1)))) if not dry else 1
            samples[name] = []
        except Missing as missing:
            rows[name]["note"] = str(missing)
        except Exception as error:
            rows[name]["note"] = f"failed: {type(error).__name__}: {words(error)}"
    del wanted  # float32 arrays that no variant needs
    for turn in range(-1, 1 if dry else ROUNDS):  # the first one warms up
        if turn >= 3 and time.perf_counter() > deadline:
            break
        for name, mine in samples.items():
            took = sample_s(runs[name], given, calls[name])
            if turn >= 0:
                mine.append(1e6 * took / calls[name])
    for name, mine in samples.items():
        rows[name] |= timed(shape, mine, calls[name])
        if hasattr(runs[name], "memory_analysis"):
            rows[name]["temp_bytes"] = runs[name].memory_analysis().temp_size_in_bytes
    return list(rows.values())


def sample_s(run: Callable, given: list, calls: int) -> float:
    """Seconds of so many calls. The device takes them one after the other; the last one is waited for."""
    start = time.perf_counter()
    for _ in range(calls):
        out = run(*given)
    jax.block_until_ready(out)
    return time.perf_counter() - start


def described(shape: Shape, name: str) -> dict:
    return {"S": shape.seq, "variant": name, "fused": name in FUSED, "batch": shape.batch,
            "heads": shape.heads, "dim": shape.dim, "causal": shape.causal,
            "backward": shape.backward, "dtype": shape.dtype, "flops": shape.flops, "note": ""}


def timed(shape: Shape, samples: list[float], calls: int) -> dict:
    median, spread = quartiles(samples)
    noise = f"spread is {100 * spread / median:.0f}% of the median" if spread > NOISY_SPREAD * median else ""
    return {"median_us": median, "spread_us": spread, "rounds": len(samples), "calls": calls, "noise": noise,
            "flops_per_s": shape.flops / (median * 1e-6),
            "samples_us": " ".join(f"{us:.6g}" for us in samples)}


# What is written --------------------------------------------------------------------------------------------


def folder_for(asked: argparse.Namespace, where: str) -> Path:
    """data/recorded/<chip> of the current folder; what is no measurement of a GPU goes to a temporary one."""
    if asked.out:
        folder = Path(asked.out)
    elif asked.dry or where != "cuda":
        folder = Path(tempfile.mkdtemp(prefix="oplab-bench-gpu-"))
    else:
        folder = Path("data", "recorded", chip_name(jax.devices()[0].device_kind))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def chip_name(kind: str) -> str:
    """"NVIDIA H100 80GB HBM3" is "h100": the first word that has letters and figures."""
    found = re.search(r"\b[a-z]+\d+[a-z]*\b", kind.lower())
    return found[0] if found else re.sub(r"\W+", "-", kind.lower()).strip("-")


def save(folder: Path, rows: list[dict], kernels: list[dict], about: dict) -> None:
    pd.DataFrame(rows, columns=COLUMNS).to_csv(folder / "times.csv", index=False)
    pd.DataFrame(kernels).to_csv(folder / "kernels.csv", index=False)
    (folder / "about.json").write_text(json.dumps(about | {"rows": counted(rows)}, indent=1) + "\n")


def counted(rows: list[dict]) -> str:
    left = sum(row["note"].startswith("left out") for row in rows)
    done = sum(not row["note"] for row in rows)
    return f"{done} timed, {left} left out for want of memory or time, {len(rows) - done - left} without"


def load(folder: str | Path) -> pd.DataFrame:
    """times.csv of a recorded folder, samples as tuples; `attrs` say what they belong to, as plots show."""
    table = pd.read_csv(Path(folder, "times.csv"), dtype=dict.fromkeys(("noise", "note", "samples_us"), str))
    table = table.fillna({"noise": "", "note": "", "samples_us": ""})
    table["samples_us"] = [tuple(map(float, text.split())) for text in table["samples_us"]]
    about = json.loads(Path(folder, "about.json").read_text())
    table.attrs = {"jax": about["JAX"], "device": about["chip"]}
    return table


def ran_on(asked: argparse.Namespace, where: str) -> dict[str, Any]:
    """What the numbers belong to: no names of users, machines or folders."""
    device = jax.devices()[0]
    names = ("jaxlib", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "jax-cuda12-plugin", "jax-cuda13-plugin")
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"chip": device.device_kind, "platform": where, "dry": asked.dry,
            "compute capability": getattr(device, "compute_capability", ""),
            "memory_bytes": device_memory(), "JAX": jax.__version__, **versions,
            "Python": platform.python_version(), "date": time.strftime("%Y-%m-%d"), "budget_s": asked.budget,
            "method": "FlashAttention's: 16384 tokens, hidden size 2048; medians, variants taking turns",
            **nvidia_smi()}


def nvidia_smi() -> dict[str, str]:
    """Driver, clocks and power of the first GPU, where the program that knows them is there."""
    fields = ["driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit",
              "temperature.gpu"]
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = done.stdout.strip().split(", ")
    return dict(zip(fields, found, strict=True)) if len(found) == len(fields) else {}


def readable(rows: list[dict]) -> str:
    """TFLOP/s of each variant against S, and once each, why something has none."""
    table = pd.DataFrame(rows, columns=COLUMNS)
    timed_rows = table[table["note"] == ""]
    text = ["nothing was timed"]
    if len(timed_rows):
        grid = timed_rows.assign(tflops=timed_rows["flops_per_s"] / 1e12).pivot_table(
            index=["dtype", "dim", "backward", "causal", "S"], columns="variant", values="tflops")
        text = ["TFLOP/s", grid.to_string(float_format=lambda x: f"{x:,.4g}", na_rep="")]
    missing = table[table["note"] != ""].groupby(["variant", "backward", "note"]).size()
    text += [f"{name}, {'forward + backward' if both else 'forward'}, {count} shapes: {note}"
             for (name, both, note), count in missing.items()]
    return "\n".join(text)


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m oplab.tools.bench_gpu",
                                     description=__doc__.split("\n")[0])
    parser.add_argument("--dry", action="store_true", help="tiny shapes, one round; always so without a GPU")
    parser.add_argument("--budget", type=float, default=330, help="seconds for all (default: 330)")
    parser.add_argument("--out", metavar="FOLDER", help="write there instead")
    asked = parser.parse_args(argv)
    if asked.budget <= 0:
        parser.error(f"--budget expects a number of seconds above 0, got {asked.budget:g}")
    if not asked.dry and jax.default_backend() != "gpu":
        print("there is no NVIDIA GPU here: only whether the script runs is tried (--dry)")
        asked.dry = True
    return asked


if __name__ == "__main__":
    sys.exit(main())
