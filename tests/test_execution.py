"""Measured: every kernel has a time, and the intervals add up to the call."""

import jax
import jax.numpy as jnp
import pandas as pd

import oplab
from oplab.stages import execution


def f(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w) @ w.T).sum(0)


def test_every_kernel_is_timed_in_every_run():
    x = jnp.ones((128, 128))
    w = oplab.walk(f, x, x).execute(repeats=5)
    table = w.execution.table
    assert list(table.columns) == execution.COLUMNS and set(table["run"]) == set(range(5))
    for kernel in w.kernels.table["instruction"]:
        assert table[table["instruction"] == kernel]["run"].nunique() == 5, kernel
    summary = w.summary()
    assert (
        (summary["runs"] >= 5).all()
        and (summary["median_us"] > 0).all()
        and (summary["spread_us"] >= 0).all()
    )
    assert abs(summary["share"].sum() - 1) < 1e-9


def test_kernels_in_a_loop_are_timed_as_often_as_they_run():
    x = jnp.ones((256, 256))
    w = oplab.walk(lambda x: jax.lax.fori_loop(0, 4, lambda i, y: jnp.tanh(y) @ x, x), x).execute(3)
    runs = w.summary().set_index("instruction")["runs"]
    assert (runs[[name for name in runs.index if "tanh" in name]] >= 12).all()


def test_the_union_counts_overlapping_intervals_once():
    first = [(0, "a", 0.0, 4.0), (0, "b", 2.0, 4.0), (0, "c", 3.0, 1.0)]
    table = pd.DataFrame([*first, (1, "a", 5.0, 1.0), (1, "b", 8.0, 2.0)], columns=execution.COLUMNS)
    assert list(execution.busy_us(table)) == [6.0, 3.0]


def test_a_profile_without_events_is_told_and_leaves_wall_times(monkeypatch):
    monkeypatch.setattr(execution, "_read", lambda folder, names: pd.DataFrame(columns=execution.COLUMNS))
    x = jnp.ones((8, 8))
    w = oplab.walk(f, x, x).execute(2)
    assert "recorded no kernel" in w.execution.text and len(w.wall_us) == 2
    assert w.summary()["median_us"].isna().all()


def test_another_profile_in_this_process_is_told(tmp_path):
    x = jnp.ones((8, 8))
    w = oplab.walk(f, x, x)
    with jax.profiler.trace(str(tmp_path)):
        w.execute(2)
    assert "another profile" in w.execution.text and len(w.wall_us) == 2
    assert len(w.execute(2).execution.table)  # and afterwards all is well


def test_stable_mode_prints_no_time(monkeypatch):
    x = jnp.ones((8, 8))
    w = oplab.walk(f, x, x).execute(2)
    assert " us" in w.execution.text
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert w.execution.text == "2 runs"
