"""The plots: drawn with awkward input, described in words, and with no two labels on top of each other."""

import base64
import io
from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from nbconvert import HTMLExporter
from PIL import Image

import oplab
from oplab.views import plots
from oplab.views.picture import COLOURS, HATCHES, STYLES, plain
from oplab.views.timeline import LANES, _bars, _lanes, operator

SIZES = (128, 256, 512, 1024)
AWKWARD = ["plain", "jit $\\frac{$", "<b>a variant with a very, very long name</b>", "chunked"]


def table(variants=AWKWARD, sizes=SIZES):
    rows = []
    for size in sizes or [1]:
        for order, variant in enumerate(variants):
            time = size**2 / (order + 1) * np.array([0.9, 1.0, 1.3])
            rows.append(({"S": size} if sizes else {}) | {
                "variant": variant, "median_us": time[1], "spread_us": time[2] - time[0], "user_us": time[1],
                "system_us": time[1] / 3, "noise": "spread is 90% of the median" if order == 1 else "",
                "peak_bytes": size**2 * 4 * (order + 1), "samples_us": tuple(time),
                "share_of_limit": 0.9 / (order + 1),
                "temp_bytes": np.nan if order == 0 else size**2 * 4.0})
    made = pd.DataFrame(rows)
    made.attrs = {"jax": "9.8.7", "threads": 3, "device": "cpu"}
    return made


def walk(bars, runs=3):
    """A walk as the timeline sees one: bars are (instruction, microseconds, equations)."""
    execution = [(run, name, 1e6 * run + sum(b[1] for b in bars[:i]), took * (1 + 0.1 * run))
                 for run in range(runs) for i, (name, took, _) in enumerate(bars)]
    equations = [("e0", "dot_general", "", "", 10), ("e1", "custom_jvp_call", "name=_softmax", "", 20),
                 ("e1.call_jaxpr.e0", "exp", "", "", 20), ("e2", "add", "", "layer_norm/mean", 30),
                 ("e3", "sin", "", "", 40)]
    summary = pd.DataFrame([(name, owners, 7, 7) for name, _, owners in bars],
                           columns=["instruction", "equations", "flops", "bytes"])
    return SimpleNamespace(
        execution=SimpleNamespace(
            table=pd.DataFrame(execution, columns=["run", "instruction", "start_us", "duration_us"])),
        jaxpr=SimpleNamespace(
            table=pd.DataFrame(equations, columns=["equation", "primitive", "params", "scope", "flops"])
            .assign(bytes=lambda rows: rows["flops"] * 2**20)),
        summary=lambda: summary)


def limits(variants=AWKWARD, sizes=SIZES, timed=True, flops_per_s=2e11, measured=True):
    """A table as oplab.roofline returns it."""
    rows = [{"S": size, "variant": variant, "flops": size**2 * 256, "bytes": size**2 * 16 * (order + 1),
             "intensity": 16 / (order + 1), "flops_per_s": 1e10 / (order + 1) if timed else np.nan,
             "attainable_flops_per_s": 3e10 / (order + 1), "share_of_limit": 1 / 3 if timed else np.nan}
            for size in sizes for order, variant in enumerate(variants)]
    made = pd.DataFrame(rows)
    peaks = {"device": "toy $ device", "dtype": "float32", "flops_per_s": flops_per_s, "bytes_per_s": 2e10,
             "measured": measured, "source": "made up", "noise": "spread is 90% of the median"}
    made.attrs = {"jax": "9.8.7", "threads": 3, "peaks": peaks}
    return made


UNFUSED = walk([("dot.3", 300.0, ("e0",)), ("exp_$x$_fusion", 200.0, ("e1.call_jaxpr.e0",)),
                ("sine", 9.0, ("e3",))])
FUSED = walk([("ynn_fusion", 280.0, ("e0", "e1.call_jaxpr.e0")), ("copy.1", 5.0, ())])
MANY = walk([(f"fusion.{i}", 50.0 - i, ()) for i in range(40)])
PICTURES = {
    "times": lambda: plots.times({"every key": table(), "causal": table()}),
    "times, one table": lambda: plots.times(table(), title="$\\frac{$ and so on"),
    "times, no sizes": lambda: plots.times(table(sizes=())),
    "times, eight variants": lambda: plots.times(table([f"variant number {i}" for i in range(9)])),
    "memory": lambda: plots.memory({"every key": table(), "causal": table()}),
    "speedup": lambda: plots.speedup(table(), over="chunked"),
    "share of the limit": lambda: plots.share_of_limit({"every key": table(), "causal": table()}),
    "share, no samples": lambda: plots.share_of_limit(limits()),
    "roofline": lambda: plots.roofline({"every key": limits(), "causal": limits()}),
    "roofline, one kernel": lambda: plots.roofline(limits(["only $"], [128])),
    "roofline, many": lambda: plots.roofline(limits([f"variant number {i}" for i in range(12)])),
    "roofline, not timed": lambda: plots.roofline(limits(timed=False, flops_per_s=2e15, measured=False)),
    "processor time": lambda: plots.processor_time({"every key": table(), "causal": table()}),
    "support": lambda: plots.support(oplab.support(platform=["cpu", "cuda", "tpu"])),
    "support, one platform": lambda: plots.support(oplab.support(platform="cpu")),
    "work": lambda: plots.work({"unfused": UNFUSED, "fused $": FUSED, "a third": FUSED}),
    "timeline": lambda: plots.timeline({"unfused": UNFUSED, "fused $": FUSED}),
    "timeline, one walk": lambda: plots.timeline(UNFUSED),
    "timeline, a table": lambda: plots.timeline(UNFUSED.execution.table),
    "timeline, many": lambda: plots.timeline({"fused": MANY, "unfused": MANY}),
}


