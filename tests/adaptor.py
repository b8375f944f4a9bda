"""oplab under the names that outside cases ask for.

    OPLAB_ADAPTOR=adaptor PYTHONPATH=.:tests python CASES/_run.py 34 35

The cases judge any walker through these few functions. Operators are not defined here (the cases then take
JAX's own), nor is `report_text`: case 55 is a placeholder that fails as soon as the name exists, and
tests/test_cases.py does what it asks for.
"""

import os
import tempfile
from types import SimpleNamespace

import oplab
from oplab.bench import time_us
from oplab.cost import flops  # noqa: F401 (read by the cases)


def walk(f, *args, **options):
    """A walk as the cases read it: eqns and hlo as lists of dictionaries, the texts, JAX's own objects."""
    w = oplab.walk(f, *args, **options)
    equations = w.jaxpr.table.astype(object).where(w.jaxpr.table.notna(), None)
    eqns = [_equation(row) for row in equations.to_dict("records")]
    by_id = dict(zip(equations["equation"], eqns))
    hlo = [_instruction(row, by_id) for row in w.hlo.table.to_dict("records")]
    return SimpleNamespace(walk=w, eqns=eqns, hlo=hlo, closed=w.traced.jaxpr, lowered=w.lowered,
                           compiled=w.compiled, stablehlo=w.stablehlo.text, text=w.hlo.text)


def _equation(row):
    """The nearest line, a library's perhaps, and `script_line`: the one of the user's that led there."""
    return {"prim": row["primitive"], "path": tuple(row["equation"].split(".")),
            "file": row["library_file"] or row["file"], "line": row["library_line"] or row["line"],
            "func": None, "n_in": len(row["inputs"]), "n_out": len(row["outputs"]),
            "effects": list(row["effects"]), "stack": row["scope"], "script_line": row["line"]}


def _instruction(row, by_id):
    owners = [by_id[e] for e in row["equations"]]
    return {"name": row["instruction"], "op": row["opcode"], "comp": row["computation"],
            "op_name": row["op_name"] or None, "line": owners[0]["line"] if owners else None,
            "file": owners[0]["file"] if owners else None}


def render_html(w):
    with tempfile.TemporaryDirectory() as folder:
        with open(w.walk.save(os.path.join(folder, "walk.html")), encoding="utf-8") as page:
            return page.read()


def render_dot(w):
    return None  # no graph yet


def time_fn(f, *args):
    """Seconds for one call."""
    return time_us(f, *args) / 1e6
