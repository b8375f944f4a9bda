"""The walk takes whatever jax.jit takes, gives every stage, and changes nothing about the function."""

import functools
import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import oplab
from oplab import document
from oplab.stages import hlo


def affine_relu(x, W, b):
    h = x @ W + b
    return jax.nn.relu(h)


X, W, B = jnp.ones((8, 4)), jnp.ones((4, 2)), jnp.ones(2)


class Layer:
    scale = 2.0

    def __call__(self, x):
        return jnp.cos(x) * self.scale

    def method(self, x):
        return jnp.exp(x)

    @classmethod
    def of_class(cls, x):
        return jnp.tan(x)

    __hash__ = None  # compares by value, as a dataclass does


def primitives(w):
    return list(w.jaxpr.table["primitive"])


def in_one_piece(w):
    """Every table is there, every equation has one fate, every kernel an owner, and the result is that of the
    plain function.
    """
    for name in document.CERTAIN:
        stage = getattr(w, name)
        assert stage.name == name and len(stage.table.columns)
    assert list(w.fates["equation"]) == list(w.jaxpr.table["equation"])
    assert w.fates["fate"].isin(oplab.fates.FATES).all()
    gone = w.fates[~w.fates["fate"].isin(["kept", "fused", "library"])]
    assert (gone["by_pass"] != "").all(), gone
    unowned = w.kernels.table[w.kernels.table["equations"].map(len) == 0]
    assert unowned["reason"].str.contains("own copy").all(), (
        unowned
    )  # an argument handed back as it is: no equation asked for that
    return w


def test_every_stage_of_the_first_example():
    w = in_one_piece(oplab.walk(affine_relu, X, W, B))
    assert "x @ W + b" in w.script.text and set(
        w.script.table["line"] - affine_relu.__code__.co_firstlineno
    ) == {1, 2}
    assert primitives(w) == ["dot_general", "broadcast_in_dim", "add", "custom_jvp_call", "jit", "max"]
    assert "stablehlo.dot_general" in set(w.stablehlo.table["name"])
    assert w.hlo.text.startswith("HloModule jit_affine_relu")
    np.testing.assert_array_equal(w.compiled(X, W, B), jax.jit(affine_relu)(X, W, B))


def test_text_line_is_where_the_row_stands():
    w = oplab.walk(affine_relu, X, W, B)
    for stage, key in (
        (w.script, "text"),
        (w.hlo, "instruction"),
        (w.jaxpr, "primitive"),
        (w.stablehlo, "name"),
    ):
        lines = stage.text.split("\n")
        for row in stage.table.to_dict("records"):
            assert row[key] in lines[row["text_line"] - 1], (stage.name, row)


@pytest.mark.parametrize(
    "make, primitive",
    [
        (lambda: lambda x: jnp.floor(x), "floor"),
        (lambda: Layer(), "cos"),
        (lambda: Layer().method, "exp"),
        (lambda: Layer.of_class, "tan"),
        (lambda: functools.partial(lambda s, x: jnp.tanh(x) * s, 2.0), "tanh"),
        (lambda: functools.partial(functools.partial(Layer().method)), "exp"),
        (lambda: jax.jit(jnp.sin), "sin"),
        (lambda: jnp.arcsin, "asin"),
        (lambda: jax.vmap(jnp.sinh), "sinh"),
        (lambda: jax.grad(lambda x: jnp.sin(x).sum()), "cos"),
    ],
)
def test_any_callable(make, primitive):
    w = in_one_piece(oplab.walk(make(), X))
    assert primitive in primitives(w) and w.name


def test_a_function_without_source():
    namespace = {"jnp": jnp}
    exec("def typed(x):\n    y = jnp.sin(x)\n    return y * 2", namespace)
    w = oplab.walk(namespace["typed"], X)
    assert list(w.jaxpr.table["line"]) == [2, 3] and oplab.stages.script.NO_SOURCE in w.script.text


def test_a_source_file_that_was_deleted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "gone_module.py").write_text("import jax.numpy as jnp\n\ndef g(x):\n    return jnp.sin(x)\n")
    import gone_module

    (tmp_path / "gone_module.py").unlink()
    w = oplab.walk(gone_module.g, X)
    assert list(w.jaxpr.table["line"]) == [4]
    assert str(tmp_path) not in w.script.text + w.hlo.text


