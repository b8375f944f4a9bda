"""The GPU benchmark, dry: what a CPU can run runs, and what it cannot is listed with the reason."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from oplab.tools import bench_gpu, bench_gpu_kernels
from oplab.tools.bench_attention_problem import Missing, Shape
from oplab.tools.bench_gpu_variants import HIDDEN, TOKENS, VARIANTS, check, inputs, reference, shapes


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    assert bench_gpu.main(["--out", str(folder), "--budget", "200"]) == 0  # without a GPU it is dry
    return folder


def test_every_variant_has_a_row_and_none_is_skipped_in_silence(recorded):
    table = bench_gpu.load(recorded)
    assert len(table) == len(shapes(dry=True)) * len(VARIANTS)
    timed = table[table["note"] == ""]
    assert set(timed["variant"]) == {"pallas", "xla", "unfused"} and (timed["median_us"] > 0).all()
    assert (timed["error"] < 2e-2).all() and (timed["samples_us"].map(len) == timed["rounds"]).all()
    missing = table[table["variant"] == "cudnn"]
    assert missing["note"].str.startswith("no rule for cpu: ").all() and missing["median_us"].isna().all()


def test_kernels_have_names_and_times(recorded):
    table = pd.read_csv(recorded / "kernels.csv")
    timed = table[table["kernel"].notna()]
    assert set(timed["variant"]) == {"pallas", "xla", "unfused"}
    assert (timed["launches"] > 0).all() and (timed["total_us"] > 0).all()
    assert table[table["variant"] == "cudnn"]["note"].str.startswith("did not run").all()


def test_what_is_recorded_names_no_user_machine_or_folder(recorded):
    about = json.loads((recorded / "about.json").read_text())
    assert about["dry"] and about["platform"] == "cpu" and re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    everything = "".join(file.read_text() for file in recorded.iterdir())
    assert str(Path.home()) not in everything and str(recorded) not in everything


def test_shapes_are_those_of_flash_attention():
    every = shapes(dry=False)
    assert {shape.batch * shape.seq for shape in every} == {TOKENS}
    assert {shape.heads * shape.dim for shape in every} == {HIDDEN}
    assert {shape.seq for shape in every} == {512, 1024, 2048, 4096, 8192, 16384} and len(every) == 96
    assert Shape(512, 32, 64, batch=32).flops == 4 * 512**2 * 64 * 32 * 32
    groups = bench_gpu.grouped(every)
    assert sum(groups, []) == every and len(groups) == 8


def test_the_profilers_shapes_are_some_of_them():
    found = list(bench_gpu_kernels.chosen(shapes(dry=False), dry=False))
    assert {(shape.causal, shape.backward) for shape in found} == {(a, b) for a in (0, 1) for b in (0, 1)}


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_numpys(causal):
    q, k, v, do = inputs(Shape(64, 2, 8, causal, dtype="bfloat16", batch=2))
    found, = reference(q, k, v, do, causal=causal, backward=False)
    q, k, v = (np.asarray(x, float).swapaxes(1, 2) for x in (q, k, v))
    s = q @ k.swapaxes(2, 3) * 8**-0.5 + (np.triu(np.full((64, 64), -np.inf), 1) if causal else 0)
    p = np.exp(s - s.max(-1, keepdims=True))
    assert np.allclose(found, (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2), atol=1e-5)


def test_one_wrong_row_is_enough_not_to_be_timed():
    good = jnp.ones((1, 256, 2, 8), jnp.bfloat16)
    assert check([good], [good.astype(jnp.float32)], "bfloat16") == 0
    for wrong in (good.at[0, 7, 1].set(0), good.at[0, 7, 1, 3].set(jnp.nan)):
        with pytest.raises(Missing, match="was not timed"):
            check([wrong], [good.astype(jnp.float32)], "bfloat16")


def test_a_wrong_or_failing_variant_gets_a_row_and_no_time():
    shape, unfused = shapes(dry=True)[0], VARIANTS["unfused"]

    def failing(*given):
        raise RuntimeError("no entry in /home/somebody/lib/thing.so for this")

    made = {"good": (unfused(shape), ""), "failing": (failing, ""), "absent": (None, "no rule for moon"),
            "wrong": (lambda *given: [2 * x for x in unfused(shape)(*given)], "")}
    rows = {row["variant"]: row for row in bench_gpu.measure_shape(shape, made, 0.0, dry=True)}
    assert rows["good"]["median_us"] > 0 and rows["absent"]["note"] == "no rule for moon"
    assert "differ from float32" in rows["wrong"]["note"] and "median_us" not in rows["wrong"]
    assert rows["failing"]["note"] == "failed: RuntimeError: no entry in (path) for this"


def test_little_time_means_fewer_rounds_and_no_time_a_note(monkeypatch):
    group = shapes(dry=True)[:1]
    monkeypatch.setattr(bench_gpu, "VARIANTS", {"unfused": VARIANTS["unfused"]})
    monkeypatch.setattr(bench_gpu, "SAMPLE_S", 1e-6)
    row, = bench_gpu.measure(group, "cpu", deadline=0.0, end=float("inf"), dry=False)
    assert row["rounds"] == 3 and not row["note"]
    row, = bench_gpu.measure(group, "cpu", deadline=0.0, end=0.0, dry=False)
    assert row["note"] == "left out: the time was up"


def test_what_does_not_fit_is_left_out_and_says_so(monkeypatch):
    monkeypatch.setattr(bench_gpu, "device_memory", lambda: 2**30)
    run, why = bench_gpu.prepared(Shape(16384, 32, 64, dtype="float16"), "unfused", "cuda")
    assert run is None and why == "left out: it needs 96 GiB of memory, of 1 GiB"


@pytest.mark.parametrize("kind, name", [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"),
                                        ("NVIDIA A100-SXM4-80GB", "a100"), ("Tesla T4", "t4"), ("??", "")])
def test_a_chip_gives_the_folder_its_name(kind, name):
    assert bench_gpu.chip_name(kind) == name
