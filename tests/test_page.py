"""The linked page: one file that needs nothing else, text that stays text, lines that find their relatives.

What a person does is done by a real browser where there is one (see `browser.py`): pages are opened from a
file, clicked and typed into, and what lights up is read back.
"""

import base64
import copy
import hashlib
import json
import re
import zlib

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from browser import line, lit, text
from hostile import NAMES
from page_walk import ASM, PASSES, Elements, hostile, table, walk

import oplab
from oplab.views import highlight
from oplab.views.page import embed, render, visible
from oplab.views.page.model import TEXTS, model
from oplab.views.page.pack import pack

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


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_hostile_text_stays_text(name):
    def shape(page):
        return [(tag, sorted(a)) for tag, a in Elements(page).found]

    page = render(hostile(name))
    assert shape(page) == shape(render(hostile("harmless")))
    page.encode("utf-8")
    data = json.loads(Elements(page).text["script", "data"])
    data = unpack(data) if isinstance(data, str) else data  # long data is packed
    assert data["function"] == name
    assert data["texts"]["hlo"][-len(name.split("\n")):] == name.split("\n")
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
    assert len(page.encode()) < 150_000  # style and script of all views, most of it
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


def test_a_line_with_two_equations_belongs_to_both():
    document = walk()
    jaxpr = document["stages"]["jaxpr"]["table"]
    rows, place = jaxpr["rows"], jaxpr["columns"].index("text_line")
    alone = model(document)["rows"]["jaxpr"]
    rows[1][place] = rows[0][place]
    shared = model(document)["rows"]["jaxpr"]
    both = sorted([*alone[0]["equations"], *alone[1]["equations"]])
    assert shared[0]["equations"] == shared[1]["equations"] == both
    assert [row["equations"] for row in shared[2:]] == [row["equations"] for row in alone[2:]]
    for row in rows:
        row[place] = None
    nowhere = model(document)["rows"]["jaxpr"]
    assert [row["equations"] for row in nowhere] == [row["equations"] for row in alone]


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
        lines = data["texts"][name]
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
    "ptx": ("\t@%p1 fma.rn.f32 \t%f3, %f1, 0f3F800000, [%rd5+16];  // note",
            {"%p1", "fma.rn.f32", "%f3", "0f3F800000", "16", "// note"}),
    "sass": ("        /*0040*/          @!P0 LDG.E.128 R4, desc[UR4][R2.64+0x10] ;  /* 0x04 */",
             {"/*0040*/", "P0", "LDG.E.128", "R4", "desc", "UR4", "R2.64", "0x10", "/* 0x04 */"}),
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
    shown.mouse(line("hlo", "%dot.1 ="))
    assert shown.until("document.querySelectorAll('#view-script .lit').length") == 1
    shown.press("ArrowDown")  # from nowhere: the first linked line of the first pane
    assert lit(shown, "script", ".origin") == [3]
    shown.press("ArrowDown")
    assert lit(shown, "script", ".origin") == [4]
    shown.press("ArrowRight")
    assert shown.run("document.activeElement.id") == "view-jaxpr"
    shown.press("Escape")
    assert lit(shown, "script") == [] and lit(shown, "jaxpr") == []
    shown.press("/")
    assert shown.run("document.activeElement.id") == "query"
    shown.type("multiply")
    assert text(shown, "#found") == "1 of 1"
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


@pytest.mark.parametrize("name", [NAMES[f"markup {n}"] for n in (0, 1, 3)], ids=range(3))
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


# What Visual Studio Code allows a notebook's outputs at its strictest (notebook.experimental.enableCsp in
# its source, backLayerWebView.ts). A frame inherits it.
VSCODE = ("default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
          "style-src 'self' 'unsafe-inline'; img-src 'self' https: http: data:; font-src 'self' https:; "
          "connect-src https:; child-src https: data:")
FILL = "document.querySelector('div').innerHTML = document.querySelector('template').innerHTML"