def test_arguments_of_every_kind():
    def f(p, x, *rest, mode="relu", scale=2.0, mask=None):
        h = x @ p["w"][0] + sum(rest)
        h = jax.nn.relu(h) if mode == "relu" else jnp.tanh(h)
        return {"y": h * scale, "none": None, "mask": mask}

    p = {"w": [W, None], "unused": jnp.ones(5)}
    w = in_one_piece(oplab.walk(f, p, X, B, 1.5, mode="tanh", scale=np.float32(3), static_argnames=("mode",)))
    assert "tanh" in primitives(w) and "max" not in primitives(w)
    w.execute(1)  # the static argument is compiled in, the rest is passed
    positional = oplab.walk(lambda m, n, x: x * n if m else x, True, 3, X, static_argnums=(0, 1)).execute(1)
    assert "mul" in primitives(positional)
    assert primitives(oplab.walk(lambda: jnp.arange(3.0) * 2)) == ["iota", "mul"]
    assert in_one_piece(oplab.walk(lambda a, b, c: a * b + c, np.ones(3), 2, 1.5))
    assert in_one_piece(oplab.walk(lambda k: jax.random.normal(k, (3,)), jax.random.key(0)))


def test_donated_arguments_can_be_executed_again_and_again():
    x = jnp.ones((16, 16))
    w = oplab.walk(lambda a, b: a @ b + b, x, x + 1, donate_argnums=0).execute(3)
    assert not x.is_deleted() and len(w.wall_us) == 3


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "float16", "bfloat16", "float32", "uint8"])
def test_dtypes(dtype):
    x = jnp.ones((4, 4), dtype)
    w = in_one_piece(oplab.walk(lambda x: (jnp.where(x == 0, x, x).T @ x.astype("float32"), x), x))
    np.testing.assert_array_equal(w.compiled(x)[0], jax.jit(w.function)(x)[0])


def test_float64():
    with jax.enable_x64(True):
        w = in_one_piece(oplab.walk(lambda x: jax.nn.softmax(x * 1.0), jnp.ones((4, 4), "float64")))
        assert "f64[4,4]" in w.hlo.text


def test_effects_run_as_often_as_asked_and_never_while_walking():
    seen = []

    def f(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())
        return x * 2

    w = in_one_piece(oplab.walk(f, X))
    assert seen == [] and any(w.jaxpr.table["effects"].map(len))
    w.execute(repeats=3)
    jax.effects_barrier()
    assert len(seen) == 4  # one to warm up


def nested(x):
    a = jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]
    a = jax.lax.while_loop(lambda c: jnp.all(jnp.cos(c) > 2), jnp.tan, a)
    a = jax.lax.cond(a[0] > 0, jnp.arcsin, jnp.arccos, a)
    a = jax.checkpoint(jnp.expm1)(a)
    return jax.lax.fori_loop(0, 2, lambda i, c: jax.jit(lambda y: jax.jit(jnp.sqrt)(y))(c), a)


def test_control_flow_is_numbered_and_owned_at_every_depth():
    w = in_one_piece(oplab.walk(nested, jnp.ones(4)))
    counts = w.jaxpr.table["primitive"].value_counts()
    for primitive in ("sin", "cos", "tan", "asin", "acos", "expm1", "sqrt"):
        assert counts[primitive] == 1
    trips = w.jaxpr.table.set_index("primitive")["trips"]
    assert trips["sin"] == 3 and trips["sqrt"] == 2 and trips.isna()["tan"]
    assert w.census().set_index("operator").loc["sin", "runs"] == 3
    in_one_piece(
        oplab.walk(
            jax.grad(lambda x: jax.lax.scan(lambda c, t: (jnp.tanh(c + t), c.sum()), x, X[0])[0].sum()),
            jnp.ones(4),
        )
    )


def test_two_calls_of_one_jitted_function_are_told_apart():
    g = jax.jit(lambda y: jnp.sin(y) @ y)
    w = oplab.walk(lambda x: g(g(x)), jnp.ones((4, 4)))
    owners = {e for equations in w.hlo.table["equations"] for e in equations}
    assert {"e0.jaxpr.e0", "e0.jaxpr.e1", "e1.jaxpr.e0", "e1.jaxpr.e1"} <= owners
    sine = w.stablehlo.table.set_index("name").loc["stablehlo.sine"]
    assert set(sine["equations"]) == {"e0.jaxpr.e0", "e1.jaxpr.e0"}  # one shared function in StableHLO


