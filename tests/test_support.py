"""What `support` and `ran` say is what lowering does, asked here by other means."""

import collections
import functools
import random
import re

import jax
import jax.numpy as jnp
import pandas as pd
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec

import oplab
from oplab.lowerable import why
from oplab.ops import CATALOGUE
from oplab.ops.operator import IMPLEMENTATIONS, PLATFORMS, Unsupported
from oplab.ran import ran
from oplab.support import EVERYWHERE, support

X = jnp.ones((8, 8))
relu, softmax = CATALOGUE["relu"].function, CATALOGUE["softmax"].function
triple = Primitive("triple")  # somebody's operator, for the CPU alone
triple.def_abstract_eval(lambda x: x)
mlir.register_lowering(triple, mlir.lower_fun(lambda x: 3 * x, multiple_results=False), platform="cpu")


def double_kernel(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2


def sort_kernel(x_ref, y_ref):
    y_ref[...] = jnp.sort(x_ref[...])


def kernel_call(kernel):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 8), jnp.float32))


@jax.custom_vjp
def squared(x):
    return x * x


squared.defvjp(lambda x: (squared(x), x), lambda x, g: (2 * triple.bind(x) * g,))

MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
FUNCTIONS = {
    "add": lambda x: x + 1,
    "triple": triple.bind,
    "scan": lambda x: lax.scan(lambda c, a: (triple.bind(c), jnp.sin(a)), x[0], x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, triple.bind, x),
    "while": lambda x: lax.while_loop(lambda c: c[0, 0] < 9, lambda c: c + softmax(c), x),
    "gradient": jax.grad(lambda x: squared(x).sum()),
    "jit": lambda x: jax.jit(jax.jit(triple.bind))(x) + 1,
    "remat": jax.grad(lambda x: jax.checkpoint(lambda v: jnp.sin(softmax(v)))(x).sum()),
    "kernel": kernel_call(double_kernel),
    "sorting kernel": kernel_call(sort_kernel),
    "lab": lambda x: relu(softmax(x), implementation="pallas"),
    "callback": lambda x: jax.pure_callback(lambda v: v, x, x),
    "print": lambda x: (jax.debug.print("{}", x), x)[1],
    "library": lambda x: jax.ffi.ffi_call("not_there", x)(x),
    "lu": lambda x: jax.scipy.linalg.lu(x)[0],
    "schur": lambda x: jax.scipy.linalg.schur(x)[0],
    "eig": lambda x: jnp.linalg.eig(x)[0],
    "eigh": lambda x: jnp.linalg.eigh(x)[0],
    "svd": lambda x: jnp.linalg.svd(x)[1],
    "cholesky": jnp.linalg.cholesky,
    "random": lambda x: jax.random.normal(jax.random.key(0), (3,)),
    "sort": jnp.sort,
    "fft": lambda x: jnp.fft.fft(x).real,
    "scatter": lambda x: x.at[0].add(1.0),
    "dead": lambda x: (triple.bind(x), x * 2)[1],
    "by platform": lambda x: lax.platform_dependent(x, cpu=triple.bind, default=lambda v: v * 3),
    "sharded": jax.shard_map(lambda v: lax.psum(triple.bind(v), "i"), mesh=MESH, in_specs=PartitionSpec(),
                             out_specs=PartitionSpec(), check_vma=False),
    "ref": lambda x: jax.new_ref(x * 2)[...],
}  # fmt: skip


def lowers(f, *args, platform, **kwargs):
    """Asked anew, without any of oplab's code for it."""
    try:
        jax.jit(f).trace(*args, **kwargs).lower(lowering_platforms=(platform,))
    except Exception:
        return False
    return True


@pytest.fixture(scope="module")
def operators():
    return support()


def whole(f, *args, **kwargs):
    table = support(f, *args, **kwargs)
    return table[table["equation"] == "whole"].iloc[0]


# The table is what lowering does --------------------------------------------------------------------------


def test_sampled_cells_of_the_lab_agree_with_lowering(operators):
    table = operators.set_index(["operator", "implementation", "platform"])
    cells = [(o, i, p) for o in CATALOGUE for i in IMPLEMENTATIONS for p in PLATFORMS]
    assert set(table.index) == {(o, i, p) for o in CATALOGUE for i in IMPLEMENTATIONS for p in EVERYWHERE}
    for name, implementation, platform in random.Random(1).sample(cells, 60):
        told, note = table.loc[(name, implementation, platform), ["supported", "note"]]
        dtype = "bfloat16" if "in bfloat16" in note else "float32"
        shapes = {o: jax.ShapeDtypeStruct(tuple(s.values()), dtype)
                  for o, s in CATALOGUE[name].example.items()}  # fmt: skip
        call = functools.partial(CATALOGUE[name].function, implementation=implementation)
        assert told == lowers(call, **shapes, platform=platform), (name, implementation, platform)


