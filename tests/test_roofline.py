"""oplab.roofline: the rule, on numbers known beforehand; the devices' file; the peaks of this machine."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import oplab
from oplab.bench import bench
from oplab.roofline import Peaks, device_peaks, devices, measure_peaks, roofline

ROOT = Path(__file__).parents[1]
TOY = Peaks("toy", "float32", flops_per_s=100e9, bytes_per_s=10e9, measured=False, source="made up")


def kernels():
    return pd.DataFrame([("low", 1e9, 1e9, 200_000.0), ("at the ridge", 1e9, 1e8, 10_000.0),
                         ("high", 1e9, 1e6, 20_000.0), ("copy", 0, 1e9, 400_000.0)],
                        columns=["variant", "flops", "bytes", "median_us"])


def test_the_rule():
    table = roofline(kernels(), TOY).set_index("variant")
    assert TOY.ridge == 10
    assert list(table["intensity"]) == [1, 10, 1000, 0]
    assert list(table["attainable_flops_per_s"]) == [10e9, 100e9, 100e9, 0]
    assert list(table["bound"]) == ["memory", "compute", "compute", "memory"]
    assert np.allclose(table["flops_per_s"], [5e9, 100e9, 50e9, 0])
    # 1 GB takes a tenth of a second at 10 GB/s, so the copy has a share although it computes nothing
    assert np.allclose(table["share_of_limit"], [0.5, 1.0, 0.5, 0.25])


def test_without_times_what_could_be_reached_is_left():
    table = roofline(kernels().drop(columns="median_us"), TOY)
    assert table["flops_per_s"].isna().all() and table["share_of_limit"].isna().all()
    assert table["attainable_flops_per_s"].notna().all()


def test_what_was_not_counted_has_no_bound():
    table = roofline(kernels().assign(flops=[1e9, None, 1e9, 0]), TOY)
    assert table["bound"].iloc[1] == "" and math.isnan(table["attainable_flops_per_s"].iloc[1])


def test_takes_what_bench_returns_and_keeps_the_size_first():
    table = bench({"jit": jax.jit(lambda x: x @ x)}, cases={n: (jnp.ones((n, n)),) for n in (8, 16)},
                  label="n", repeats=1, cost=True, memory=False)
    found = roofline(table, TOY)
    assert list(found.columns[:2]) == ["n", "variant"] and list(found["n"]) == [8, 16]
    assert list(found["flops"]) == [2 * 8**3, 2 * 16**3]
    assert found["intensity"].iloc[0] == pytest.approx(2 * 8**3 / (2 * 4 * 64))  # x is read once
    assert found.attrs["peaks"]["device"] == "toy" and found.attrs["jax"] == jax.__version__
    assert list(found["samples_us"]) == list(table["samples_us"]) and "samples_us" not in repr(found)
    assert list(found["noise"]) == list(table["noise"])


def test_takes_a_walk():
    walk = oplab.walk(lambda x: jnp.tanh(x) @ x, jnp.ones((64, 64)))
    found = roofline(walk, "TPU v5e", dtype="bfloat16")
    assert set(found["instruction"]) == set(walk.summary()["instruction"])
    assert found["flops"].sum() >= 2 * 64**3 and set(found["bound"]) <= {"memory", "compute"}


def test_fused_attention_moves_less_than_it_is_written():
    """The reason for the whole lesson: the trips of S and P to memory."""
    q = jnp.ones((1, 256, 2, 64))

    def written(q, k, v):
        p = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        return jnp.einsum("bhts,bshd->bthd", p, v)

    fused = lambda q, k, v: oplab.ops.attention(q, k, v, implementation="xla")
    table = bench({"written": written, "fused": fused}, q, q, q, repeats=1, cost=True, memory=False)
    found = roofline(table, TOY).set_index("variant")
    scores = 4 * 2 * 256 * 256
    assert found.loc["written", "bytes"] - found.loc["fused", "bytes"] > 4 * scores
    assert list(found["bound"]) == ["memory", "compute"]


def test_stable_mode_hides_what_was_measured(monkeypatch):
    monkeypatch.setenv("OPLAB_STABLE", "1")
    certain, measured = roofline(kernels(), TOY), roofline(kernels(), TOY._replace(measured=True))
    assert "1.000000e+11" in repr(certain) and "1.000000e+11" not in repr(measured)
    assert "compute" in repr(certain) and "compute" not in measured._repr_html_()
    assert "5.000000e+09" not in repr(certain) and certain["flops_per_s"].iloc[0] == 5e9


# ---- devices ------------------------------------------------------------------------------------------


def test_the_package_carries_the_same_file():
    assert (ROOT / "oplab/devices.csv").read_bytes() == (ROOT / "data/devices.csv").read_bytes()


def test_every_device_has_a_document_and_believable_numbers():
    table = devices()
    assert table["device"].is_unique and set(table["kind"]) == {"gpu", "tpu"}
    assert table["source"].str.len().min() > 10 and table["url"].str.startswith("https://").all()
    rates = table.filter(like="_flops_per_s")
    assert rates.notna().any(axis=1).all() and (rates.stack().dropna() > 1e12).all()
    assert table["memory_bytes_per_s"].between(1e11, 1e13).all() and table["year"].between(2018, 2030).all()
    ridge = rates.max(axis=1) / table["memory_bytes_per_s"]  # a slip of the unit would leave this range
    assert ridge.between(100, 1000).all()


def test_a_device_is_found_by_its_name():
    peaks = device_peaks("tpu v6e", "bfloat16")
    assert peaks.device == "TPU v6e" and not peaks.measured and "Google" in peaks.source
    assert peaks.ridge == pytest.approx(peaks.flops_per_s / peaks.bytes_per_s)


# ---- this machine -------------------------------------------------------------------------------------


def test_this_machine_is_measured_once():
    peaks = measure_peaks()
    assert peaks.measured and measure_peaks("float32") is peaks and "measured here" in peaks.source
    assert 1e9 < peaks.flops_per_s < 1e14 and 1e8 < peaks.bytes_per_s < 1e13
    n = 1024
    x = jnp.ones((n, n))
    table = bench({"product": jax.jit(jnp.matmul)}, x, x, repeats=5, cost=True, memory=False)
    share = roofline(table)["share_of_limit"].iloc[0]
    assert 0.1 < share < 3, "a product of this size is what the peak is measured by, on a busy machine too"


# ---- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: roofline([1, 2], TOY), TypeError, "expects a walk"),
    (lambda: roofline(kernels().drop(columns="bytes"), TOY), ValueError, "cost=True"),
    (lambda: roofline(kernels(), "NVIDIA T5"), ValueError, "no device is called 'NVIDIA T5'"),
    (lambda: roofline(kernels(), "TPU v4"), ValueError, "use dtype='bfloat16'"),
    (lambda: device_peaks("NVIDIA T4", "int4"), ValueError, "'float32' or 'float16'"),
])
def test_bad_input_is_refused_in_one_sentence(call, error, says):
    with pytest.raises(error, match=says) as caught:
        call()
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
