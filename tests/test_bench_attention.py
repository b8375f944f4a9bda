"""The attention benchmark: real processes on tiny shapes, the peers' answers, the verdict on made-up rows."""

import itertools
import json
import sys

import numpy as np
import pandas as pd
import pytest

from oplab.tools import bench_attention
from oplab.tools import bench_attention_rounds as rounds
from oplab.tools.bench_attention_problem import Missing, Shape, exact, largest_error, operands, probe
from oplab.tools.bench_attention_tables import for_plots, load
from oplab.tools.bench_attention_verdict import exponent, verdict
from oplab.tools.bench_attention_worker import Process
from oplab.views import plots

NOTHING = pd.DataFrame()


# ---- the problem --------------------------------------------------------------------------------------


def test_flops_are_counted_as_flash_attention_counts_them():
    assert Shape(100, 2, 64).flops == 4 * 2 * 100**2 * 64
    assert Shape(100, 2, 64, causal=True).flops == 2 * 2 * 100**2 * 64
    assert Shape(100, 2, 64, backward=True).flops == 3.5 * 4 * 2 * 100**2 * 64


@pytest.mark.parametrize("causal", [False, True])
def test_the_exact_gradients_are_the_slopes_of_the_exact_values(causal):
    """By finite differences, so that the reference does not rest on what it is the reference for."""
    shape = Shape(5, 2, 3, causal)
    gradients = exact(shape._replace(backward=True))
    do, at, step = operands(shape)[3], (0, 3, 1, 2), 1e-3

    def loss(moved, by):
        given = [x.astype(float) for x in operands(shape)]
        given[moved][at] += by
        q, k, v, _ = (x[0].swapaxes(0, 1) for x in given)
        s = q @ k.swapaxes(-1, -2) * 3**-0.5
        s = np.where(np.tri(5, dtype=bool), s, -np.inf) if causal else s
        p = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
        return ((p @ v).swapaxes(0, 1) * do[0]).sum()

    for moved, gradient in enumerate(gradients):
        assert gradient[at] == pytest.approx((loss(moved, step) - loss(moved, -step)) / (2 * step), rel=1e-4)


# ---- the variants -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["jax.nn", "jit naive", "jit with barriers", "eager", "chunked lax",
                                     "xla"])
@pytest.mark.parametrize("backward", [False, True])
def test_every_variant_and_form_gives_the_exact_answer(variant, backward):
    from oplab.tools.bench_attention_jax import VARIANTS

    for causal in (False, True):
        shape = Shape(384, 2, 16, causal, backward)
        wanted = exact(shape)
        for form, made in VARIANTS[variant](shape).items():
            made.call()
            assert largest_error(made.results(), wanted) < 5e-5, form
            assert made.flops == shape.flops, form
            assert made.bytes >= shape.array_bytes * (8 if backward else 4), form


@pytest.mark.parametrize(("variant", "package"), [("torch", "torch"), ("onnxruntime", "onnxruntime")])
def test_a_peer_gives_the_exact_answer_where_it_is_installed(variant, package, monkeypatch):
    pytest.importorskip(package)
    from oplab.tools.bench_attention_peers import VARIANTS

    monkeypatch.setenv("NPROC", "1")
    for causal, backward in itertools.product((False, True), (False, True)):
        if backward and variant == "onnxruntime":
            continue
        shape = Shape(96, 2, 16, causal, backward)
        for form, made in VARIANTS[variant](shape).items():
            assert largest_error(made.results(), exact(shape)) < 5e-5, form


# ---- processes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes():
    made = {name: Process(name, sys.executable, 1) for name in ("jit naive", "eager")}
    yield made
    for process in made.values():
        process.close()
        assert process.child.poll() is not None


