"""What people have reported of other tools that show programs, as checks of our own walk.

Each test names the public issue where the trouble was described, and asks for what would have been right.
"""

import collections
import functools
import importlib
import linecache
import os
import re
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oplab

x3 = jnp.ones(3)


def primitives(walk):
    return list(walk.jaxpr.table["primitive"])


# What can be walked

def test_a_function_is_the_same_whichever_way_it_comes():
    """zombie-einstein/jaxpr-viz#22: grad(f) was one box unless it was jitted first."""
    def f(x):
        return x**2 * jnp.sin(x)

    def operators(g, x=1.0):
        return sorted(p for p in primitives(oplab.walk(g, x)) if p != "jit")

    assert operators(f) == operators(jax.jit(f))
    assert operators(jax.grad(f)) == operators(jax.jit(jax.grad(f)))
    assert "cos" in operators(jax.grad(f)) and "cos" in operators(jax.grad(jax.jit(f)))
    assert "sin" in operators(jax.vmap(f), jnp.ones(3)) and "cos" in operators(jax.value_and_grad(f))


Pair = collections.namedtuple("Pair", "weight bias")


def layered(params, x, *more, mode="relu", mask=None):
    h = x @ params["layers"][0].weight + params["layers"][0].bias
    for m in more:
        h = h + m
    return {"y": jax.nn.relu(h) if mode == "relu" else jnp.tanh(h), "nothing": None, "rest": (h.sum(), mask)}


def test_pytrees_none_leaves_static_and_keyword_arguments():
    """zombie-einstein/jaxpr-viz#26, jax-ml/jax#4712."""
    params = {"layers": [Pair(jnp.ones((3, 2)), jnp.zeros(2)), None], "unused": jnp.ones(5)}
    args = (params, jnp.ones((4, 3)), jnp.ones((4, 2)))
    walk = oplab.walk(layered, *args, mode="tanh", static_argnames=("mode",))
    assert "tanh" in primitives(walk) and "max" not in primitives(walk)
    parameters = walk.hlo.text.split("ENTRY")[1].count(" parameter(")
    assert parameters == 4  # weight, bias, x and one more: no phantom for None, and the unused one is gone
    chosen = oplab.walk(lambda mode, x: jnp.tanh(x) if mode else x, True, x3, static_argnums=(0,))
    assert primitives(chosen) == ["tanh"]
    np.testing.assert_allclose(walk.execute(repeats=1).compiled(*args)["y"], np.tanh(4.0), 1e-6)


@pytest.mark.parametrize("f, args", [
    (lambda x: jax.nn.softmax(x) @ x.T, (jax.ShapeDtypeStruct((4, 4), jnp.float32),)),
    (lambda: jnp.arange(3.0) * 2, ()),
    (lambda a, b, c: a * b + c, (np.ones(3), 2, 1.5)),
    (lambda key: jax.random.normal(key, (3,)), (jax.random.key(0),)),
], ids=["shape", "no argument", "numpy and Python numbers", "typed key"])
def test_arguments_of_every_sort(f, args):
    walk = oplab.walk(f, *args)
    assert len(walk.jaxpr.table) and len(walk.hlo.table)


def test_an_unhashable_static_argument_is_named():
    """jax-ml/jax#4661."""
    with pytest.raises(ValueError, match="hashable"):
        oplab.walk(lambda m, x: x * m[0], [1, 2], x3, static_argnums=(0,))


# Nested programs

@jax.custom_jvp
def with_jvp(x):
    return jnp.sinh(x)


with_jvp.defjvp(lambda p, t: (with_jvp(*p), t[0] * jnp.asinh(p[0])))


@jax.custom_vjp
def with_vjp(x):
    return jnp.cosh(x)


with_vjp.defvjp(lambda x: (with_vjp(x), x), lambda x, g: (g * jnp.acosh(x),))


