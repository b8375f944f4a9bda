"""attention's native implementation as JAX sees it: values, gradients, transformations, promises."""

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import oplab
from oplab import memory, native
from oplab.ops import attention
from oplab.ops.operator import Unsupported

ROOT = Path(__file__).parents[1]
try:
    native.load()
    WHY_NOT = ""
except native.Unavailable as error:
    WHY_NOT = str(error)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"there is no native library here: {WHY_NOT}")


def draw(time=37, source=50, heads=4, kv_heads=2, features=16, values=12, batch=2, seed=0, dtype=jnp.float32):
    r = np.random.default_rng(seed)
    shapes = (time, heads, features), (source, kv_heads, features), (source, kv_heads, values)
    return [jnp.asarray(r.normal(size=(batch, *shape)), dtype) for shape in shapes]


def by(implementation, **options):
    """attention with these options, as one implementation runs it."""
    return lambda q, k, v, **more: attention(q, k, v, implementation=implementation, **options, **more)


def gradients(f):
    """Of a sum in which every number of the result has another weight."""

    def total(*operands):
        y = f(*operands)
        return (y.astype(jnp.float32) * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).sum()

    return jax.jit(jax.grad(total, (0, 1, 2)))


def exactly(function, *operands):
    """What the formulas give in float64."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*(np.asarray(x).astype(np.float64) for x in operands)))


def close(a, b, tolerance=2e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance), a, b)


def clean(xs):
    return all(np.isfinite(x).all() for x in xs)


R = np.random.default_rng(5)
CASES = {
    "ragged": ({}, {}),
    "one query": ({"time": 1}, {"causal": "bottom_right"}),
    "one head each": ({"kv_heads": 4}, {}),
    "causal": ({"time": 70, "source": 40}, {"causal": True}),
    "bottom right": ({"time": 40, "source": 130}, {"causal": "bottom_right"}),
    "scale": ({}, {"scale": 0.7}),
    "mask": ({}, {"mask": R.random((2, 1, 37, 50)) > 0.4}),
    "mask of heads": ({}, {"mask": R.random((4, 1, 50)) > 0.4}),
    "bias": ({}, {"bias": np.float32(R.normal(size=(2, 4, 37, 50)))}),
    "bias of keys": ({}, {"bias": np.float32(R.normal(size=50))}),
    "kv_len": ({"batch": 4}, {"kv_len": np.array([50, 0, -3, 17])}),
    "all": ({}, {"causal": True, "mask": R.random((37, 50)) > 0.3, "kv_len": np.array([50, 9]),
                 "bias": np.float32(R.normal(size=(4, 37, 1)))}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_float64(case):
    sizes, options = CASES[case]
    operands = draw(**sizes)
    close(by("native", **options)(*operands), exactly(by("xla", **options), *operands))
    found = gradients(by("native", **options))(*operands)
    close(found, exactly(gradients(by("xla", **options)), *operands), 1e-4)


def test_the_error_is_as_small_as_float32_lets_it_be():
    operands = draw(1024, 1024, 2, 2, 64, 64, 1)
    for options in ({}, {"causal": True}):
        y = np.asarray(by("native", **options)(*operands), np.float64)
        assert abs(y - exactly(by("xla", **options), *operands)).max() <= 1e-5


@pytest.mark.parametrize("dtype,eps", [(jnp.bfloat16, 2**-8), (jnp.float16, 2**-11)])
def test_few_bits_are_rounded_once(dtype, eps):
    operands = draw(70, 90, dtype=dtype)
    y = by("native", causal=True)(*operands)
    assert y.dtype == dtype
    close(y.astype(float), exactly(by("xla", causal=True), *operands), 4 * eps)
    found = gradients(by("native", causal=True))(*operands)
    assert all(x.dtype == dtype for x in found)
    found = tuple(x.astype(float) for x in found)
    close(found, exactly(gradients(by("xla", causal=True)), *operands), 16 * eps)


def test_float64_is_refused_by_name_and_left_to_xla_otherwise():
    with jax.enable_x64(True):
        operands = draw(5, 6, dtype=np.float64)
        with pytest.raises(Unsupported, match="in float32, not float64: use implementation='xla'"):
            by("native")(*operands)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert by(None)(*operands).dtype == np.float64
        assert who(by(None), *operands) == ["xla"]


def who(f, *operands):
    """The implementations that a program's attention was lowered to."""
    return sorted(set(oplab.ran(f, *operands)["ran"]))


# What may not leak ------------------------------------------------------------------------------------------


def test_a_query_that_sees_no_key_gives_zero_and_clean_gradients():
    operands = draw(70, 40)
    mask = R.random((70, 40)) > 0.5
    mask[[0, 33, 69]] = False
    f = by("native", mask=mask)
    assert (f(*operands)[:, [0, 33, 69]] == 0).all()
    found = gradients(f)(*operands)
    assert clean(found) and (found[0][:, [0, 33, 69]] == 0).all()
    close(found, exactly(gradients(by("xla", mask=mask)), *operands), 1e-4)