def test_rounds_memory_and_error_of_real_processes(processes):
    shape = Shape(128, 2, 16, causal=True)
    rows = pd.DataFrame(rounds.time_shape(processes, shape, {}, 3, 60))
    assert list(rows["variant"]) == ["jit naive", "eager"] and (rows["note"] == "").all()
    assert rows["form"].iloc[0] in ("textbook", "divided last", "added mask")
    assert (rows["rounds"] == 3).all() and (rows["samples_us"].map(len) == 3).all()
    assert (rows["flops_per_s"] * rows["median_us"] * 1e-6).round().tolist() == [shape.flops] * 2
    assert (rows["user_us"] > 0).all() and (rows["first_us"] > rows["median_us"]).all()

    # the eager form holds the scores, 16 times as many at four times the length
    memory = pd.DataFrame(sum((rounds.memory_rows(processes, Shape(n, 8, 16)) for n in (512, 1024)), []))
    small, large = memory[memory["variant"] == "eager"]["peak_bytes"]
    assert small > Shape(512, 8, 16).scores_bytes and large / small > 2.5

    errors = rounds.error_rows(processes, shape)
    assert all(0 < row["error"] < 1e-5 for row in errors)


def test_what_is_missing_says_so_in_its_row():
    process = Process("onnxruntime", sys.executable, 1)  # with a gradient: that it never has
    try:
        row, = rounds.time_shape({"onnxruntime": process}, Shape(64, 1, 16, backward=True), {}, 3, 1)
    finally:
        process.close()
    assert row["variant"] == "onnxruntime" and "median_us" not in row
    assert "not installed" in row["note"] or "no gradient" in row["note"]

    with pytest.raises(Missing, match="could not be started"):
        Process("torch", "/no/such/python", 1)
    gone = Process("eager", sys.executable, 1)
    gone.child.kill()
    with pytest.raises(Missing, match="process ended during 'sample'"):
        gone.ask("sample")
    gone.close()


def test_another_implementation_is_never_timed_as_ours(monkeypatch):
    from oplab.tools import bench_attention_jax

    real = bench_attention_jax.oplab.ops.attention
    monkeypatch.setattr(bench_attention_jax.oplab.ops, "attention",
                        lambda *args, **options: real(*args, **(options | {"implementation": "xla"})))
    with pytest.raises(Missing, match="xla ran in its place"):
        bench_attention_jax.native(Shape(32, 1, 16))


def test_a_variant_with_other_numbers_is_not_timed():
    shape = Shape(32, 1, 8)
    right = {"probe": probe(exact(shape))}
    wrong = {"probe": probe([exact(shape)[0] * 1.01])}
    found = rounds.strangers({"a": right, "b": right, "c": wrong}, shape)
    assert list(found) == ["c"] and found["c"].startswith(rounds.DISAGREES)
    nothing = {"probe": [float("nan")] * 7}
    assert list(rounds.strangers({"a": right, "b": nothing, "c": right}, shape)) == ["b"]


def test_a_variant_that_would_swap_is_left_out(processes, monkeypatch):
    monkeypatch.setattr(rounds.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**20}))
    prepared, missing = rounds.prepare({"eager": processes["eager"]}, Shape(1024, 2, 16))
    assert not prepared and "left out: it may need" in missing["eager"]


# ---- all of it ----------------------------------------------------------------------------------------


def test_the_whole_run_prints_a_verdict_and_saves_what_the_plots_draw(tmp_path, capsys):
    file = tmp_path / "tables.json"
    bench_attention.main(["--seq", "32,64", "--heads", "1", "--dim", "16", "--variants", "jit naive,jax.nn",
                          "--threads", "1", "--rounds", "3", "--error", "--json", str(file)])
    printed = capsys.readouterr().out
    for words in ("threads: 1", "S = 64, 1 heads, D = 16, float32, forward, causal", "jax.nn", "figures",
                  "not measured", "largest difference from float64"):
        assert words in printed
    assert json.loads(file.read_text())["about"]["threads"] == 1
    tables = for_plots(load(file), heads=1, dim=16)
    assert list(tables) == ["every key", "causal"]
    assert list(tables["causal"]["S"]) == [32, 32, 64, 64]
    assert "causal" in plots.times(tables).alt and "jax.nn" in plots.processor_time(tables).alt