def every_nesting(x):
    lax = jax.lax
    x = lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0]
    x = lax.while_loop(lambda c: jnp.all(jnp.cos(c) > 2), jnp.tan, x)
    x = lax.cond(x[0] > 0, jnp.arcsin, jnp.arccos, x)
    x = lax.switch(x.sum().astype(int) % 2, [jnp.arctan, jnp.tanh], x)
    x = jax.jit(jax.jit(jax.checkpoint(lambda c: jnp.sqrt(jnp.expm1(c)))))(x)
    x = with_vjp(with_jvp(x))
    x = lax.fori_loop(0, 2, lambda i, c: jnp.floor(c), x)
    x = lax.map(jnp.ceil, x)
    return lax.custom_linear_solve(lambda v: 2 * v, x, lambda matvec, b: lax.round(b))


def test_every_nested_program_is_walked_once():
    """jax-ml/jax#12462, PR#3522: inner programs opaque, or counted twice; rules that never run, too."""
    table = oplab.walk(every_nesting, jnp.full(4, 0.5)).jaxpr.table
    count = collections.Counter(table["primitive"])
    for inner in "sin cos tan asin acos atan tanh expm1 sqrt sinh cosh floor ceil round".split():
        assert count[inner] == 1, inner
    assert not count["asinh"] and not count["acosh"]  # derivative rules are no part of this program
    assert table["line"].notna().all()


def test_effects_are_listed_and_nothing_runs_while_walking():
    """jax-ml/jax#18802, #21713, #23501: prints without outputs vanish, callbacks run while tracing."""
    seen = []

    def f(x):
        jax.debug.print("sum {s}", s=x.sum())

        def step(carry, item):
            jax.debug.callback(lambda v: seen.append(float(v)), carry)
            return carry + item, None

        total, _ = jax.lax.scan(step, 0.0, x)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.experimental.io_callback(lambda v: np.float32(v * 2), scalar, total, ordered=True)

    walk = oplab.walk(f, jnp.arange(3.0))
    table = walk.jaxpr.table
    _ = walk.fates, walk.kernels
    assert (table["outputs"].map(len) == 0).sum() >= 2
    assert table["effects"][table["primitive"] == "io_callback"].map(len).all()
    assert not seen
    walk.execute(repeats=2)
    jax.effects_barrier()
    assert seen[:3] == [0.0, 0.0, 1.0] and len(seen) % 3 == 0


def test_scopes_gradients_and_recomputation_can_be_told():
    """jax-ml/jax#12381, #7029, PR#19793."""
    @jax.checkpoint
    def block(x):
        with jax.named_scope("act"):
            return jnp.sin(jnp.sin(x))

    def loss(x):
        with jax.named_scope("head"):
            return block(x).sum()

    walk = oplab.walk(jax.grad(loss), jnp.ones(8))
    scopes = " ".join(walk.jaxpr.table["scope"]) + " ".join(walk.hlo.table["op_name"])
    for word in ("act", "head", "transpose", "checkpoint"):
        assert word in scopes
    assert "#" not in scopes  # our own tags are not shown


# Source lines

def test_merged_lines_are_both_reported():
    """openxla/xla#9542, jax-ml/jax#7029: of x + 1 and + 2, one line seemed to be missing."""
    def f(x):
        a = x + 1
        b = a + 2
        return jnp.sin(b)

    walk = oplab.walk(f, jnp.arange(4))
    first = f.__code__.co_firstlineno
    adds = walk.fates[walk.fates["primitive"] == "add"]
    assert [line - first for line in adds["line"]] == [1, 2]
    assert sorted(adds["fate"]) in (["fused", "merged"], ["kept", "merged"])
    assert (walk.hlo.table["opcode"] == "add").sum() == 1
    assert adds["by_pass"][adds["fate"] == "merged"].map(bool).all()


LIBRARY = "import jax.numpy as jnp\ndef layer(x, w):\n    h = x @ w\n    return jnp.tanh(h)\n"