HIDING = {
    "kv_len": {"kv_len": np.array([25, 25])},
    "mask": {"mask": np.arange(40) < 25},
    "mask of pairs": {"mask": (R.random((25, 40)) > 0.3) & (np.arange(40) < 25)},
    "causal": {"causal": True},
}


@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("key,value", [(np.nan, np.nan), (np.inf, -np.inf), (1e38, np.nan)])
def test_a_key_that_no_query_sees_never_leaks(how, key, value):
    q, k, v = draw(25, 40)
    odd = q, k.at[:, 25:].set(key), v.at[:, 25:].set(value)
    f = by("native", **HIDING[how])
    close(f(*odd), f(q, k, v), 1e-6)
    found = gradients(f)(*odd)
    assert (found[1][:, 25:] == 0).all() and (found[2][:, 25:] == 0).all()
    close(found, gradients(f)(q, k, v), 1e-5)


def test_what_one_query_holds_stays_in_its_row():
    q, k, v = draw(70, 40)
    odd = q.at[0, 7].set(jnp.nan)
    y, want = by("native")(odd, k, v), np.array(by("native")(q, k, v))
    want[0, 7] = np.nan
    close(y, want, 1e-6)


def test_a_value_that_one_query_sees_stays_in_its_row():
    q, k, v = draw(70, 40)
    mask = np.ones((70, 40), bool)
    mask[:, 3], mask[7, 3] = False, True
    odd = v.at[:, 3].set(jnp.nan)
    f = by("native", mask=mask)
    want = np.array(f(q, k, v))
    want[:, 7] = np.nan
    close(f(q, k, odd), want, 1e-6)
    dq = np.array(gradients(f)(q, k, odd)[0])
    assert np.isnan(dq[:, 7]).all()
    others = np.arange(70) != 7
    close(dq[:, others], gradients(f)(q, k, v)[0][:, others], 1e-5)


# Bias -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 4, 37, 50), (1, 4, 1, 50), (37, 1), ()])
def test_a_bias_has_a_gradient(shape):
    operands, bias = draw(), np.float32(R.normal(size=shape))
    f = lambda name: lambda bias, *qkv: (by(name)(*qkv, bias=bias) ** 2).sum()
    close(jax.grad(f("native"))(bias, *operands), exactly(jax.grad(f("xla")), bias, *operands), 1e-4)


def test_the_gradient_of_a_bias_that_nobody_asks_for_costs_nothing():
    q, k, v = draw(512, 512, 2, 2, 16, 16, 1)
    bias, scores = jnp.zeros((1, 1, 1, 512)), 2 * 512 * 512 * 4
    f = lambda bias, *qkv: (by("native")(*qkv, bias=bias) ** 2).sum()
    temporary = lambda wanted: (
        jax.jit(jax.grad(f, wanted)).lower(bias, q, k, v).compile().memory_analysis().temp_size_in_bytes
    )
    assert temporary(1) < scores / 4
    assert temporary(0) >= scores  # so that it would have been seen


# Transformations --------------------------------------------------------------------------------------------


def test_jit_and_operator_by_operator_agree_to_the_bit():
    operands = draw()
    assert (by("native")(*operands) == jax.jit(by("native"))(*operands)).all()


def test_vmap_nested_and_under_grad():
    operands = [jnp.stack([jnp.stack([x, 2 * x, -x])] * 2) for x in draw(9, 11)]
    mapped = lambda name: jax.vmap(jax.vmap(by(name, causal=True)))
    close(mapped("native")(*operands), mapped("xla")(*operands))
    close(gradients(mapped("native"))(*operands), gradients(mapped("xla"))(*operands), 1e-4)
    over = lambda name: jax.vmap(jax.vmap(gradients(by(name))), 1)
    close(over("native")(*operands), over("xla")(*operands), 1e-4)


def test_only_the_queries_or_the_mask_mapped():
    q, k, v = draw(9, 11)
    masks = R.random((3, 9, 11)) > 0.4
    f = lambda name: jax.vmap(lambda q, mask: by(name, mask=mask)(q, k, v))
    close(f("native")(jnp.stack([q, -q, 2 * q]), masks), f("xla")(jnp.stack([q, -q, 2 * q]), masks))


def test_scan_and_remat():
    q, k, v = draw(9, 9, values=16)

    def layers(name, q, k, v):
        layer = jax.checkpoint(lambda x: x + by(name, causal=True)(x, k, v))
        return jax.lax.scan(lambda x, _: (layer(x), None), q, length=3)[0]

    for wrapped in (lambda f: f, gradients):
        native_, xla = (wrapped(lambda *qkv, name=name: layers(name, *qkv)) for name in ("native", "xla"))
        close(native_(q, k, v), xla(q, k, v), 1e-4)


