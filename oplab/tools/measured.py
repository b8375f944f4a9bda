"""The figures that are never the same twice: time of the kernels, cost of the lab, memory."""

import gc
import re
import statistics
import time
from collections import Counter

import jax
import jax.numpy as jnp
import pandas as pd
import psutil

import oplab
from oplab.tools.golden import program, timed

LONG_US = 5000  # below this the call's own overhead is not small beside the kernels


# Time: every kernel has a median, a spread and a count; together they fill the wall time of the call

def times(names, repeats=20):
    return pd.DataFrame([times_row(name, repeats) for name in [*names, *timed()]])


def times_row(name, repeats):
    """`busy / wall` compares the two in the same run, so that a busy machine is busy for both.

    `alone us` is the best time of the plain jitted call, without a profiler. A kernel outside the entry may
    never run (the condition of a loop whose trip count XLA knows); those of the entry must.
    """
    function, args = program(name)
    walk = oplab.walk(function, *args).execute(repeats=repeats)
    events, summary = walk.execution.table, walk.summary()
    runs = Counter(events.drop_duplicates(["run", "instruction"])["instruction"])
    spread = summary["instruction"][summary["spread_us"].notna()]
    complete = {kernel for kernel in spread if runs[kernel] == repeats}
    table = walk.kernels.table
    entry = set(table["instruction"][table["computation"] == entry_name(walk.hlo.text)])
    busy = list(busy_us(events, repeats))
    share = statistics.median(b / w for b, w in zip(busy, walk.wall_us, strict=True))
    alone = best_us(jax.jit(function), args, repeats)
    wall, long = statistics.median(walk.wall_us), min(alone, *walk.wall_us) > LONG_US
    return {"program": name, "kernels": len(summary), "timed": len(complete), "of entry": len(entry),
            "entry timed": len(entry & complete), "alone us": round(alone, 1), "wall us": round(wall, 1),
            "busy us": round(statistics.median(busy), 1), "busy / wall": round(share, 3),
            "target": "all of entry, 0.9 to 1.1" if long else "all of entry",
            "ok": entry <= complete and (not long or 0.9 <= share <= 1.1)}


def entry_name(hlo_text):
    return re.search(r"^ENTRY %?([\w.\-]+)", hlo_text, re.MULTILINE)[1]


def best_us(call, args, repeats):
    return 1e6 * min(seconds(lambda: jax.block_until_ready(call(*args))) for _ in range(repeats))


def busy_us(table, repeats):
    """The union of each run's intervals: kernels that run at the same time count once."""
    for run in range(repeats):
        busy = reached = 0.0
        intervals = table[table["run"] == run][["start_us", "duration_us"]]
        for start, duration in sorted(intervals.itertuples(index=False)):
            busy += max(0.0, start + duration - max(start, reached))
            reached = max(reached, start + duration)
        yield busy


# Cost of the lab: a walk over a plain trace, lower and compile

def cost(names, full=False):
    rows = [cost_row("transformer", "texts and tables", read, 1.5, 7),
            cost_row("transformer", "dumps too", read_with_dumps, 3.0, 5)]
    if full:
        rows.append(cost_row("transformer_200", "texts and tables", read, 1.5, 3))
    return pd.DataFrame(rows)


def cost_row(name, what, read, target, rounds):
    function, args = program(name)
    plain_s, walk_s = [], []
    for _ in range(rounds + 1):  # interleaved, so that a busy machine is busy for both; the first round warms
        plain_s.append(seconds(lambda: jax.jit(anew(function)).trace(*args).lower().compile()))
        walk_s.append(seconds(lambda: read(oplab.walk(anew(function), *args))))
    ratios = [walk / plain for walk, plain in zip(walk_s[1:], plain_s[1:])]
    ratio = statistics.median(ratios)
    return {"program": name, "read": what, "plain s": round(statistics.median(plain_s[1:]), 3),
            "walk s": round(statistics.median(walk_s[1:]), 3), "least": round(min(ratios), 2),
            "most": round(max(ratios), 2), "ratio": round(ratio, 2), "target": f"<= {target}",
            "ok": ratio <= target}


def anew(function):
    """The same function as a new object, which no cache of JAX knows."""
    return lambda *args: function(*args)


def seconds(call):
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def read(walk):
    return [(s.text, s.table) for s in (walk.script, walk.jaxpr, walk.stablehlo, walk.hlo)]


def read_with_dumps(walk):
    return walk.fates, [(s.text, s.table) for s in (walk.passes, walk.kernels)], read(walk)


# Memory: many walks in one process

def memory(names, walks=500):
    x = jnp.ones((8, 8))

    def small(x):
        return jnp.tanh(x @ x.T).sum()

    def plain():
        jax.jit(anew(small)).lower(x).compile().as_text()

    return pd.DataFrame([
        memory_row("plain compile", plain, walks, None),
        memory_row("walk", lambda: read(oplab.walk(anew(small), x)), walks, 50),
        memory_row("walk with dumps", lambda: read_with_dumps(oplab.walk(anew(small), x)), walks // 5, 50)])


def memory_row(what, call, times, target):
    for _ in range(20):  # what is allocated once and kept is no leak
        call()
    before = resident_bytes()
    for _ in range(times):
        call()
    grown = (resident_bytes() - before) / 2**20
    return {"what": what, "times": times, "grown MB": round(grown, 1),
            "target": f"<= {target}" if target else "", "ok": target is None or grown <= target}


def resident_bytes():
    gc.collect()
    return psutil.Process().memory_info().rss