def test_the_line_of_the_script_that_called_the_library():
    """jax-ml/jax#18764: the nearest frame lies in site-packages, and the user's line is lost."""
    name = os.path.join(os.sep, "nowhere", "site-packages", "fakelib", "layers.py")
    linecache.cache[name] = (len(LIBRARY), None, LIBRARY.splitlines(True), name)
    library = types.ModuleType("fakelib")
    exec(compile(LIBRARY, name, "exec"), library.__dict__)

    def script(x, w):
        a = library.layer(x, w)
        return library.layer(a, w).sum()

    table = oplab.walk(script, jnp.ones((2, 2)), jnp.ones((2, 2))).jaxpr.table
    first = script.__code__.co_firstlineno
    assert {line - first for line in table["line"]} == {1, 2}
    assert set(table["library_line"][table["primitive"] == "tanh"]) == {4}


typed = {"jnp": jnp}
exec("def f(x):\n    y = jnp.sin(x)\n    return y * 2", typed)


class Callable:
    def __call__(self, x):
        return jnp.cos(x)

    def method(self, x):
        return jnp.exp(x)

    @classmethod
    def of_class(cls, x):
        return jnp.tan(x)


def wrapped(f):
    def wrapper(*args):  # without functools.wraps, as many do
        return f(*args)
    return wrapper


@pytest.mark.parametrize("f, primitive", [
    (typed["f"], "sin"), (Callable(), "cos"), (Callable().method, "exp"), (Callable.of_class, "tan"),
    (wrapped(lambda x: jnp.sinh(x)), "sinh"), ((lambda x: jnp.floor(x), lambda x: jnp.ceil(x))[1], "ceil"),
    (functools.partial(lambda s, x: jnp.tanh(x) * s, 2.0), "tanh"),
    (functools.partial(Callable().method), "exp"),
    (jnp.cbrt, "cbrt"), (jax.nn.gelu, "tanh"), (jax.jit(functools.partial(jnp.power, 2.0)), "pow"),
], ids=["exec", "object", "method", "classmethod", "wrapped", "second lambda of a line", "partial",
        "partial of a method", "jax.numpy itself", "jax.nn itself", "jitted partial"])
def test_any_callable_has_a_walk_and_a_name(f, primitive):
    """bespokelabsai/curator#115, patrick-kidger/equinox#51: no source, so the tool died."""
    walk = oplab.walk(f, x3)
    assert primitive in primitives(walk) and len(walk.script.table)
    assert "0x" not in repr(walk)


SCRIPT = """import jax.numpy as jnp, oplab
def f(x):
    return jnp.sin(x) + 1

w = oplab.walk(f, jnp.ones(2))
print("equations", len(w.jaxpr.table), list(w.jaxpr.table.line))
"""


@pytest.mark.parametrize("how", ["-c", "stdin", "interactive"])
def test_code_that_stands_in_no_file(how):
    options = {"-c": ["-c", SCRIPT], "stdin": ["-"], "interactive": ["-i", "-q"]}[how]
    ran = subprocess.run([sys.executable, "-W", "ignore", *options], input=None if how == "-c" else SCRIPT,
                         capture_output=True, text=True, timeout=120)
    assert "equations 2" in ran.stdout, ran.stderr[-500:]


