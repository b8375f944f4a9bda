"""The GPU benchmark's second half: which kernels ran, and how long each, as the profiler saw them.

    python -m oplab.tools.bench_gpu_kernels [--dry] --budget 60

A process of its own, in which XLA keeps no command buffers: inside one, kernels have no names of their own.
It prints one JSON list of rows. A row is one kernel of one variant at one shape: `kernel`, `instruction`,
`launches` (of one call), `median_us` (of one launch), `total_us` (of one call).
"""

from __future__ import annotations

import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict

import jax

from oplab.tools.bench_attention_problem import Shape
from oplab.tools.bench_gpu_variants import VARIANTS, inputs, shapes, words

RUNS = 5
FLAG = "--xla_gpu_enable_command_buffer="


def ask(dry: bool, budget_s: float) -> tuple[list[dict], str]:
    """The rows, from a fresh process, and in words why there are none."""
    command = [sys.executable, "-m", "oplab.tools.bench_gpu_kernels", *["--dry"] * dry,
               "--budget", str(budget_s)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}".strip()
    env = {**os.environ, "XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=budget_s + 60)
    except subprocess.TimeoutExpired:
        return [], "the profiler's process took too long"
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        return [], f"the profiler's process ended with status {done.returncode}"
    return json.loads(lines[-1]), ""


def main() -> None:
    dry, budget_s = "--dry" in sys.argv, float(sys.argv[-1])
    started, rows = time.perf_counter(), []
    for shape in chosen(shapes(dry), dry):
        for name, make in VARIANTS.items():
            described = {"S": shape.seq, "variant": name, "dim": shape.dim, "causal": shape.causal,
                         "backward": shape.backward, "dtype": shape.dtype}
            if time.perf_counter() - started > budget_s:
                rows.append(described | {"note": "left out: the time was up"})
                continue
            try:
                rows += [described | kernel for kernel in kernels(make(shape), shape)]
            except Exception as error:
                rows.append(described | {"note": f"did not run: {words(error)}"})
    print(json.dumps(rows))


def chosen(every: list[Shape], dry: bool) -> list[Shape]:
    """A kernel's share changes little from shape to shape: one length, one dtype, one size of head do."""
    if dry:
        return every[:1]
    return [shape for shape in every if (shape.seq, shape.dim, shape.dtype) == (4096, 128, "bfloat16")]


def kernels(run, shape: Shape) -> list[dict]:
    given = inputs(shape)
    jax.block_until_ready(run(*given))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own frames would drown the kernels
    with tempfile.TemporaryDirectory(prefix="oplab-", ignore_cleanup_errors=True) as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(RUNS):
                jax.block_until_ready(run(*given))
        file, = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        with warnings.catch_warnings():  # jaxlib makes its types on first use, with a warning
            warnings.simplefilter("ignore", DeprecationWarning)
            profile = jax.profiler.ProfileData.from_file(file)
            found = events(profile)
    return [{"kernel": kernel, "instruction": instruction, "launches": len(times) / RUNS,
             "median_us": statistics.median(times), "total_us": sum(times) / RUNS}
            for (kernel, instruction), times in found.items()]


def events(profile) -> dict[tuple[str, str], list[float]]:
    """(kernel, HLO instruction) -> microseconds of each launch: streams of a GPU, threads of a CPU."""
    planes = list(profile.planes)
    device = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    found = defaultdict(list)
    for plane in device or planes:
        lines = list(plane.lines)
        streams = [line for line in lines if line.name.startswith("Stream")]
        for line in streams or lines:
            for event in line.events:
                stats = dict(event.stats)
                if "hlo_op" in stats:
                    found[event.name, str(stats["hlo_op"])].append(event.duration_ns / 1e3)
    return found


if __name__ == "__main__":
    main()