@pytest.mark.parametrize("seed", range(3))
def test_sampled_functions_agree_with_lowering(seed):
    cells = [(name, platform) for name in FUNCTIONS for platform in PLATFORMS]
    for name, platform in random.Random(seed).sample(cells, 20):
        told = whole(FUNCTIONS[name], X, platform=platform).supported
        assert told == lowers(FUNCTIONS[name], X, platform=platform), (name, platform)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_where_the_whole_fails_an_equation_is_to_blame_and_only_there(name):
    table = support(FUNCTIONS[name], X)
    for platform, rows in table.groupby("platform"):
        verdict, equations = rows.iloc[0], rows.iloc[1:]
        blamed = equations[(equations["supported"] == False).fillna(False)]  # noqa: E712
        if verdict.supported:
            assert blamed["reason"].str.contains("is lowered without this equation").all()
        else:
            assert len(blamed) and not blamed["reason"].str.contains("without this equation").any(), platform
        assert (table["reason"] != "")[table["supported"].fillna(False)].sum() == 0
        assert (table["reason"] == "")[~table["supported"].fillna(False)].sum() == 0


def test_every_failing_cell_has_a_reason_and_a_way_out(operators):
    failing = operators[~operators["supported"]]
    assert (failing["reason"] != "").all() and (failing["nearest"] != "").all()
    assert (failing["reason"].str.len() <= 250).all()
    assert (operators[operators["supported"]][["reason", "nearest"]] == "").all(axis=None)


def test_a_nearest_alternative_really_lowers(operators):
    yes = {(r.operator, r.implementation, r.platform) for r in operators.itertuples() if r.supported}
    for row in operators[~operators["supported"]].itertuples():
        names, places = row.nearest.split(" on ")
        for name in names.split(" or "):
            for place in places.split(", "):
                assert (row.operator, name, place) in yes, row


def test_a_rule_taken_away_is_missed(monkeypatch):
    from oplab.ops import operator

    monkeypatch.delitem(operator.MAP["relu"]["pallas"], "tpu")  # the table that the lowering rule reads
    table = support().set_index(["operator", "implementation", "platform"])
    row = table.loc[("relu", "pallas", "tpu")]
    assert not row.supported and row.nearest == "xla on tpu"
    assert row.reason == "relu has no 'pallas' implementation on tpu"


# What the sentences say -----------------------------------------------------------------------------------


def cell(f, primitive, platform):
    table = support(f, X, platform=platform)
    return table[table["primitive"] == primitive].iloc[0]


def test_a_users_operator_without_a_rule_is_named_with_its_line_and_where_it_would_run():
    def f(x):
        y = x + 1
        return lax.scan(lambda c, a: (triple.bind(c), a), y[0], y)

    row = cell(f, "triple", "cuda")
    assert (row.reason, row.nearest) == ("triple has no rule on cuda", "cpu")
    assert row.equation.endswith("jaxpr.e0") and row.line == f.__code__.co_firstlineno + 2
    assert row.text.startswith("return lax.scan(") and row.file.endswith("test_support.py")
    verdict = whole(f, X, platform="cuda")
    assert verdict.reason == f"triple has no rule on cuda ({row.equation})" and verdict.nearest == "cpu"
    assert cell(f, "scan", "cuda").reason == verdict.reason


@pytest.mark.parametrize("name, primitive, platform, reason, nearest", [
    ("schur", "schur", "cuda", "schur has no rule on cuda", "cpu"),
    ("eig", "eig", "tpu", "eig has no rule on tpu", "cpu, cuda, rocm"),
    ("svd", "svd", "ascend", "svd needs eigh, and eigh has no rule on ascend", "cpu, cuda, rocm, tpu"),
    ("kernel", "pallas_call", "cpu", "pallas_call runs on the cpu only in the interpreter (interpret=True)",
     "tpu, interpret"),
    ("sorting kernel", "pallas_call", "tpu", "sort has no rule in Pallas TPU", "interpret"),
    ("lab", "relu", "cuda", "relu has no 'pallas' implementation on cuda", "implementation='xla'"),
    ("callback", "pure_callback", "tpu",
     "pure_callback calls back into Python, which only a process that runs on tpu can lower", "cpu"),
    ("dead", "triple", "tpu", "triple has no rule on tpu, but <lambda> is lowered without this equation",
     "cpu"),
])  # fmt: skip
def test_each_kind_of_reason(name, primitive, platform, reason, nearest):
    row = cell(FUNCTIONS[name], primitive, platform)
    assert (row.supported, row.reason, row.nearest) == (False, reason, nearest)


