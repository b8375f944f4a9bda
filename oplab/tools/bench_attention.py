"""The attention benchmark: oplab's native kernel beside every peer, timed so that a ratio means something.

    python -m oplab.tools.bench_attention                                 forward, some shapes, minutes
    python -m oplab.tools.bench_attention --full                          every promised figure (an hour)
    python -m oplab.tools.bench_attention --seq 1024,4096 --causal yes --backward
    python -m oplab.tools.bench_attention --python PATH                   torch and onnxruntime from there
    python -m oplab.tools.bench_attention --limit --memory --error --json FILE

One process for each variant, each with the same number of threads, on the same cores, in its own layout.
They take turns (A B C A B C); a ratio is the median of the ratios within the rounds, so that a machine that
gets slower gets slower for both. The best form of a variant is chosen anew at every shape. All variants must
agree on the numbers before any is timed. Method and FLOPs as in FlashAttention's papers (arXiv 2205.14135,
2307.08691). The table at the end holds each promised figure against what was measured; the exit status is 1
when one that was measured is missed.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import psutil

from oplab.tools.bench_attention_problem import Shape
from oplab.tools.bench_attention_rounds import AGREE, error_rows, memory_rows, products, time_shape
from oplab.tools.bench_attention_tables import plain, readable, readable_errors, readable_memory
from oplab.tools.bench_attention_verdict import verdict
from oplab.tools.bench_attention_worker import OUTSIDE, Process

VARIANTS = ("native", "torch", "onnxruntime", "jax.nn", "jit naive", "jit with barriers", "eager",
            "chunked lax")
FULL_SEQ, QUICK_SEQ = [128 << i for i in range(7)], [512, 1024, 2048]
MEMORY_SEQ = [1024 << i for i in range(5)]


def main(argv: list[str] | None = None) -> int:
    """Print the tables. Returns 0 when every figure that was measured is reached, 1 when one is missed."""
    asked = read_arguments(argv)
    about = ran_on(asked)
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    with contextlib.ExitStack() as stack:
        def start(variant: str) -> Process:
            python = asked.python if variant in OUTSIDE and variant != "matmul numpy" else sys.executable
            process = Process(variant, python, asked.threads)
            stack.callback(process.close)
            return process

        processes = {name: start(name) for name in asked.variants}
        limits = {dtype: products(start, dtype) for dtype in asked.dtype} if asked.limit else {}
        times, memory, errors = [], [], []
        for shape in shapes(asked, asked.seq, asked.heads):
            found = time_shape(processes, shape, limits.get(shape.dtype, {}), asked.rounds, asked.budget)
            print(f"\n{shape}\n{readable(found)}", flush=True)
            times += found
        if asked.memory:
            for shape in shapes(asked, asked.memory_seq, [8]):
                memory += memory_rows(processes, shape)
            print(f"\npeak memory of one call, MiB\n{readable_memory(memory)}", flush=True)
        if asked.error:
            for shape in shapes(asked, [1024], asked.heads[:1]):
                errors += error_rows(processes, shape)
            print(f"\nlargest difference from float64\n{readable_errors(errors)}", flush=True)
    tables = {"times": pd.DataFrame(times), "memory": pd.DataFrame(memory), "errors": pd.DataFrame(errors)}
    if asked.json:
        text = {"about": about} | {name: plain(table) for name, table in tables.items()}
        Path(asked.json).write_text(json.dumps(text, indent=1) + "\n")
    figures = verdict(**tables)
    print(f"\nfigures\n{figures.to_string(index=False)}")
    missed = (figures["reached"] == "NO").sum()
    print(f"\n{missed} missed" if missed else "\nall that were measured are reached")
    return int(missed > 0)


def shapes(asked: argparse.Namespace, seqs: list[int], heads: list[int]) -> Iterator[Shape]:
    causal = {"both": [False, True], "yes": [True], "no": [False]}[asked.causal]
    backward = [False, True] if asked.full else [asked.backward]
    for dtype, both, dim, head, mask, seq in itertools.product(
            asked.dtype, backward, asked.dim, heads, causal, seqs):
        yield Shape(seq, head, dim, mask, both, dtype)


def ran_on(asked: argparse.Namespace) -> dict:
    """What the numbers belong to."""
    names = "processor model name".split()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = next(line.partition(":")[2].split() for line in lines if line.startswith("model name"))
    spent = psutil.cpu_percent(interval=0.5)
    return {"processor": " ".join(names), "threads": asked.threads, "cores": os.cpu_count(),
            "system": platform.platform(), "Python": platform.python_version(), "JAX": jax.__version__,
            "NumPy": np.__version__, "date": time.strftime("%Y-%m-%d"), "busy at the start": f"{spent:.0f}%"}


# What is asked ----------------------------------------------------------------------------------------------


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m oplab.tools.bench_attention",
                                     description=__doc__.split("\n")[0])
    numbers = lambda text: [int(n) for n in text.split(",")]
    names = lambda text: text.split(",")
    add = parser.add_argument
    add("--seq", type=numbers, help="lengths S, such as 128,1024")
    add("--heads", type=numbers, help="numbers of heads, such as 4,8,16 (the batch is 1)")
    add("--dim", type=numbers, help="features of a head, such as 64,128")
    add("--causal", choices=["both", "yes", "no"], default="both")
    add("--backward", action="store_true", help="forward and backward together: gradients of sum(o * do)")
    add("--dtype", type=names, default=["float32"], help="float32, bfloat16, or both with a comma")
    add("--variants", type=names, default=list(VARIANTS), help=f"some of {', '.join(VARIANTS)}, xla")
    add("--python", default=sys.executable, help="the interpreter that has torch and onnxruntime")
    add("--threads", type=int, default=min(2, os.cpu_count() or 1), help="for every variant (default: 2)")
    add("--rounds", type=int, default=9, help="at most so many rounds a shape (default: 9)")
    add("--budget", type=float, default=20, help="seconds a shape, but three rounds (default: 20)")
    add("--memory", action="store_true", help="peak memory against S, with the exponent of its growth")
    add("--memory-seq", type=numbers, default=MEMORY_SEQ, help="lengths for --memory, each twice the last")
    add("--error", action="store_true", help="largest difference from float64")
    add("--limit", action="store_true", help="share of the FLOP/s of the fastest matrix product here")
    add("--json", metavar="FILE", help="write all tables there too")
    add("--full", action="store_true", help="every shape, both directions, with limit, memory and error")
    asked = parser.parse_args(argv)
    unknown = [v for v in asked.variants if v not in (*VARIANTS, "xla")]
    unknown += [d for d in asked.dtype if d not in AGREE]
    if unknown:
        parser.error(f"there is no variant or dtype called {', '.join(unknown)}; --help lists them")
    if asked.threads > (os.cpu_count() or 1):
        parser.error(f"--threads {asked.threads}: this machine has {os.cpu_count()} cores")
    if asked.full:
        asked.limit = asked.memory = asked.error = True
    asked.seq = asked.seq or (FULL_SEQ if asked.full else QUICK_SEQ)
    asked.heads = asked.heads or ([4, 8, 16] if asked.full else [8])
    asked.dim = asked.dim or ([64, 128] if asked.full else [64])
    return asked


if __name__ == "__main__":
    sys.exit(main())
