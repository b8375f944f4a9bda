"""Every equation has one fate, and each fate means what it says."""

import jax
import jax.numpy as jnp
import pytest

import oplab

X = jnp.ones((64, 32))


def fates_of(f, *args):
    table = oplab.walk(f, *args).fates
    return {row.equation: (row.fate, row.by_pass, row.into) for row in table.itertuples()}


def test_two_additions_become_one_and_both_lines_are_told():
    def f(x):
        a = x + 2
        b = a + 1
        return b

    w = oplab.walk(f, jnp.arange(8))
    fates = w.fates.set_index("equation")
    assert fates.loc["e0", "fate"] == "merged" and fates.loc["e0", "into"] == "e1"
    assert fates.loc["e0", "by_pass"] == "algsimp" and fates.loc["e1", "fate"] == "kept"
    (kernel,) = w.summary().to_dict("records")
    first = f.__code__.co_firstlineno
    assert [line.rsplit(":", 1)[1] for line in kernel["lines"]] == [str(first + 1), str(first + 2)]
    (addition,) = w.hlo.table["instruction"][w.hlo.table["opcode"] == "add"]
    linked = w.links[(w.links["to_stage"] == "hlo") & (w.links["to_id"] == addition)]
    assert (
        dict(zip(linked["from_id"], linked["how"], strict=True)).items()
        >= {"e0": "inferred", "e1": "exact"}.items()
    )


@pytest.mark.parametrize("f, equation, fate, by_pass", [
    (lambda x: jnp.sin(x) * 2, "e0", "fused", ""),
    (lambda x: jnp.sin(x), "e0", "kept", ""),
    (lambda x: x @ x.T, "e1", "library", ""),
    (lambda x: x @ x.T, "e0", "absorbed", "transpose-folding"),
    (lambda x: (jnp.sin(x), jnp.sin(x)), "e1", "merged", "cse"),
    (lambda x: (jnp.cos(x), x)[1] * 2, "e0", "dead", "lowering"),
    (lambda x: jax.jit(jnp.tanh)(x) + 1, "e0", "inlined", "call-inliner"),
    (lambda x: x + jnp.exp(jnp.zeros((64, 32)) + 1.0), "e2", "folded", None),
    (lambda x: jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x), "e0", "kept", ""),
])  # fmt: skip
def test_each_fate(f, equation, fate, by_pass):
    found = fates_of(f, X)[equation]
    assert found[0] == fate, found
    assert by_pass is None or found[1] == by_pass, found


def test_a_twin_that_lives_does_the_work_of_both():
    """A long sum becomes a sum of sums, whose first half has no name: it is not the vanished twin's."""
    w = oplab.walk(lambda x: jnp.exp(x) / jnp.exp(x).sum(), jnp.ones(1000))
    fates = w.fates.set_index("equation")
    assert list(fates.loc["e1", ["fate", "by_pass", "into"]]) == ["merged", "cse", "e0"]
    windows = w.hlo.table[w.hlo.table["opcode"] == "reduce-window"]
    assert set(windows["equations"]) == {("e2",)} and set(windows["how"]) == {"inferred"}


def test_calls_that_share_a_body_are_no_twins():
    shared = jax.jit(lambda x: jnp.cumsum(x) * 2)
    fates = fates_of(lambda x, y: shared(x) + shared(y), jnp.ones(1000), jnp.zeros(1000))
    ends = [fate for equation, (fate, *_) in fates.items() if equation.endswith("jaxpr.e1")]
    assert ends and set(ends) <= {"kept", "fused"}


def test_an_equation_that_nothing_uses_inside_a_call_is_dead():
    inner = jax.jit(lambda x: (jnp.sin(x), jnp.cos(x)))
    fates = fates_of(lambda x: inner(x)[0], X)
    assert fates["e0.jaxpr.e0"][0] == "kept" and fates["e0.jaxpr.e1"][0] == "dead"


def test_a_reduction_that_becomes_a_reshape_is_not_called_dead():
    """Its last instruction goes with dead code elimination, but an earlier pass had replaced it."""
    fates = fates_of(lambda x: jax.grad(lambda t: jax.nn.softmax(t).max())(x) * 2, X)
    assert all(fate != "dead" or by_pass for fate, by_pass, _ in fates.values())
    kept = fates_of(lambda x: x.reshape(64, 32, 1).sum(2) * 3, X)
    assert kept["e1"][0] == "absorbed"


def test_into_names_something_that_exists():
    w = oplab.walk(lambda x: jax.nn.softmax(jnp.tanh(x) @ x.T), X)
    known = set(w.jaxpr.table["equation"]) | set(w.hlo.table["instruction"])
    assert {name for into in w.fates["into"] for name in into.split(", ") if name} <= known


def test_the_work_of_merged_equations_is_counted_once():
    x, w = jnp.ones((32, 16)), jnp.ones((16, 8))
    turned = oplab.walk(lambda x, w: (x @ w).T, x, w)  # XLA makes it one product, named by the transpose
    assert turned.summary()["flops"].sum() == 2 * 32 * 16 * 8
    twice = oplab.walk(lambda x, w: (x @ w, x @ w), x, w)
    assert twice.summary()["flops"].sum() == 2 * 32 * 16 * 8
    added = oplab.walk(lambda x: (x + 2) + 1, jnp.arange(8))
    assert added.summary()["flops"].sum() == 8


def test_the_parent_of_an_equation():
    assert oplab.join.parent("e7.branches.0.e2") == "e7" and oplab.join.parent("e7") == ""
    assert oplab.join.parent("e1.body_jaxpr.e2.jaxpr.e0") == "e1.body_jaxpr.e2"
