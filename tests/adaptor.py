"""oplab under the names that outside cases ask for.

    OPLAB_ADAPTOR=adaptor PYTHONPATH=.:tests python CASES/_run.py 34 35

The cases judge any walker, and any operators, through these few functions. `report_text` is not defined: case
55 is a placeholder that fails as soon as the name exists, and tests/test_cases.py does what it asks for.
"""

import os
import tempfile
from types import SimpleNamespace

import oplab
from oplab import ops
from oplab.bench import time_us
from oplab.cost import flops  # noqa: F401 (read by the cases)

CAUSAL_ALIGN = "top_left"
EMPTY_ROW = "zero"
IMPLEMENTATION = os.environ.get("OPLAB_IMPLEMENTATION") or None  # None: the best one


def relu(x):
    return ops.relu(x, implementation=IMPLEMENTATION)


def matmul(a, b, preferred=None):
    return ops.matmul(a, b, preferred_element_type=preferred, implementation=IMPLEMENTATION)


def bias_add(x, b):
    return ops.bias_add(x, b, implementation=IMPLEMENTATION)


def softmax(x, axis=-1, where=None):
    return ops.softmax(x, axis=axis, where=where, implementation=IMPLEMENTATION)


def layernorm(x, scale=None, bias=None, eps=1e-5):
    return ops.layer_norm(x, scale, bias, eps=eps, implementation=IMPLEMENTATION)


def conv2d(x, w, stride=(1, 1), padding="VALID", dilation=(1, 1), groups=1, preferred=None):
    return ops.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups,
                      preferred_element_type=preferred, implementation=IMPLEMENTATION)


def attention(q, k, v, mask=None, causal=False, kv_len=None, scale=None, bias=None):
    return ops.attention(q, k, v, causal=causal, mask=mask, bias=bias, kv_len=kv_len, scale=scale,
                         implementation=IMPLEMENTATION)


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
