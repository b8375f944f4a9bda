"""The linked page: one file that needs nothing else, text that stays text, lines that find their relatives.

What a person does is done by a real browser where there is one (see `browser.py`): pages are opened from a
file, clicked and typed into, and what lights up is read back.
"""

import base64
import copy
import hashlib
import html
import json
import re
import zlib
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import pytest
from browser import Browser, chromium

import oplab
from oplab.views import highlight
from oplab.views.page import embed, render, visible
from oplab.views.page.model import TEXTS, model

HOSTILE = [
    "<script>window.pwned=1</script>", "</script><img src=x onerror=window.pwned=1>", "<!--<script>", "]]>",
    "a\"b'c`d", "&lt;b&gt;&amp;", "javascript:window.pwned=1", "\u202eright to left\u202c", "nul\x00nul",
    "bell\x07", "\u2028line", "\ud800lone", "$policy ${script} $$", "{{x}} %s {0}", "noscript></noscript><b>",
    "x" * 5000, "🙂 行列 עברית",
]

# A small walk, by hand: three lines, a nested call, a fusion, a library's kernel, an absorbed equation.

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


# ---- the file --------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself():
    page = render(walk())
    elements = Elements(page)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", page)
    reaching = {"src", "href", "srcset", "action", "style"}
    assert not [(tag, a) for tag, a in elements.found if reaching & set(a)]
    assert not [a for _, a in elements.found if any(name.startswith("on") for name in a)]
    assert not re.search(r"(inner|outer|Adjacent)HTML|document\.write|eval\(|fetch\(|XMLHttp", page)


