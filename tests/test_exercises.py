"""Every exercise takes its own answer, and turns down what is wrong with words that name the fault."""

import importlib
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exercise_mistakes import MISTAKES
from jax.experimental import pallas as pl

from oplab import exercises
from oplab.exercises import record

CASES = [(name, source, words) for name, wrong in MISTAKES.items() for source, words in wrong.items()]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("OPLAB_STABLE", "1")
    exercises.forget()


def custom(slope):
    """A relu with this slope as its rule."""
    relu = jax.custom_jvp(lambda x: jnp.where(x < 0, 0, x).astype(x.dtype))
    relu.defjvp(lambda primals, tangents: (relu(*primals), slope(*primals, *tangents)))
    return relu


def tiles(index):
    def transpose(x):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...].T
        return pl.pallas_call(
            kernel, grid=(4, 2), out_shape=jax.ShapeDtypeStruct((512, 256), x.dtype), interpret=True,
            in_specs=[pl.BlockSpec((128, 128), index)],
            out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)))(x)
    return transpose


def column(i):
    return 128 * i + jax.lax.broadcasted_iota(jnp.int32, (8, 128), 1)


def sums(masked):
    def row_sums(x):
        n = x.shape[1]
        def kernel(x_ref, o_ref):
            @pl.when(pl.program_id(0) == 0)
            def _():
                o_ref[...] = jnp.zeros_like(o_ref)
            o_ref[...] += masked(x_ref[...], pl.program_id(0), n).sum(1, keepdims=True)
        return pl.pallas_call(
            kernel, grid=(pl.cdiv(n, 128),), out_shape=jax.ShapeDtypeStruct((8, 1), x.dtype), interpret=True,
            in_specs=[pl.BlockSpec((8, 128), lambda i: (0, i))],
            out_specs=pl.BlockSpec((8, 1), lambda i: (0, 0)))(x)
    return row_sums


def product(kernel):
    block = lambda index: pl.BlockSpec((128, 128), index)
    return pl.pallas_call(
        kernel, grid=(2, 2, 4), out_shape=jax.ShapeDtypeStruct((256, 256), jnp.float32), interpret=True,
        in_specs=[block(lambda i, j, k: (i, k)), block(lambda i, j, k: (k, j))],
        out_specs=block(lambda i, j, k: (i, j)))


def made(name, source):
    """A learner's solution, from its source, with what the exercise's module offers."""
    module = importlib.import_module(f"oplab.exercises.{name}")
    tools = {"custom": custom, "tiles": tiles, "column": column, "sums": sums, "product": product}
    return eval(source, {**vars(module), "np": np, "jax": jax, "jnp": jnp, "pl": pl, **tools})


def answered(name, source):
    module = importlib.import_module(f"oplab.exercises.{name}")
    space = {"jax": jax, "jnp": jnp, "pl": pl, "reverse": getattr(module, "reverse", None)}
    exec(source, space)
    return space[module.EXERCISE.solution]


def test_there_are_exercises_on_four_levels_and_each_has_mistakes():
    table = exercises.progress()
    assert list(table["exercise"]) == exercises.names() == list(MISTAKES)
    assert len(table) >= 12 and table.groupby("level").size().min() >= 3
    assert all(len(wrong) >= 3 for wrong in MISTAKES.values())


@pytest.mark.parametrize("name", exercises.names())
def test_the_answer_is_taken_and_quickly(name):
    exercise = getattr(exercises, name)
    started = time.process_time()
    outcome = exercise.check(answered(name, exercise.answer().code))
    assert outcome, outcome
    assert "solved" in repr(outcome)
    assert time.process_time() - started < 5  # seconds, of all processors together


@pytest.mark.parametrize("name", exercises.names())
def test_the_starter_defines_its_solution_and_is_not_one(name):
    exercise = getattr(exercises, name)
    assert not exercise.check(answered(name, exercise.starter))


@pytest.mark.parametrize("name, source, words", CASES)
def test_a_mistake_is_named(name, source, words):
    exercise = getattr(exercises, name)
    outcome = exercise.check(made(name, source))
    assert not outcome
    assert words in outcome.fault, outcome
    assert outcome.hint == exercise.hints[0]


def test_hints_come_one_after_the_other_and_start_again_when_it_is_solved():
    exercise = exercises.layer_flops
    shown = [exercise.check(lambda *_: 0).hint for _ in range(4)]
    assert shown == [*exercise.hints, exercise.hints[2]]
    assert exercise.check(answered("layer_flops", exercise.answer().code))
    assert exercise.check(lambda *_: 0).hint == exercise.hints[0]


def test_progress_shows_where_one_stands():
    exercises.two_become_one.check(lambda x: x)
    exercises.layer_flops.check(answered("layer_flops", exercises.layer_flops.answer().code))
    table = exercises.progress().set_index("exercise")["state"]
    assert (table["layer_flops"], table["two_become_one"], table["no_table"]) == ("solved", "tried", "new")
    shelf = exercises.progress()
    assert "● layer_flops" in repr(shelf) and "◐ two_become_one" in repr(shelf) and "1 of" in repr(shelf)
    assert "layer_flops" in shelf._repr_html_()


def test_a_restarted_kernel_does_not_forget(monkeypatch, tmp_path):
    monkeypatch.delenv("OPLAB_STABLE")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(record, "_file", lambda: tmp_path / "kept" / "exercises.json")
    record.tried("no_table", True)
    record._here.clear()  # as a new process begins
    assert record.everything() == {"no_table": {"tries": 0, "solved": True}}
    assert json.loads((tmp_path / "kept" / "exercises.json").read_text())
    for broken in ("{", "[]", '{"no_table": 3}', '{"no_table": {}}'):
        (tmp_path / "kept" / "exercises.json").write_text(broken)
        record._here.clear()
        assert record.everything() == {}


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(monkeypatch, tmp_path):
    monkeypatch.delenv("OPLAB_STABLE")
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(record, "_file", lambda: tmp_path / "file" / "exercises.json")
    assert record.tried("no_table", False) == 1
    assert record.tried("no_table", True) == 2


def test_an_exercise_says_what_to_do_and_folds_its_answer():
    exercise = exercises.no_table
    for shown in (repr(exercise), exercise._repr_html_()):
        assert exercise.size in shown and "exercises.no_table.check(attention)" in shown
    assert "def attention" not in repr(exercise.answer())
    assert exercise.answer()._repr_html_().startswith("<details>")
    assert "def attention" in str(exercise.answer())


def test_an_unknown_exercise_is_refused():
    with pytest.raises(AttributeError, match="no_such"):
        getattr(exercises, "no_such")  # noqa: B009
