"""A small walk, by hand: three lines, a nested call, a fusion, a library's kernel, an absorbed equation.

`walk()` is its document, `hostile(name)` the same with a name wherever a person's or a file's text can stand.
"""

from html.parser import HTMLParser

SCRIPT = """# model.py
   1  def f(a, b):
   2      c = a @ b
   3      d = relu(c)
   4      return d * 1.0"""

JAXPR = """{ lambda ; a:f32[8,4] b:f32[4,8]. let
    c:f32[8,8] = dot_general[
      dimension_numbers=(([1], [0]), ([], []))
    ] a b
    d:f32[8,8] = jit[
      name=relu
      jaxpr={ lambda ; c:f32[8,8]. let
          d:f32[8,8] = max c 0.0:f32[]
        in (d,) }
    ] c
    e:f32[8,8] = mul d 1.0:f32[]
  in (e,) }"""

STABLEHLO = """func.func @main(%arg0: tensor<8x4xf32>) {
  %0 = stablehlo.dot_general %arg0, %arg1 : tensor<8x8xf32>
  %1 = stablehlo.maximum %0, %cst : tensor<8x8xf32>
  %2 = stablehlo.multiply %1, %cst : tensor<8x8xf32>
}"""

PASSES = """=== 0: (from StableHLO)
=== 3: algsimp   [simplification]
- %mul.1 = f32[8,8] multiply(%max.1, %one)
+ %x = f32[] y()"""

HLO = """HloModule jit_f

%fused (p: f32[8,8]) -> f32[8,8] {
  %p = f32[8,8]{1,0} parameter(0)
  ROOT %max.1 = f32[8,8]{1,0} maximum(%p, %p)
}

ENTRY %main (a: f32[8,4]) -> f32[8,8] {
  %dot.1 = f32[8,8]{1,0} dot(%a, %b)
  %copy.1 = f32[8,8]{1,0} copy(%dot.1)
  ROOT %max_fusion = f32[8,8]{1,0} fusion(%copy.1), kind=kLoop, calls=%fused
}"""

LLVM = """define void @max_fusion() {
  %1 = load float, ptr %0
}"""

ASM = """max_fusion:
     0:  vmaxps     ymm0, ymm0, ymm1
     4:  ret"""


def table(columns, *rows):
    return {"columns": columns.split(), "rows": [list(row) for row in rows]}


def stages():
    return {
        "script": (SCRIPT, table(
            "file line text equations text_line",
            ["model.py", 2, "c = a @ b", ["e0"], 3],
            ["model.py", 3, "d = relu(c)", ["e1", "e1.jaxpr.e0"], 4],
            ["model.py", 4, "return d * 1.0", ["e2"], 5])),
        "jaxpr": (JAXPR, table(
            "equation depth primitive file line text_line",
            ["e0", 0, "dot_general", "model.py", 2, 2],
            ["e1", 0, "jit", "model.py", 3, 5],
            ["e1.jaxpr.e0", 1, "max", "model.py", 3, 8],
            ["e2", 0, "mul", "model.py", 4, 11])),
        "stablehlo": (STABLEHLO, table(
            "op name equation equations text_line",
            ["op0", "func.func", None, [], 1],
            ["op1", "stablehlo.dot_general", "e0", ["e0"], 2],
            ["op2", "stablehlo.maximum", "e1.jaxpr.e0", ["e1.jaxpr.e0"], 3],
            ["op3", "stablehlo.multiply", "e2", ["e2"], 4])),
        "passes": (PASSES, table(
            "index pipeline pass changed instructions added removed text_line",
            [0, "", "(from StableHLO)", False, 4, 0, 0, 1],
            [3, "simplification", "algsimp", True, 3, 1, 1, 2])),
        "hlo": (HLO, table(
            "instruction opcode computation fusion equations how reason text_line",
            ["p", "parameter", "fused", "max_fusion", [], "compiler", "", 4],
            ["max.1", "maximum", "fused", "max_fusion", ["e1.jaxpr.e0"], "exact", "", 5],
            ["dot.1", "dot", "main", None, ["e0"], "inferred", "its operands say so", 9],
            ["copy.1", "copy", "main", None, [], "compiler", "", 10],
            ["max_fusion", "fusion", "main", None, ["e1.jaxpr.e0"], "exact", "", 11])),
        "kernels": ("", table(
            "instruction kind library equations stages reason switch",
            ["dot.1", "library", "Eigen", ["e0"], [], "XLA's runtime calls Eigen", "options={'x': ''}"],
            ["copy.1", "runtime", "XLA runtime (copy)", [], [], "a plain copy", "none: no code of its own"],
            ["max_fusion", "compiled", None, ["e1.jaxpr.e0"], ["llvm", "asm"], "", ""])),
        "execution": ("2 runs, median wall time 9.0 us", table(
            "run instruction start_us duration_us", [0, "dot.1", 0.0, 5.0])),
    }