def test_the_content_security_policy_allows_this_style_and_this_script_only():
    elements = Elements(render(walk()))
    policy = next(a["content"] for _, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, key in (("style-src", ("style", None)), ("script-src", ("script", None))):
        digest = base64.b64encode(hashlib.sha256(elements.text[key].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_stays_text(name):
    def shape(page):
        return [(tag, sorted(a)) for tag, a in Elements(page).found]

    page = render(hostile(name))
    assert shape(page) == shape(render(hostile("harmless")))
    page.encode("utf-8")
    data = json.loads(Elements(page).text["script", "data"])
    assert data["function"] == name
    assert data["texts"]["hlo"].endswith(name)
    assert not re.search("[\x00-\x08\u202a-\u202e\u2028\u2029]", page)
    assert shape(embed(hostile(name)))[1:] == shape(embed(hostile("harmless")))[1:]


def test_hidden_characters_are_spelt_out():
    assert visible("a\u202eb\x00c") == "a[U+202E]b[U+0000]c"
    assert visible("行列 🙂 é\tx") == "行列 🙂 é\tx"


def test_the_frame_for_a_notebook_holds_the_page_and_is_shut():
    document = walk()
    frame = embed(document)
    (tag, attributes), *below = Elements(frame).found
    assert tag == "iframe" and attributes["srcdoc"] == render(document)
    # Where frames are cut out, as in a notebook that is not trusted, a table of the kernels is left.
    plain = {"details", "summary", "table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in below} <= plain
    assert all(row[0] in frame.partition("</iframe>")[2] for row in document["summary"]["rows"])
    assert attributes["sandbox"] == "allow-scripts"
    assert attributes["height"] == "600" and "f" in attributes["title"]


def test_small_pages_are_small_and_the_same_every_time(monkeypatch):
    page = render(walk())
    assert len(page.encode()) < 100_000
    assert render(copy.deepcopy(walk())) == page
    slower = walk()
    slower["stages"]["execution"]["text"] = "2 runs, median wall time 77.0 us"
    for row in slower["summary"]["rows"]:
        row[6:] = [3, row[7] * 7.7, 0.77, 0.077]
    assert render(slower) != page
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert render(slower) == render(walk())
    assert "9.0 us" not in render(walk()) and "77" not in json.dumps(model(slower)["rows"]["kernels"])


# ---- the links -------------------------------------------------------------------------------------------


def test_what_links_say_beyond_the_columns_is_kept():
    data = model(walk())
    number = {e["id"]: n for n, e in enumerate(data["equations"])}
    hlo = {row["label"]: row for row in data["rows"]["hlo"]}
    assert hlo["max_fusion"]["equations"] == [number["e1.jaxpr.e0"]]
    assert hlo["max_fusion"]["more"] == [number["e2"]], "the absorbed equation lives on in the fusion"
    assert data["pairs"] == [["hlo", 0, "kernels", 2, 0]], "parameter and kernel: no equation joins them"
    assert data["equations"][number["e1.jaxpr.e0"]]["parent"] == number["e1"]
    assert data["coverage"] == [2, 1, 1]  # the parameter computes nothing


def test_a_walk_with_parts_missing_still_renders():
    bare = {"schema": "oplab.walk/1", "function": "f", "target": "cpu"}
    bare["stages"] = {"jaxpr": walk()["stages"]["jaxpr"]}
    data = model(bare)
    assert not data["executed"] and len(data["equations"]) == 4
    assert "max c 0.0" in render(bare)


def test_every_line_of_a_real_walk_can_be_reached():
    def f(x, ws):
        h, sums = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, ws)
        return jnp.where(sums.sum() > 0, h, -h)

    document = oplab.walk(f, jnp.ones((4, 8)), jnp.ones((3, 8, 8))).to_json()
    data = model(json.loads(json.dumps(document)))
    for name in TEXTS:
        lines = data["texts"][name].split("\n")
        columns = document["stages"][name]["table"]["columns"]
        wanted = [row[columns.index("text_line")] for row in document["stages"][name]["table"]["rows"]]
        assert wanted == [row["line"] for row in data["rows"][name]]
        assert all(1 <= line <= len(lines) and lines[line - 1].strip() for line in wanted), name
    assert len(render(document).encode()) < 500_000


# ---- the colours -----------------------------------------------------------------------------------------

# language -> a line, and the words in it that must be coloured
SAMPLES = {
    "python": ('    y = np.exp(x) + "1"  # note', {'"1"', "# note"}),
    "jaxpr": ("    b:f32[8] = reduce_sum[axes=(0,) out_sharding=None] a", {"reduce_sum", "f32[8]", "axes"}),
    "mlir": ('  %3 = stablehlo.add %1, %arg0 : tensor<4x8xf32> loc("x")',
             {"stablehlo.add", "%arg0", "tensor<4x8xf32>"}),
    "hlo": ('  ROOT %dot.1 = f32[8,8]{1,0} dot(%x, %w), dims={1}, metadata={op_name="a/b"}',
            {"ROOT", "%dot.1", "f32[8,8]{1,0}", "dot", 'metadata={op_name="a/b"}'}),
    "llvm": ("  %18 = load <8 x float>, ptr %17, align 4 ; note", {"load", "<8 x float>", "%17", "; note"}),
    "asm": ("    5d:  vmovups    ymm0, ymmword ptr [rbx + r9*4]", {"vmovups", "ymm0", "rbx", "ymmword ptr"}),
}


@pytest.mark.parametrize("language", highlight.LANGUAGES)
def test_colouring_loses_no_character_and_finds_the_words(language):
    line, words = SAMPLES[language]
    spans = list(highlight.spans(line, language))
    assert "".join(text for _, text in spans) == line
    assert words <= {text.strip() for name, text in spans if name}
    for odd in ("", "\x00\u202e", '"unclosed', "metadata={" * 500, "%" * 9000):
        assert "".join(text for _, text in highlight.spans(odd, language)) == odd


def test_an_unknown_language_is_refused():
    with pytest.raises(ValueError, match="one of python, jaxpr"):
        highlight.lexer("cobol")


# ---- a person with a browser -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    opened = Browser(chromium(), tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@pytest.fixture
def page(browser, tmp_path):
    """Open a document's page. At the end nobody has complained, and nothing was asked of the network."""
    def show(document, address=""):
        file = tmp_path / "walk.html"
        file.write_text(render(document), encoding="utf-8")
        browser.errors.clear()
        browser.open(file, address)
        return browser

    yield show
    assert browser.errors == []


def line(pane, text):
    return f"[...document.querySelectorAll('#view-{pane} .line')].find(l => l.textContent.includes({text!r}))"


def lit(shown, pane, how=""):
    """The numbers of the lit lines of a pane, counted from 1."""
    lines = f"[...document.querySelectorAll('#view-{pane} .line.lit{how}')]"
    return shown.run(f"{lines}.map(l => Number(l.dataset.i) + 1)")


def text(shown, selector):
    return shown.run(f"document.querySelector({selector!r}).textContent")


def test_a_click_lights_up_all_relatives_in_all_panes(page):
    shown = page(walk())
    shown.click(line("script", "relu(c)"))
    assert lit(shown, "script", ".origin") == [4]
    assert lit(shown, "jaxpr") == [5, 6, 7, 8, 9, 10]  # the call over all its lines, and what is inside
    assert lit(shown, "stablehlo") == [3]
    assert lit(shown, "hlo") == [5, 11]
    assert shown.run("document.querySelector('#pane-kernels select').value") == "max_fusion"
    assert "max_fusion" in shown.until("document.querySelector('#view-kernels').innerText")
    assert text(shown, "#view-time .lit").startswith("max_fusion")
    shown.click(line("script", "relu(c)"))  # once more lets go
    assert lit(shown, "jaxpr") == []


@pytest.mark.parametrize("address, expected", [
    ("#e0", {"script": [3], "jaxpr": [2, 3, 4], "stablehlo": [2], "hlo": [9]}),
    ("#e1", {"script": [4], "jaxpr": [5, 6, 7, 8, 9, 10], "stablehlo": [3], "hlo": [5, 11]}),
    ("#e1.jaxpr.e0", {"script": [4], "jaxpr": [5, 6, 7, 8, 9, 10], "stablehlo": [3], "hlo": [5, 11]}),
    ("#e2", {"script": [5], "jaxpr": [11], "stablehlo": [4], "hlo": [5, 11]}),
    ("#hlo:p", {"script": [], "jaxpr": [], "stablehlo": [], "hlo": [4]}),
    ("#kernels:dot.1", {"script": [3], "jaxpr": [2, 3, 4], "stablehlo": [2], "hlo": [9]}),
    ("#kernels:max_fusion", {"script": [4, 5], "jaxpr": [5, 6, 7, 8, 9, 10, 11], "stablehlo": [3, 4],
                             "hlo": [4, 5, 11]}),
])
def test_the_address_selects_and_links_run_both_ways(page, address, expected):
    shown = page(walk(), address)
    assert {pane: lit(shown, pane) for pane in expected} == expected


def test_exact_inferred_and_the_compilers_own_look_different(page):
    shown = page(walk(), "#e2")
    assert lit(shown, "hlo", ".inferred") == [5, 11]
    shown = page(walk(), "#e1.jaxpr.e0")
    assert lit(shown, "hlo", ".exact") == [5, 11] and 5 in lit(shown, "jaxpr", ".inside")
    shown = page(walk(), "#hlo:copy.1")
    assert lit(shown, "hlo", ".compiler") == [10]
    assert "compiler's own" in text(shown, "#said")
    shown = page(walk(), "#hlo:dot.1")
    assert "its operands say so" in text(shown, "#said")


def test_pointing_shows_and_the_keyboard_moves(page):
    shown = page(walk())
    shown.mouse(line("hlo", "%dot.1 ="), "mouseMoved")
    assert shown.until("document.querySelectorAll('#view-script .lit').length") == 1
    shown.press("ArrowDown")  # from nowhere: the first linked line of the first pane
    assert lit(shown, "script", ".origin") == [3]
    shown.press("ArrowDown")
    assert lit(shown, "script", ".origin") == [4]
    shown.press("ArrowRight")
    assert shown.run("document.activeElement.id") == "view-jaxpr"
    shown.press("Escape")
    assert lit(shown, "script") == [] and lit(shown, "jaxpr") == []
    shown.press("/", "/")
    assert shown.run("document.activeElement.id") == "query"
    shown.call("Input.insertText", text="multiply")
    assert text(shown, "#matches") == "1 of 1"
    assert lit(shown, "stablehlo", ".origin") == [4]


def test_a_librarys_kernel_says_so_and_time_that_was_not_measured_too(page):
    shown = page(walk(), "#kernels:dot.1")
    said = shown.until("document.querySelector('#pane-kernels .note').innerText")
    assert "Eigen does the work of dot.1" in said and "options={'x': ''}" in said
    assert text(shown, "#pane-time .cell.number") == "5.00 µs"
    document = walk()
    del document["stages"]["execution"]
    shown = page(document)
    assert "Not executed" in shown.run("document.querySelector('#pane-time').innerText")


def test_the_ledger_the_passes_and_the_summary(page):
    shown = page(walk(), "#e2&view=fates")
    assert "absorbed" in text(shown, "#view-fates .origin")
    shown.run("document.querySelector('#view-fates .origin .go').click()")  # the pass that did it
    assert shown.until("document.querySelector('#pane-passes .out')?.textContent").startswith("− %mul.1")
    assert text(shown, "#pane-passes [aria-current=true]").startswith("algsimp")
    shown.run("document.querySelector('#tab-summary').click()")
    assert shown.run("document.querySelectorAll('#view-summary .line').length") == 3
    assert "512" in text(shown, "#view-summary .line")


def test_long_texts_are_drawn_a_window_at_a_time(page):
    document = walk()
    hlo = document["stages"]["hlo"]
    first = hlo["text"].count("\n") + 2
    hlo["text"] += "".join(f"\n  %add.{n} = f32[8]{{0}} add(%x, %y)" for n in range(40_000))
    hlo["table"]["rows"] += [[f"add.{n}", "add", "main", None, ["e0"], "exact", "", first + n]
                             for n in range(40_000)]
    shown = page(document)
    assert shown.run("document.querySelectorAll('#view-hlo .line').length") < 200
    shown.run("document.querySelector('#view-hlo').scrollTop = 1e9")
    shown.until(line("hlo", "%add.39999 =") + " !== undefined")
    took = shown.run("""(() => {
        const start = performance.now();
        document.querySelectorAll('#view-script .line')[2].click();
        document.body.offsetHeight;
        return performance.now() - start;
    })()""")
    assert text(shown, "#pane-hlo .count") == "40001 lit"
    assert took < 1000


@pytest.mark.parametrize("name", HOSTILE[:12], ids=range(12))
def test_hostile_text_stays_text_in_the_browser(page, name):
    shown = page(hostile(name))
    shown.click(line("script", "relu") if "relu" not in name else line("script", "d ="))
    for view in ("fates", "passes", "summary"):
        shown.run(f"document.querySelector('#tab-{view}').click()")
    assert shown.run("window.pwned") is None
    assert shown.run("document.querySelectorAll('img, #panes script, #panes iframe').length") == 0
    assert visible(name) in text(shown, "#view-passes") + text(shown, "h1")


@pytest.mark.parametrize("language", highlight.PATTERNS)
def test_the_page_colours_as_pygments_does(page, language):
    document = walk()
    sample = SAMPLES[language][0]
    stage = {"jaxpr": "jaxpr", "mlir": "stablehlo", "hlo": "hlo"}.get(language)
    if stage:
        document["stages"][stage] = {"text": sample, "table": table("text_line")}
    else:
        document["code"]["max_fusion"] = {language: sample}
    shown = page(document, "#kernels:max_fusion") if not stage else page(document)
    where = f"#view-{stage or 'kernels'} .line"
    shown.until(f"!!document.querySelector('{where}')")
    spans = f"[...document.querySelector('{where}').querySelectorAll('[class^=s-]')]"
    found = shown.run(f"{spans}.map(s => [s.className.slice(2), s.textContent])")
    expected = [[name, text.strip()] for name, text in highlight.spans(sample, language) if name]
    assert [[name, text.strip()] for name, text in found] == expected


def test_the_frame_works_in_a_notebook(browser, tmp_path):
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{embed(walk())}", encoding="utf-8")
    browser.errors.clear()
    browser.open(file)
    with browser.frame():
        browser.until("document.querySelectorAll('#view-script .line').length > 3")
        browser.run("document.querySelectorAll('#view-script .line')[3].click()")
        assert lit(browser, "hlo") == [5, 11]
    assert browser.errors == []


def test_packed_code_unpacks_to_what_was_put_in():
    elements = Elements(render(walk()))
    code = json.loads(zlib.decompress(base64.b64decode(elements.text["script", "code"])))
    assert code["texts"][code["kernels"]["max_fusion"]["asm"]].startswith("max_fusion:")
    assert html.unescape(code["passes"]).startswith("=== 0")