def test_second_derivatives():
    q, k, v = draw(5, 6, 2, 1, 3, 2, 1)
    twice = lambda name: jax.hessian(lambda q: (by(name)(q, k, v) ** 2).sum())(q)
    close(twice("native"), twice("xla"), 1e-4)


# Several devices, other machines ----------------------------------------------------------------------------


@pytest.fixture
def mesh():
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices, which tests/conftest.py asks for")
    return Mesh(jax.devices()[:2], "x")


def test_shard_map_over_the_batch(mesh):
    operands, each = draw(), PartitionSpec("x")
    f = lambda name: jax.shard_map(by(name, causal=True), mesh=mesh, in_specs=each, out_specs=each)
    close(jax.jit(f("native"))(*operands), by("xla", causal=True)(*operands))
    close(gradients(f("native"))(*operands), gradients(by("xla", causal=True))(*operands), 1e-4)
    text = jax.jit(f(None)).lower(*operands).as_text()
    assert "oplab_attention" in text  # each device has a whole problem of its own


def test_a_program_that_xla_cuts_over_devices_is_left_to_xla(mesh):
    operands = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("x"))) for x in draw()]
    f = jax.jit(by(None))
    assert "oplab_attention" not in f.lower(*operands).as_text()
    close(f(*operands), by("native")(*draw()))


def test_an_exported_program_needs_no_library():
    operands = draw(9, 11)
    exported = jax.export.export(jax.jit(by(None)))(*operands)
    assert "oplab_attention" not in exported.mlir_module()
    close(jax.export.deserialize(exported.serialize()).call(*operands), by("native")(*operands))


# Memory -----------------------------------------------------------------------------------------------------


def test_memory_grows_as_the_sequence_and_not_as_its_square():
    peaks = {}
    for length in (2048, 4096):
        operands = draw(length, length, 2, 2, 32, 32, 1)
        f = jax.jit(by("native"))
        f(*operands).block_until_ready()
        peaks[length], _ = memory.peak_bytes(lambda f=f, operands=operands: f(*operands).block_until_ready())
        assert peaks[length] < length * length * 4 / 4  # a quarter of the scores of one head
    assert peaks[4096] < 3 * peaks[2048] + 2**20


# Other processes --------------------------------------------------------------------------------------------

CHILD = """
import warnings
import jax.numpy as jnp, numpy as np
import oplab
from oplab import native
from oplab.ops import attention
from oplab.ops.operator import Unsupported
q, k, v = (jnp.float32(np.random.default_rng(i).normal(size=(1, 70, 2, 24))) for i in range(3))
want = attention(q, k, v, causal=True, implementation="xla")
caught = []
warnings.showwarning = lambda message, *rest: caught.append(str(message))
warnings.simplefilter("always")
"""


def child(program, **environment):
    """What a new process prints, in which JAX and the library start afresh."""
    variables = {name: x for name, x in os.environ.items() if name != "OPLAB_ISA"} | environment
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", CHILD + textwrap.dedent(program)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split("\n")[:-1]


@pytest.mark.skipif(native.build.architecture() != "x86_64", reason="only x86-64 has several of them")
@pytest.mark.parametrize("asked,name", [("avx2", "AVX2"), ("plain", "plain")])
def test_a_lower_instruction_set_can_be_asked_for(asked, name):
    if name == "AVX2" and native.load().instruction_set == "plain":
        pytest.skip("this processor has no AVX2")
    printed = child("""
        y = attention(q, k, v, causal=True, implementation="native")
        print(native.load().instruction_set)
        print(abs(y - want).max() < 1e-5)
    """, OPLAB_ISA=asked)  # fmt: skip
    assert printed == [name, "True"]


def test_switched_off():
    printed = child("""
        f = lambda q, k, v: attention(q, k, v, causal=True)
        print(abs(f(q, k, v) - want).max() < 1e-5, list(oplab.ran(f, q, k, v)["ran"]), caught)
        try:
            attention(q, k, v, implementation="native")
        except Unsupported as error:
            print(error)
    """, OPLAB_NATIVE="0")  # fmt: skip
    assert printed[0] == "True ['xla'] []"
    assert "OPLAB_NATIVE=0" in printed[1] and len(printed) == 2


def test_no_compiler(tmp_path):
    """One warning, although there are two programs; and the answer is right."""
    nothing = str(tmp_path / "nothing")  # $CXX keeps it from finding one in conda or in the ziglang package
    printed = child("""
        f = lambda q, k, v: attention(q, k, v, causal=True)
        print(abs(f(q, k, v) - want).max() < 1e-5, list(oplab.ran(f, q, k, v)["ran"]))
        f(2 * q[:, :7], k, v)
        print(*caught, sep="\\n")
    """, PATH=nothing, CXX=nothing, OPLAB_CACHE=str(tmp_path / "cache"))  # fmt: skip
    assert printed[0] == "True ['xla']"
    assert len(printed) == 2 and "attention runs as XLA compiles it" in printed[1]