def test_branches_that_are_the_same_jaxpr_are_told_apart():
    w = in_one_piece(oplab.walk(lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.sin, x), jnp.ones(4)))
    table = w.jaxpr.table
    cond = table["equation"][table["primitive"] == "cond"].item()
    assert {f"{cond}.branches.0.e0", f"{cond}.branches.1.e0"} == set(
        table["equation"][table["primitive"] == "sin"]
    )


def test_custom_rules():
    @jax.custom_vjp
    def f(x):
        return jnp.sinh(x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.cosh(x),))
    w = in_one_piece(oplab.walk(jax.grad(lambda x: f(x).sum()), X))
    np.testing.assert_array_equal(w.compiled(X), jax.jit(w.function)(X))


def test_sharded_over_two_devices():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    f = jax.shard_map(lambda x: jax.lax.psum(jnp.tanh(x), "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    x = jnp.arange(8.0)
    w = in_one_piece(oplab.walk(f, x))
    np.testing.assert_array_equal(w.compiled(x), jax.jit(f)(x))


def test_a_big_constant_shows_in_no_text_and_no_file(tmp_path):
    big = jnp.asarray(np.random.default_rng(0).normal(size=(1448, 1448)).astype("float32"))  # 8 MB
    w = oplab.walk(lambda x: x @ big, jnp.ones((2, 1448)))
    assert all(len(getattr(w, name).text) < 60_000 for name in document.CERTAIN)
    assert len(json.dumps(w.to_json())) < 200_000
    page = tmp_path / "walk.html"
    w.save(page)
    assert page.stat().st_size < 500_000


def test_deeply_nested_jits_work_or_say_so():
    f = jnp.sin
    for _ in range(400):
        f = jax.jit(functools.partial(lambda g, x: g(x), f))
    try:
        in_one_piece(oplab.walk(f, 1.0))
    except oplab.WalkError as error:
        assert "nested too deeply" in str(error) and isinstance(error.__cause__, RecursionError)


def test_ten_thousand_equations():
    def f(x):
        for _ in range(5000):
            x = x * 1.5 + 0.5
        return x

    w = oplab.walk(f, jnp.float32(1))
    assert len(w.jaxpr.table) == 10_000
    assert w.jaxpr.table["text_line"].notna().all()


def test_walking_compiles_once_and_once_more_for_dumps(monkeypatch):
    count = []
    real = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda self, *a, **k: count.append(1) or real(self, *a, **k)
    )
    w = oplab.walk(affine_relu, X, W, B)
    assert w.hlo and w.stablehlo and w.jaxpr
    assert len(count) == 1
    w.fates, w.kernels, w.passes, w.links, w.summary()
    assert len(count) == 2
    w.execute(1)
    assert len(count) == 2
    count.clear()
    again = oplab.walk(affine_relu, X, W, B)
    again.fates, again.hlo, again.execute(1)
    assert len(count) == 1  # a compile with dumps serves every stage


def test_the_compiled_text_is_the_plain_one():
    """Apart from our tags, which are taken out of the text, it is the same, byte for byte."""
    grad = jax.grad(lambda x: jax.nn.softmax(x @ W).max())
    for f, args in ((affine_relu, (X, W, B)), (nested, (jnp.ones(4),)), (grad, (X,))):
        plain = jax.jit(f).lower(*args).compile().as_text()
        assert oplab.walk(f, *args).hlo.text == hlo.display(plain)


def test_a_persistent_cache_is_neither_read_nor_written(tmp_path):
    from jax.experimental.compilation_cache import compilation_cache

    cache = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in cache}
    try:
        for name, value in cache.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        jax.clear_caches()
        jax.block_until_ready(jax.jit(affine_relu)(X, W, B))
        held = sorted(p.name for p in tmp_path.iterdir())
        assert held, "the cache was not in use, so this test would prove nothing"
        w = oplab.walk(affine_relu, X, W, B)
        assert len(w.passes.table) > 1 and (w.hlo.table["how"] == "exact").any()
        assert sorted(p.name for p in tmp_path.iterdir()) == held
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