@pytest.mark.parametrize("argv", [["--variants", "tensorflow"], ["--dtype", "float8"], ["--threads", "5000"]])
def test_unknown_names_are_refused(argv, capsys):
    with pytest.raises(SystemExit):
        bench_attention.main(argv)
    assert argv[1] in capsys.readouterr().err


# ---- the verdict --------------------------------------------------------------------------------------


def timed(ratio, share=0.9, peers=("torch", "eager", "jit with barriers", "jit naive")):
    return pd.DataFrame([
        {"S": size, "variant": peer, "heads": 8, "dim": 64, "causal": causal, "backward": backward,
         "note": "", "dtype": dtype, "ratio": 1.0 if peer == "native" else ratio, "share_of_limit": share}
        for size in (128, 1024, 4096) for causal in (False, True) for backward in (False, True)
        for dtype in ("float32", "bfloat16") for peer in ("native", *peers)])


def measured(slope):
    return pd.DataFrame([
        {"S": size, "variant": variant, "heads": 8, "dim": 64, "causal": False, "backward": False,
         "dtype": "float32", "note": "", "peak_bytes": 3e5 + 1000.0 * size ** (slope if ours else 2.0)}
        for size in (1024, 2048, 4096, 8192) for variant in ("native", "eager", "jit with barriers")
        for ours in [variant == "native"]])


def erring(ours, torch):
    return pd.DataFrame([
        {"S": 1024, "variant": variant, "heads": 4, "dim": 64, "causal": False, "backward": False,
         "dtype": "float32", "note": "", "error": error}
        for variant, error in (("native", ours), ("torch", torch))])


def test_all_is_reached_when_all_is_good():
    table = verdict(timed(7.0), measured(1.0), erring(1e-6, 2e-6))
    assert set(table["reached"]) == {"yes"}, table.to_string()


def test_each_figure_is_missed_when_it_is_missed():
    table = verdict(timed(0.9, share=0.5), measured(1.3), erring(2e-5, 1e-5)).set_index("figure")
    missed = set(table.index[table["reached"] == "NO"])
    assert set(table.index) - missed == {"variants that disagree with the others",
                                         "memory of eager grows as S to the power",
                                         "memory of jit with barriers grows as S to the power"}


def test_one_slow_shape_is_enough_to_be_slower():
    times = timed(7.0)
    times.loc[(times["S"] == 128) & times["causal"] & (times["variant"] == "torch"), "ratio"] = 0.95
    figure = verdict(times, NOTHING, NOTHING).set_index("figure").loc[
        "forward, against the best peer, at every shape"]
    assert figure["reached"] == "NO" and "0.95 (torch at S = 128" in figure["measured"]
    assert figure["shapes"] == 6


def test_nothing_measured_is_never_reached():
    table = verdict(NOTHING, NOTHING, NOTHING)
    assert set(table["reached"]) == {"not measured"} and (table["measured"].str.len() > 10).all()


def test_the_exponent_does_not_mind_a_constant():
    lengths = np.array([1024.0, 2048, 4096, 8192])
    for power in (1.0, 2.0):
        assert exponent(lengths, 5e7 + 3 * lengths**power) == pytest.approx(power)
    assert np.isnan(exponent(lengths, np.full(4, 7.0)))


def test_the_limit_is_the_product_with_the_best_median():
    limits = {name: type("Limit", (), {"flops": 1e6}) for name in ("steady", "lucky once")}
    walls = {"steady": [10.0, 10.0, 10.0], "lucky once": [20.0, 1.0, 20.0]}
    assert rounds.fastest(limits, walls) == [pytest.approx(1e11)] * 3
    assert rounds.fastest({}, {}) == []