@pytest.fixture(params=PICTURES, ids=lambda name: name.replace(" ", "_"))
def picture(request):
    return PICTURES[request.param]()


def boxes(picture):
    """Every visible text in the picture with its box in pixels."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    texts = [*picture.texts, *(t for legend in picture.legends for t in legend.get_texts())]
    for axis in picture.axes:
        texts += [axis.xaxis.label, axis.yaxis.label, axis.title, axis._left_title]
        for one in (axis.xaxis, axis.yaxis):
            low, high = sorted(one.get_view_interval())
            texts += [tick.label1 for tick in one.get_major_ticks() if low <= tick.get_loc() <= high]
    shown = [t for t in texts if t.get_visible() and t.get_text().strip()]
    return [(t.get_text(), t.get_window_extent(renderer)) for t in shown]


def test_no_label_covers_another_or_leaves_the_picture(picture):
    picture.png()
    found = boxes(picture)
    assert len(found) > 5
    for at, (text, box) in enumerate(found):
        assert box.x0 >= -1 and box.x1 <= picture.bbox.width + 1, text
        assert box.y0 >= -1 and box.y1 <= picture.bbox.height + 1, text
        for other, other_box in found[at + 1:]:
            across = min(box.x1, other_box.x1) - max(box.x0, other_box.x0)
            along = min(box.y1, other_box.y1) - max(box.y0, other_box.y0)
            assert across < 2 or along < 3, f"{text!r} and {other!r} overlap"


def test_says_in_words_what_it_shows(picture):
    data, metadata = picture._repr_mimebundle_()
    assert len(picture.alt) > 40 and data["text/plain"] == picture.alt == metadata["image/png"]["alt"]
    image = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert image.text["Description"] == picture.alt
    assert image.width <= 1100 and image.height <= 768  # a laptop's screen beside JupyterLab's file list


@pytest.mark.parametrize(("keep", "template"), [("text/html", "lab"), ("image/png", "classic")])
def test_nbconvert_shows_the_words(keep, template):
    data, metadata = PICTURES["times"]()._repr_mimebundle_()
    output = nbformat.v4.new_output("display_data", {keep: data[keep]}, metadata=metadata)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x", outputs=[output])])
    page, _ = HTMLExporter(template_name=template).from_notebook_node(notebook)
    assert 'alt="Line chart: Time of one call' in page
    assert "<b>a variant" not in page and "&lt;b&gt;a variant" in page


def test_names_what_it_ran_on_except_in_stable_mode(monkeypatch):
    monkeypatch.delenv("OPLAB_STABLE", raising=False)
    small_print = PICTURES["times"]().texts[1].get_text()
    assert "JAX 9.8.7" in small_print and "3 threads" in small_print and "Hollow" in small_print
    assert "1.05e+03" in PICTURES["times"]().alt or "1049" in PICTURES["times"]().alt
    monkeypatch.setenv("OPLAB_STABLE", "1")
    masked = PICTURES["times"]()
    assert "9.8.7" not in masked.texts[1].get_text() and "S = 1024" not in masked.alt


def test_speedup_compares_round_by_round():
    rows = table(["slow", "fast"], sizes=())
    rows["samples_us"] = [(10.0, 20.0, 40.0), (5.0, 5.0, 5.0)]
    lines = {line.get_label(): line.get_ydata() for line in plots.speedup(rows).axes[0].lines}
    assert lines["slow"] == [1.0] and lines["fast"] == [4.0]  # the median of 2, 4 and 8


def test_share_of_the_limit_turns_the_quartiles_of_the_time_around():
    rows = table(["only"], sizes=()).assign(share_of_limit=0.5)
    rows["samples_us"] = [(5.0, 10.0, 20.0)]
    low, middle, high = plots._shares(rows)[:, 0]
    assert middle == 50 and low == pytest.approx(100 / 3) and high == pytest.approx(200 / 3)


def test_roofline_draws_the_roof_and_each_variant_under_it():
    axis, = plots.roofline(limits(["a", "b"], [128, 256])).axes
    roof, *lines = axis.lines
    assert list(roof.get_ydata()) == [pytest.approx(y) for y in (8 / 3 * 20, 200, 200)]  # in GFLOP/s
    assert roof.get_xdata()[1] == 10 and axis.get_xscale() == axis.get_yscale() == "log"
    marks = [line for line in lines if len(line.get_xdata()) == 1]
    assert [(m.get_xdata()[0], m.get_ydata()[0]) for m in marks] == [(16, 10), (16, 10), (8, 5), (8, 5)]
    assert [m.get_markersize() for m in marks] == [7, 12, 7, 12]  # the largest size has the largest mark
    assert {m.get_markerfacecolor() for m in marks} == {"#000000", "#CC6677"}


def test_roofline_shows_what_was_not_timed_as_hollow_marks_on_the_roof():
    picture = plots.roofline(limits(["a"], [128], timed=False, flops_per_s=2e15, measured=False))
    mark = picture.axes[0].lines[-1]
    assert mark.get_markerfacecolor() == "white" and mark.get_ydata()[0] == 0.03  # TFLOP/s
    assert picture.axes[0].get_ylabel() == "TFLOP/s" and "Hollow" in picture.texts[1].get_text()


def test_roofline_hides_a_measured_roof_in_stable_mode(monkeypatch):
    monkeypatch.delenv("OPLAB_STABLE", raising=False)
    assert "200 GFLOP/s" in plots.roofline(limits()).alt and "busy machine" in plots.roofline(limits()).alt
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert "200 GFLOP/s" not in plots.roofline(limits()).alt
    assert "200 GFLOP/s" in plots.roofline(limits(measured=False)).alt


def test_work_counts_an_equation_that_holds_others_once():
    bytes_axis, flops_axis = plots.work({"unfused": UNFUSED}).axes
    assert [bar.get_width() for bar in bytes_axis.patches] == [pytest.approx(100), pytest.approx(21 / 2**20)]
    assert [bar.get_width() for bar in flops_axis.patches] == [pytest.approx(100e-6), pytest.approx(21e-6)]


def test_every_operator_has_its_own_colour():
    assert set(COLOURS) == set(HATCHES) and len(set(COLOURS.values())) == len(COLOURS)
    assert not set(COLOURS.values()) & {colour for colour, _, _ in STYLES}
    assert len({marker for _, marker, _ in STYLES}) == len(STYLES)


def test_operator_of_an_equation():
    rows = {row["equation"]: row for row in UNFUSED.jaxpr.table.to_dict("records")}
    found = {equation: operator(equation, rows) for equation in rows}
    assert found == {"e0": "matmul", "e1": "softmax", "e1.call_jaxpr.e0": "softmax", "e2": "layer_norm",
                     "e3": "other"}
    assert operator("e99", rows) == "other"


def test_timeline_shows_the_median_run_and_never_divides_shared_time():
    lanes = _lanes(FUSED.execution.table, {"ynn_fusion": ("matmul", "softmax")})
    assert [lane.name for lane in lanes] == ["ynn_fusion", "copy.1"]
    assert lanes[0].bars == [(0.0, pytest.approx(308.0))]  # run 1 of 0, 1, 2
    assert lanes[0].operators == ("matmul", "softmax") and lanes[1].operators == ("other",)
    assert lanes[0].spread == (pytest.approx(294.0), pytest.approx(322.0))


def test_threads_of_one_kernel_are_one_bar():
    rows = pd.DataFrame({"start_us": [0.0, 1.0, 7.0], "duration_us": [4.0, 5.0, 2.0]})
    assert _bars(rows) == [(0.0, 6.0), (7.0, 2.0)]


def test_timeline_gathers_what_is_too_short_to_name():
    lanes = _lanes(MANY.execution.table, {})
    assert len(lanes) == LANES + 1 and lanes[-1].name == f"{40 - LANES} shorter ones"
    assert len(lanes[-1].bars) == 1  # they ran without a gap


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: plots.times([1, 2]), TypeError, "oplab.bench"),
    (lambda: plots.support(pd.DataFrame({"operator": ["relu"]})), TypeError, "oplab.support()"),
    (lambda: plots.support(oplab.support(platform="cpu").head(0)), ValueError, "no row"),
    (lambda: plots.times(pd.DataFrame({"a": [1]})), TypeError, "oplab.bench"),
    (lambda: plots.speedup(table(), over="nobody"), ValueError, "over="),
    (lambda: plots.memory(table().drop(columns="peak_bytes")), ValueError, "memory=True"),
    (lambda: plots.share_of_limit(table().drop(columns="share_of_limit")), ValueError, "oplab.roofline"),
    (lambda: plots.roofline(table()), TypeError, "oplab.roofline"),
    (lambda: plots.roofline(limits().assign(intensity=0.0)), ValueError, "there is none"),
    (lambda: plots.timeline(SimpleNamespace()), TypeError, "SimpleNamespace"),
    (lambda: plots.timeline(FUSED.execution.table[:0]), ValueError, "holds none"),
])
def test_bad_input_is_refused_in_one_sentence(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_labels_are_plain_text():
    assert plain("$x$") == r"\$x\$"
    assert plain("a\nb\x00c") == "a b c"
    assert len(plain("x" * 500)) <= 34