# Bad input: one sentence, JAX's own error behind it ---------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: oplab.walk(X), "expects a function"),
        (lambda: oplab.walk(3), "expects a function"),
        (lambda: oplab.walk(affine_relu), "no arguments"),
        (lambda: oplab.walk(affine_relu, X, X, B), "could not be traced"),
        (lambda: oplab.walk(lambda x: x if x.sum() > 0 else -x, X), "could not be traced"),
        (lambda: oplab.walk(affine_relu, X, W, B, target="quantum"), "'quantum'"),
        (
            lambda: oplab.walk(affine_relu, X, W, B, options={"xla_cpu_no_such_option": 1}).hlo,
            "xla_cpu_no_such_option",
        ),
        (lambda: oplab.walk(affine_relu, X, W, B, options="fast"), "as a dict"),
        (lambda: oplab.walk(lambda x, m: x * m[0], X, [1, 2], static_argnums=1), "hashable"),
        (lambda: oplab.walk(jax.jit(affine_relu), X, W, B, donate_argnums=0), "jitted already"),
        (
            lambda: oplab.walk(
                affine_relu, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, W, B))
            ).execute(),
            "needs arrays",
        ),
        (lambda: oplab.walk(affine_relu, X, W, B).execute(0), "at least 1"),
        (lambda: oplab.walk(affine_relu, X, W, B).execution, "execute() first"),
        (lambda: oplab.walk(affine_relu, X, W, B).code("nothing"), "name of a kernel"),
        (lambda: oplab.walk(affine_relu, X, W, B).save("walk.pdf"), ".html"),
    ],
)
def test_bad_input_is_told_in_one_sentence(call, words):
    with pytest.raises(ValueError, match=r"\w") as caught:
        call()
    message = str(caught.value)
    assert words in message and "\n" not in message and "0x" not in message


def test_the_cause_is_kept():
    with pytest.raises(oplab.WalkError) as caught:
        oplab.walk(lambda x: x if x.sum() > 0 else -x, X)
    assert isinstance(caught.value.__cause__, jax.errors.TracerBoolConversionError)
    said = str(caught.value)
    assert "depends on the value of the argument x" in said and __file__ not in said and "http" not in said


def test_a_folder_that_cannot_be_written_leaves_the_other_stages(monkeypatch):
    import tempfile

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system")

    w = oplab.walk(affine_relu, X, W, B)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    assert "temporary folder" in w.passes.text and len(w.hlo.table) and len(w.kernels.table)
    assert "could not be read" in w.kernels.table["reason"].str.cat()
    assert "unknown" in w.fates["by_pass"].str.cat()
    w.execute(2)
    assert len(w.wall_us) == 2 and "profiler" in w.execution.text


def test_dumps_cut_short_by_a_full_disk_are_not_taken_for_the_truth(monkeypatch):
    real = oplab.stages.passes.read

    def cut(folder):
        victim = max(name for name in os.listdir(folder) if name.endswith("optimizations.txt"))
        open(os.path.join(folder, victim), "w").close()
        return real(folder)

    monkeypatch.setattr(oplab.stages.passes, "read", cut)
    w = oplab.walk(affine_relu, X, W, B)
    assert "disk is probably full" in w.passes.text and len(w.passes.table) == 0 and len(w.hlo.table)


def test_nothing_is_left_in_the_temporary_folder(tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    w = oplab.walk(affine_relu, X, W, B)
    w.to_json()
    w.execute(2)
    assert list(tmp_path.iterdir()) == []


def test_recursion_limit_is_as_it_was():
    before = sys.getrecursionlimit()
    oplab.walk(affine_relu, X, W, B)
    assert sys.getrecursionlimit() == before


def test_every_equation_stands_on_the_line_that_the_table_names():
    def short(x):
        return jnp.sin(x) * x + 1

    def long(x):
        return jax.lax.cond(x[0] > 0, jnp.cos, lambda y: short(y), short(x))

    for f in (short, long, jax.grad(lambda x: long(x).sum())):
        w = oplab.walk(f, jnp.ones(3))
        lines = w.jaxpr.text.split("\n")
        for row in w.jaxpr.table.itertuples():
            assert row.primitive in lines[row.text_line - 1], (row.equation, row.primitive)


def test_addresses_are_hidden_and_constants_in_hexadecimal_are_not():
    from oplab.stages.script import hide_addresses

    assert hide_addresses("<function f at 0x7f00aabbccdd>") == "<function f at 0x...>"
    assert hide_addresses('dense<[0xFF800000, 0x7FC00000]> : "0x55d0c0ffee10"') == (
        'dense<[0xFF800000, 0x7FC00000]> : "0x..."')
    text = oplab.walk(lambda x: jnp.max(x), jnp.ones(4)).stablehlo.text
    assert "dense<0xFF800000>" in text and "0x..." not in text