@pytest.mark.parametrize("allowed", [None, VSCODE], ids=["Jupyter", "VS Code"])
def test_the_frame_works_in_a_notebook(browser, tmp_path, allowed):
    """Outputs are set as a cell's innerHTML, after the notebook is there."""
    policy = f'<meta http-equiv="Content-Security-Policy" content="{allowed}">' if allowed else ""
    file = tmp_path / "notebook.html"
    file.write_text(f"<!DOCTYPE html><meta charset=utf-8>{policy}<body><template>{embed(walk())}</template>"
                    f"<div></div><script>{FILL}</script>", encoding="utf-8")
    browser.errors.clear()
    browser.open(file)
    with browser.frame():
        browser.until("document.querySelectorAll('#view-script .line').length > 3")
        browser.run("document.querySelectorAll('#view-script .line')[3].click()")
        assert lit(browser, "hlo") == [5, 11]
    assert browser.errors == []


# ---- packing ---------------------------------------------------------------------------------------------


def unpack(packed):
    """What pack.js does, in Python."""
    templates, order, steps = json.loads(zlib.decompress(base64.b64decode(packed)))
    templates, steps = templates.split("\n"), iter(steps)
    last, address, lines = {}, 0, []
    for which in order:
        parts = re.split("([\x00-\x02])", templates[which])
        values = last.setdefault(which, [0] * (len(parts) // 2))
        for at, kind in enumerate(parts[1::2]):
            values[at] += next(steps)
            if kind == "\x02":
                address += values[at]
            spelt = {"\x00": f"{values[at]}", "\x01": f"{values[at]:#x}", "\x02": f"{address:6x}"}
            parts[2 * at + 1] = spelt[kind]
        lines.append("".join(parts))
    return json.loads("\n".join(lines))


@pytest.mark.parametrize("lines", [
    ["%add.7 = f32[8] add(%x.3)", "%add.9 = f32[8] add(%x.6)", "no number", "007 1e-05 123456789012345"],
    ["     0:  push rbp", "     1:  mov rbp, [rsp + 0x18]", "ffffff:  ret", "123456:  ret",
     "12345:  x", " 1234: x"],
    ["0x0 0x00 0xfg 0xFF 0xdeadbeef12 00:  a", "\x00\x01\x02 8", "", " ", "\\u0001 <&>\u2028 行"],
])
def test_what_is_packed_comes_out_again(lines):
    value = {"lines": lines, "more": [1, -2, 3.5, None, True, 0], "10": {"0x1": []}}
    assert unpack(pack(value)) == value


LEAVES = st.none() | st.booleans() | st.integers() | st.text("0189abfx: %\"\\\n\x00\x02é")


@hypothesis.given(st.recursive(LEAVES, lambda part: st.lists(part) | st.dictionaries(st.text("01a:"), part)))
def test_anything_packed_comes_out_again(value):
    assert unpack(pack(value)) == value


def test_the_frame_works_in_the_html_that_nbconvert_writes(browser, tmp_path):
    exporters = pytest.importorskip("nbconvert.exporters", reason="nbconvert comes with JupyterLab")
    nbformat = pytest.importorskip("nbformat.v4", reason="nbformat comes with JupyterLab")
    output = nbformat.new_output("display_data", {"text/html": embed(walk()), "text/plain": "f on cpu"})
    notebook = nbformat.new_notebook(cells=[nbformat.new_code_cell("w.show()", outputs=[output])])
    file = tmp_path / "notebook.html"
    file.write_text(exporters.HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    browser.tab.route("http*://**", lambda route: route.abort())  # what the template wants from elsewhere
    browser.open(file)
    with browser.frame():
        browser.until("document.querySelectorAll('#view-script .line').length > 3")
        browser.click_in_frame("#view-script .line.row >> nth=1")
        assert lit(browser, "hlo") == [5, 11]
    browser.tab.unroute("http*://**")


def test_packed_code_unpacks_to_what_was_put_in():
    elements = Elements(render(walk()))
    code = unpack(elements.text["script", "code"])
    assert code["texts"][code["kernels"]["max_fusion"]["asm"]] == ASM.split("\n")
    assert code["passes"] == PASSES.split("\n")
