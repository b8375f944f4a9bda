"""The figures that are the same on every run: provenance, sameness, fates, kernels.

Every function takes the names of golden programs and returns a table, one row per program, with the target
beside what was found and a last column `ok`. `oplab.tools.score` prints it, tests/test_golden.py demands it.
"""

import ast
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import oplab
from oplab.tools.golden import program

FATES = ("kept", "fused", "merged", "folded", "absorbed", "dead", "library", "inlined")
VANISHED = ("merged", "folded", "absorbed", "dead")  # these must name the pass that did it
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}  # they compute nothing


@cache
def walked(name):
    """One walk per program, shared by the figures. Fates first: that one compile then serves every stage."""
    function, args = program(name)
    walk = oplab.walk(function, *args)
    _ = walk.fates
    return walk


# Provenance: what computes has an equation, every kernel has one and a line of the user's

def provenance(names):
    rows, total = [], Counter()
    for name in names:
        walk = walked(name)
        table = walk.hlo.table
        how = Counter(table["how"][~table["opcode"].isin(FREE)])
        total += how
        kernels = walk.kernels.table["equations"]
        equations = walk.jaxpr.table.dropna(subset=["line"])
        with_line = set(equations["equation"][equations["file"].str.endswith("golden.py")])
        owned = sum(len(owners) > 0 for owners in kernels)
        lined = sum(any(e in with_line for e in owners) for owners in kernels)
        row = provenance_row(name, how, 90)
        rows.append(row | {"kernels": len(kernels), "with equation": owned, "with line": lined,
                           "ok": row["ok"] and owned == lined == len(kernels)})
    rows.append(provenance_row("all of them", total, 95))
    return pd.DataFrame(rows)


def provenance_row(name, how, target):
    count = sum(how.values())
    named = percent(how["exact"] + how["inferred"], count)
    return {"program": name, "computing": count, "exact %": percent(how["exact"], count),
            "inferred %": percent(how["inferred"], count), "nobody's %": round(100 - named, 1),
            "named %": named, "target": f">= {target}", "ok": named >= target}


def percent(part, whole):
    return round(100 * part / whole, 1) if whole else 100.0


# Nothing changed: the tagged program is the program

def same(names):
    return pd.DataFrame([same_row(name) for name in names])


def same_row(name):
    function, args = program(name)
    plain, tagged = jax.jit(function).lower(*args).compile(), walked(name).compiled
    row, equal = {"program": name}, True
    for what, count in (("instructions", instruction_count), ("FLOPs", flops), ("temp bytes", temp_bytes)):
        row[what], row["tagged " + what] = count(plain), count(tagged)
        equal &= row[what] == row["tagged " + what]
    outputs = zip(jax.tree.leaves(plain(*args)), jax.tree.leaves(tagged(*args)), strict=True)
    bits = all(np.asarray(p).tobytes() == np.asarray(t).tobytes() for p, t in outputs)
    return row | {"results": "equal" if bits else "differ", "target": "equal", "ok": equal and bits}


def instruction_count(compiled):
    modules = compiled.runtime_executable().hlo_modules()
    return sum(len(c.instructions()) for module in modules for c in module.computations())


def flops(compiled):
    cost = compiled.cost_analysis() or {}
    return int((cost[0] if isinstance(cost, list) else cost).get("flops", 0))


def temp_bytes(compiled):
    return compiled.memory_analysis().temp_size_in_bytes


# Fates: every equation has exactly one, and what vanished names its pass

def fates(names):
    both = walked_two_lines()
    rows = [fates_row(name, walked(name)) for name in names]
    rows.append(fates_row("(x + 2) + 1", both) | {"ok": both_lines_reported(both)})
    return pd.DataFrame(rows)


def fates_row(name, walk):
    ledger = walk.fates
    count = Counter(ledger["fate"])
    passes = ledger["by_pass"][ledger["fate"].isin(VANISHED)]
    unnamed = sum(not isinstance(by, str) or not by for by in passes)
    once = sorted(ledger["equation"]) == sorted(walk.jaxpr.table["equation"])
    return {"program": name, "equations": len(walk.jaxpr.table), "with a fate": ledger["equation"].nunique(),
            **{fate: count[fate] for fate in FATES}, "no pass": unnamed, "target": "all, 0",
            "ok": once and set(count) <= set(FATES) and not unnamed}


TWO_LINES = """def two_lines(x):
    y = x + 2
    return y + 1
"""


def walked_two_lines():
    """Walked as a reader's own code would be: a line of oplab itself is no script line."""
    typed = {}
    exec(compile(TWO_LINES, "<two lines>", "exec"), typed)
    return oplab.walk(typed["two_lines"], jnp.arange(4))


def both_lines_reported(walk):
    """One addition is left, one is merged into it, and the ledger knows the lines of both."""
    ledger = walk.fates
    left = (walk.hlo.table["opcode"] == "add").sum()
    return bool(left == 1 and ledger["line"].nunique() == 2 and (ledger["fate"] == "merged").sum() == 1)


# Kernels: code, or a library's name with the reason and the switch; and the switch works

def kernels(names):
    return pd.DataFrame([kernels_row(name) for name in names])


def kernels_row(name):
    table = walked(name).kernels.table
    coded = table["stages"].map(len) > 0
    said = table["library"].notna() & (table["reason"] != "") & (table["switch"] != "") & ~coded
    switches = sorted({switch for switch in table["switch"][said] if switch.startswith("options=")})
    left = sum(kernels_left(name, switch) for switch in switches)
    neither = int((~coded & ~said).sum())
    return {"program": name, "kernels": len(table), "with code": int(coded.sum()), "library": int(said.sum()),
            "neither": neither, "switches": len(switches), "left after switching": left,
            "target": "0 neither, 0 left", "ok": not neither and not left}


def kernels_left(name, switch):
    """How many kernels still name that switch after it was thrown."""
    function, args = program(name)
    walk = oplab.walk(function, *args, options=ast.literal_eval(switch.removeprefix("options=")))
    return int((walk.kernels.table["switch"] == switch).sum())