def test_a_source_file_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text("import jax.numpy as jnp\ndef g(x): return jnp.sin(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("vanishing")
    (tmp_path / "vanishing.py").unlink()
    linecache.clearcache()
    walk = oplab.walk(module.g, x3)
    assert primitives(walk) == ["sin"] and list(walk.script.table["line"]) == [2]


# Costs and times

w8, x8 = jnp.ones((64, 64)), jnp.ones((8, 64))
one = 2 * 8 * 64 * 64


def scanned(times):
    return lambda x, w: jax.lax.scan(lambda c, _: (c @ w, None), x, None, length=times)[0]


def scan_of_scan(x, w):
    return jax.lax.scan(lambda c, _: (scanned(4)(c, w), None), x, None, length=5)[0]


@pytest.mark.parametrize("f, args, flops", [
    (lambda x, w: x @ w, (x8, w8), one),
    (scanned(10), (x8, w8), 10 * one),
    (scan_of_scan, (x8, w8), 20 * one),
    (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (jnp.ones((3, 8, 64)), jnp.ones((3, 64, 64))), 3 * one),
], ids=["matmul", "scan", "scan of scan", "batched"])
def test_flops_of_loops(f, args, flops):
    """jax-ml/jax#18672: a loop's body is counted once, whatever its trip count."""
    assert oplab.walk(f, *args).jaxpr.table["flops"].max() == pytest.approx(flops, rel=0.1)


def test_donated_memory_is_not_counted_twice():
    """jax-ml/jax#18954."""
    x = jnp.ones((128, 128))
    walk = oplab.walk(lambda a, b: (a @ b + b, a.sum()), x, x, donate_argnums=(0,))
    memory = walk.compiled.memory_analysis()
    assert memory.argument_size_in_bytes == 2 * 65536 and memory.alias_size_in_bytes == 65536


def test_every_kernel_is_timed_in_every_run():
    """jax-ml/jax#3640, #21295: traces without the kernels of some threads, or cut off in silence."""
    x = jnp.ones((256, 256))
    walk = oplab.walk(lambda x, w: jax.nn.softmax(jnp.tanh(x @ w) @ w.T).sum(), x, x).execute(repeats=5)
    runs = walk.execution.table.groupby("instruction")["run"].nunique()
    assert {kernel: runs.get(kernel) for kernel in walk.kernels.table["instruction"]} == dict(runs)
    assert set(runs) == {5}


def test_dumps_come_with_a_warm_compilation_cache(tmp_path):
    """AI-Hypercomputer/maxtext PR#4167, jax-ml/jax#25768: a compile served from the cache writes no IR."""
    options = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0,
               "jax_persistent_cache_min_entry_size_bytes": 0}
    before = {name: getattr(jax.config, name) for name in options}

    def f(x):
        return jnp.tan(x) * 5

    try:
        for name, value in options.items():
            jax.config.update(name, value)
        jax.jit(f).lower(x3).compile()
        assert "llvm" in oplab.walk(f, x3).kernels.table["stages"][0]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


# What is shown

def test_a_big_constant_stays_out_of_every_text():
    """jax-ml/jax#21300, PR#30180."""
    big = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)  # 1 MB
    held = jnp.asarray(big)
    walk = oplab.walk(lambda x: x @ held + big[0], jnp.ones((2, 512)))
    for stage in (walk.script, walk.jaxpr, walk.stablehlo, walk.passes, walk.hlo, walk.kernels):
        assert len(stage.text) < 100_000, stage.name
    result = walk.compiled(jnp.ones((2, 512)))
    np.testing.assert_allclose(result[0], big.sum(0) + big[0], rtol=1e-4, atol=1e-3)


REPORT = """import sys
import jax, jax.numpy as jnp, oplab
def f(x):
    jax.debug.callback(lambda v: None, x.sum())
    return jax.nn.relu(x) @ x.T
w = oplab.walk(f, jnp.ones((3, 3)))
for s in (w.script, w.jaxpr, w.stablehlo, w.passes, w.hlo, w.kernels):
    print(s.text); print(s.table.to_string())
print(w.fates.to_string()); print(w.links.to_string()); print(w.census().to_string()); print(w)
"""


def test_two_processes_print_the_same_text():
    """computationalmodelling/nbval#204: addresses, temporary paths and numbers that change with every run."""
    def report(seed):
        return subprocess.run([sys.executable, "-W", "ignore", "-c", REPORT], capture_output=True, text=True,
                              timeout=120, env={**os.environ, "PYTHONHASHSEED": seed}, check=True).stdout

    text = report("1")
    assert text == report("2") == report("3")
    assert not re.search(r"\b0x[0-9a-f]{6,}", text)
    for private in (os.path.expanduser("~"), os.getcwd(), os.path.dirname(jax.__file__)):
        assert private + os.sep not in text
