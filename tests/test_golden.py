"""The golden set is what it says, and the figures that must hold on every run do hold on it.

`python -m oplab.tools.score` prints the same tables, and those that need a clock.
"""

import jax
import numpy as np
import pandas as pd
import pytest

from oplab.tools import certain, measured, score
from oplab.tools.golden import deep, golden, program, timed

SMALL = [name for name in golden() if name != "transformer_grad"]  # that one takes a while: marked slow below


def test_the_set_is_complete_and_repeats():
    first, again = golden(), golden()
    assert len(first) == 12 and not set(first) & (set(timed()) | set(deep()))
    for name, (function, args) in first.items():
        assert callable(function)
        for a, b in zip(jax.tree.leaves(args), jax.tree.leaves(again[name][1]), strict=True):
            assert a.dtype == np.float32 and np.array_equal(a, b), name


@pytest.mark.parametrize("name", SMALL)
def test_results_are_finite(name):
    function, args = program(name)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.jit(function)(*args)))


def test_the_deep_one_is_deep():
    function, args = program("transformer_200")
    assert 10_000 < len(jax.make_jaxpr(function)(*args).eqns) < 15_000


def test_attention_and_layer_norm_against_numpy():
    function, (q, k, v) = program("attention")
    scores = np.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (weights / weights.sum(-1, keepdims=True)) @ np.asarray(v)
    np.testing.assert_allclose(function(q, k, v), wanted, rtol=1e-5, atol=1e-6)
    function, (x, scale, bias) = program("layer_norm")
    x, scale, bias = (np.asarray(a, np.float64) for a in (x, scale, bias))
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(function(*program("layer_norm")[1]), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("figure", ["provenance", "same", "fates", "kernels"])
def test_figures(figure):
    table = score.FIGURES[figure](SMALL)
    assert len(table) >= len(SMALL) and table["ok"].all(), "\n" + score.readable(table)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["provenance", "same", "fates", "kernels"])
def test_figures_of_the_gradient(figure):
    table = score.FIGURES[figure](["transformer_grad"])
    assert table["ok"].all(), "\n" + score.readable(table)


# The score itself: it must be able to fail

def test_a_missed_figure_is_an_exit_status(monkeypatch, capsys):
    monkeypatch.setattr(certain, "percent", lambda part, whole: 50.0)
    assert score.main(["provenance", "matmul"]) == 1
    shown = capsys.readouterr().out
    assert ">= 90" in shown and "NO" in shown and "missed: provenance" in shown


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        score.main(["provenence"])
    assert "provenence" in capsys.readouterr().err


def test_busy_time_is_the_union_of_intervals():
    rows = [(0, 0.0, 10.0), (0, 5.0, 10.0), (0, 20.0, 1.0), (1, 3.0, 2.0)]
    table = pd.DataFrame(rows, columns=["run", "start_us", "duration_us"])
    assert list(measured.busy_us(table, 2)) == [16.0, 2.0]