def walk():
    return {
        "schema": "oplab.walk/1", "function": "f", "target": "cpu", "versions": {"jax": "9.9.9"},
        "options": {},
        "stages": {name: {"text": text, "table": rows} for name, (text, rows) in stages().items()},
        "links": table(
            "from_stage from_id to_stage to_id how",
            ["jaxpr", "e2", "hlo", "max.1", "inferred"],
            ["jaxpr", "e2", "hlo", "max_fusion", "inferred"],
            ["hlo", "p", "kernels", "max_fusion", "exact"],
            ["hlo", "max.1", "kernels", "max_fusion", "exact"],
            ["jaxpr", "e9", "hlo", "nowhere", "exact"]),
        "fates": table(
            "equation primitive line fate by_pass into",
            ["e0", "dot_general", 2, "library", "", "dot.1"],
            ["e1", "jit", 3, "inlined", "lowering", ""],
            ["e1.jaxpr.e0", "max", 3, "fused", "", "max_fusion"],
            ["e2", "mul", 4, "absorbed", "algsimp", "e1.jaxpr.e0"]),
        "summary": table(
            "instruction kind equations lines flops bytes runs median_us spread_us share",
            ["dot.1", "Eigen", ["e0"], ["model.py:2"], 512, 512, 2, 5.0, 1.0, 0.8],
            ["copy.1", "XLA runtime (copy)", [], [], 0, 512, 2, 0.25, 0.0, 0.04],
            ["max_fusion", "compiled", ["e1.jaxpr.e0", "e2"], ["model.py:3", "model.py:4"], 64, 512, 2, 1.0,
             0.5, 0.16]),
        "code": {"dot.1": {}, "copy.1": {}, "max_fusion": {"llvm": LLVM, "asm": ASM}},
    }


def hostile(name):
    """The same walk with `name` wherever a person's or a file's text can stand."""
    document = walk()
    document["function"], document["target"] = name, name
    document["versions"], document["options"] = {name: name}, {name: name}
    for part in document["stages"].values():
        part["text"] += "\n" + name
    other = dict.fromkeys(["max_fusion", "algsimp", "relu", "model.py", "Eigen", "max", "fused"], name)
    other |= {"dot.1": f"{name}.1", "its operands say so": name}

    def renamed(value):
        if isinstance(value, list):
            return [renamed(v) for v in value]
        return other.get(value, value) if isinstance(value, str) else value

    tables = [stage["table"] for stage in document["stages"].values()]
    for part in [*tables, document["links"], document["fates"], document["summary"]]:
        part["rows"] = renamed(part["rows"])
    document["code"] = {other.get(kernel, kernel): {form: f"{text}\n{name}" for form, text in forms.items()}
                        for kernel, forms in document["code"].items()}
    return document


class Elements(HTMLParser):
    """Every element of a page with its attributes; the text of scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.inside = [], {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = (tag, dict(attrs).get("id")) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.text[self.inside] = self.text.get(self.inside, "") + data
