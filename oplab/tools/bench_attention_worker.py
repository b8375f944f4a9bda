"""One variant in a process of its own: what runs in the process, and the handle by which it is asked.

Requests and answers are JSON, one a line, over the child's stdin and stdout. Two libraries in one process
would share thread pools, malloc and page faults; in a process each they share only the cores, one at a time.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from oplab.tools.bench_attention_problem import Missing, Prepared, Shape, probe

try:
    import resource
except ImportError:  # Windows; os.times() answers there, in coarser steps
    resource = None

SAMPLE_S = 0.02  # short calls are repeated until one sample lasts about this long
MATMUL_SIZES = (1024, 1536, 2048)
OUTSIDE = ("torch", "onnxruntime", "matmul torch", "matmul numpy")  # of the variants, those that need no JAX
POOLS = ("NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


# In the process ---------------------------------------------------------------------------------------------


class Worker:
    """Answers the requests. Each method is one: its arguments and its result are JSON."""

    def __init__(self, variant: str) -> None:
        self.variant, self.ready = variant, None

    def prepare(self, shape: dict) -> dict:
        """Build every form, let each run, keep the fastest one. `first_s`: its first call, with compiling."""
        self.ready, best = None, 0.0
        for form, made in self._forms(Shape(**shape)).items():
            first_s = _seconds(made.call)
            again_s = _again_s(made.call, first_s)
            if made.flops / again_s > best:
                best, self.ready = made.flops / again_s, made
                calls = max(1, min(1000, round(SAMPLE_S / again_s)))
                answer = {"form": form, "first_s": first_s, "calls": calls,
                          "flops": made.flops, "bytes": made.bytes}
        self.calls = calls
        return answer | {"probe": probe(self.ready.results())}

    def sample(self) -> dict:
        """Microseconds of one call: wall, and over all threads in the program (user) and in the system."""
        if self.calls > 1:  # the others' turns have filled the caches, and one's own threads sleep
            for _ in range(1 + self.calls // 8):
                self.ready.call()
        before, start = processor_s(), time.perf_counter()
        for _ in range(self.calls):
            self.ready.call()
        wall, after = time.perf_counter() - start, processor_s()
        each = 1e6 / self.calls
        return {"wall_us": wall * each, "user_us": (after[0] - before[0]) * each,
                "system_us": (after[1] - before[1]) * each}

    def memory(self) -> dict:
        from oplab.memory import peak_bytes

        peak, how = peak_bytes(self.ready.call)
        return {"peak_bytes": peak, "peak_how": how}

    def result(self, file: str) -> dict:
        np.savez(file, *self.ready.results())
        return {}

    def _forms(self, shape: Shape) -> dict[str, Prepared]:
        """The modules are imported here, so that a torch process needs no JAX, and the other way round."""
        kind, _, library = self.variant.partition(" ")
        if self.variant in OUTSIDE:
            from oplab.tools import bench_attention_peers as module
        else:
            from oplab.tools import bench_attention_jax as module
        if kind != "matmul":
            return module.VARIANTS[self.variant](shape)
        product = module.matmul if library == "jax" else getattr(module, f"{library}_matmul")
        return {f"n = {n}": product(n, shape.dtype) for n in MATMUL_SIZES}


def processor_s() -> tuple[float, float]:
    """Seconds of all threads so far, in the program and in the operating system."""
    if resource is None:
        return os.times()[:2]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _again_s(call: Any, first_s: float) -> float:
    """Seconds of a call that is not the first: the least of two, and of as many as fit in a sample."""
    found, end = [_seconds(call)], time.perf_counter() + SAMPLE_S
    while first_s < 1 and (len(found) < 2 or time.perf_counter() < end):
        found.append(_seconds(call))
    return min(found)


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    variant, worker = sys.argv[1], Worker(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ["NPROC"])])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    requests = {name: getattr(worker, name) for name in ("prepare", "sample", "memory", "result")}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = requests[request.pop("do")](**request)
        except Missing as missing:
            answer = {"missing": str(missing)}
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            answer = {"missing": f"{variant} failed: {type(error).__name__}: {first[:200]}"}
        print(json.dumps(answer), file=out, flush=True)


# Outside it -------------------------------------------------------------------------------------------------


class Process:
    """The handle: `ask` sends a request and waits for its answer; raises `Missing` with the sentence."""

    def __init__(self, variant: str, python: str, threads: int) -> None:
        root = str(Path(__file__).parents[2])  # another interpreter has no oplab of its own
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": paths, **dict.fromkeys(POOLS, str(threads))}
        command = [python, "-m", "oplab.tools.bench_attention_worker", variant]
        self.variant = variant
        try:
            self.child = subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError as error:
            raise Missing(f"{python} could not be started: {error.strerror}") from error

    def ask(self, do: str, **request: Any) -> dict:
        try:
            print(json.dumps({"do": do, **request}), file=self.child.stdin, flush=True)
            line = self.child.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Missing(f"its process ended during {do!r}, with status {self.child.wait()}")
        answer = json.loads(line)
        if "missing" in answer:
            raise Missing(answer["missing"])
        return answer

    def close(self) -> None:
        for pipe in (self.child.stdin, self.child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


def quartiles(samples: list[float]) -> tuple[float, float]:
    """(median, interquartile range)."""
    low, _, high = statistics.quantiles(samples, method="inclusive") if len(samples) > 1 else samples * 3
    return statistics.median(samples), high - low


if __name__ == "__main__":
    main()