def test_reasons_are_short_and_name_what_they_do_not_explain():
    assert why(ModuleNotFoundError("No module named 'absl'"), "f", "cuda") == (
        "ModuleNotFoundError: No module named 'absl'"
    )
    assert why(AssertionError(), "f", "tpu") == "AssertionError"
    assert len(why(ValueError("long " * 100), "f", "tpu")) <= 200
    advice = "f's kernel is too long: use implementation='xla'."
    assert why(Unsupported(advice), "f", "tpu") == "f's kernel is too long"


def test_platforms_without_a_backend_and_names_that_are_none():
    assert whole(FUNCTIONS["add"], X, platform="metal").reason == (
        "JAX has no backend named 'metal' in this installation: what is lowered could not be compiled there"
    )
    assert "(is 'cpu' meant?)" in whole(FUNCTIONS["add"], X, platform="cpuu").reason
    assert not support(FUNCTIONS["scan"], X, platform="ascend")["supported"].any()
    with pytest.raises(ValueError, match="'cuda' or 'rocm', got 'gpu'"):
        support(FUNCTIONS["add"], X, platform="gpu")
    with pytest.raises(ValueError, match="expects names of platforms, such as cpu, cuda"):
        support(FUNCTIONS["add"], X, platform=[3])
    with pytest.raises(TypeError, match="not oplab.support\\(f\\(x\\)\\)"):
        support(X)
    with pytest.raises(oplab.WalkError, match="could not be traced"):
        support(lambda x: x @ jnp.ones(3), X)


def test_interpret_runs_kernels_of_any_function_in_the_interpreter():
    assert whole(FUNCTIONS["kernel"], X, platform="interpret").supported
    inside = lambda x: lax.cond(x[0, 0] > 0, kernel_call(double_kernel), lambda v: v, x)
    assert whole(inside, X, platform="interpret").supported and not whole(inside, X, platform="cpu").supported


def test_what_stands_only_among_others_is_judged_by_the_whole():
    rows = support(FUNCTIONS["sharded"], X, platform=["cpu", "tpu"]).set_index(["platform", "primitive"])
    assert rows.loc[("cpu", "psum"), "supported"] and rows.loc[("cpu", "shard_map"), "supported"]
    assert pd.isna(rows.loc[("tpu", "psum"), "supported"])
    assert "only with what is around it, and there triple has no rule" in rows.loc[("tpu", "psum"), "reason"]
    assert rows.loc[("tpu", "shard_map"), "reason"] == "triple has no rule on tpu (e0.jaxpr.e0)"


def test_what_lowers_as_one_is_one_row():
    assert list(support(FUNCTIONS["kernel"], X, platform="tpu")["equation"]) == ["whole", "e0"]
    inside = support(FUNCTIONS["scatter"], X, platform="cpu")["equation"].str.contains("update_jaxpr")
    assert not inside.any()


def test_a_library_that_is_called_by_name_is_told_and_nothing_more():
    row = cell(FUNCTIONS["library"], "ffi_call", "cuda")
    assert row.supported and row.note == "calls not_there" and row.reason == ""


def test_nothing_is_compiled_and_the_same_question_is_asked_once(monkeypatch):
    asked = collections.Counter()
    lower = jax.stages.Traced.lower

    def counted(self, **options):
        asked[options["lowering_platforms"]] += 1
        return lower(self, **options)

    monkeypatch.setattr(jax.stages.Traced, "lower", counted)
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda *_: pytest.fail("compiled"))
    support(lambda x: jnp.sin(jnp.sin(jnp.sin(jnp.sin(x)))), X, platform=["cpu", "tpu"])
    assert asked == {("cpu",): 2, ("tpu",): 2}  # the whole, and one sine for all four


# How it prints --------------------------------------------------------------------------------------------


def test_the_table_is_a_data_frame_to_filter(operators):
    assert isinstance(operators, pd.DataFrame) and len(operators[operators["platform"] == "tpu"]) == (
        len(CATALOGUE) * len(IMPLEMENTATIONS)
    )
    two = ["operator", "platform"]
    assert repr(operators[two]) == repr(pd.DataFrame(operators)[two])
    assert operators.groupby("operator")["supported"].any().all()


def test_it_prints_as_a_matrix_with_its_reasons_below(operators):
    lines = repr(operators).split("\n")
    assert lines[0].split() == ["operator", "implementation", *EVERYWHERE]
    assert len(lines) < 3 * len(CATALOGUE) + 25, "reasons that are the same stand once"
    assert re.search(r"^relu +xla +yes +yes +yes +yes +no \[1\]", lines[1])
    assert re.search(r"^ +pallas +yes, interpreted +no \[\d+\]", lines[2])
    numbers = set(re.findall(r"(?:no|\?) \[(\d+)\]", repr(operators)))
    assert numbers == {line[1:].split("]")[0] for line in lines if line.startswith("[")}


def test_in_a_notebook_words_carry_the_verdict_and_names_are_escaped(operators):
    page = operators._repr_html_()
    assert page.count("<td") - page.count("<tr") + 1 >= len(operators)
    for colour, word in (("rgba(0,158,115", "yes"), ("rgba(213,94,0", "no [")):
        for cell in re.findall(rf"<td[^>]*{re.escape(colour)}[^>]*>([^<]*)<", page):
            assert cell.startswith(word)
    table = support(triple.bind, X, platform="tpu")
    table["text"] = "<script>alert(1)</script>"
    assert "<script" not in table._repr_html_() and "&lt;script" in table._repr_html_()


def test_of_a_long_program_only_the_rows_with_a_no_are_drawn():
    def long(x):
        for _ in range(30):
            x = jnp.sin(x)
        return triple.bind(x)

    lines = repr(support(long, X, platform=["cpu", "tpu"])).split("\n")
    assert [line.split()[0] for line in lines[:3]] == ["equation", "whole", "e30"]
    assert "30 more rows say yes on every platform here." in lines


# What ran -------------------------------------------------------------------------------------------------


def rows(table):
    return [(r.operator, r.asked, r.ran, bool(r.interpreted)) for r in table.itertuples()]


@pytest.mark.parametrize("f, expected", [
    (lambda x: relu(x, implementation="pallas"), [("relu", "pallas", "pallas", True)]),
    (lambda x: softmax(x) + relu(x, implementation="xla"),
     [("softmax", None, "xla", False), ("relu", "xla", "xla", False)]),
    (lambda x: softmax(softmax(x, implementation="pallas"), implementation="xla"),
     [("softmax", "pallas", "pallas", True), ("softmax", "xla", "xla", False)]),
    (lambda x: lax.scan(lambda c, a: (softmax(c, implementation="pallas"), relu(a)), x[0], x),
     [("softmax", "pallas", "pallas", True), ("relu", None, "xla", False)]),
    (lambda x: lax.cond(x[0, 0] > 0, relu, softmax, x),
     [("softmax", None, "xla", False), ("relu", None, "xla", False)]),
    (jax.vmap(functools.partial(softmax, implementation="pallas")), [("softmax", "pallas", "pallas", True)]),
    (jax.grad(lambda x: relu(x, implementation="pallas").sum()), [("relu", "pallas", None, False)]),
    (lambda x: jax.jit(relu)(jax.jit(relu)(x)), [("relu", None, "xla", False)] * 2),
    (lambda x: (relu(x), x)[1], [("relu", None, None, False)]),
    (jax.named_scope("pallas")(lambda x: jax.named_scope("softmax")(relu)(x)),
     [("relu", None, "xla", False)]),
    (jnp.sin, []),
])  # fmt: skip
def test_what_ran_is_read_from_the_lowered_program(f, expected):
    assert rows(ran(f, X, platform="cpu")) == expected


def test_on_a_tpu_a_kernel_is_compiled_and_dead_code_is_said_to_be():
    table = ran(lambda x: (softmax(x), relu(x, implementation="pallas"))[1], X, platform="tpu")
    assert rows(table) == [("softmax", None, None, False), ("relu", "pallas", "pallas", False)]
    assert set(table["platform"]) == {"tpu"} and list(table["note"]) == [
        "nothing was written: its result is not used, or is empty", ""]  # fmt: skip


def test_a_walk_can_be_asked_and_gives_the_same_ids_and_lines():
    def f(x):
        y = x @ x
        return softmax(y, implementation="pallas")

    w = oplab.walk(f, X)
    table = ran(w)
    assert rows(table) == [("softmax", "pallas", "pallas", True)] and list(table["platform"]) == ["cpu"]
    of_the_walk = w.jaxpr.table.set_index("equation").loc[table["equation"][0]]
    assert (of_the_walk["primitive"], of_the_walk["line"]) == ("softmax", table["line"][0])


def test_an_implementation_that_cannot_do_the_job_raises_and_says_why():
    sentence = "relu has no 'pallas' implementation on cuda.*use implementation='xla'"
    with pytest.raises(oplab.WalkError, match=sentence):
        ran(functools.partial(relu, implementation="pallas"), X, platform="cuda")
    with pytest.raises(ValueError, match="platform of a machine"):
        ran(relu, X, platform="interpret")
    with pytest.raises(TypeError, match="or a walk, got an array"):
        ran(X)
