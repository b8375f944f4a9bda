"""The Pallas kernels of attention, forward and backward, against loops in numpy and float64.

Blocks are small here, so that every case has several, ragged ones at the edge, and blocks that are skipped.
"""

import functools
import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from oplab import pallas
from oplab.ops import attention_backward, attention_kernel
from oplab.ops.attention_tiling import Tiling

SCALE = 24**-0.5  # not a power of two
BLOCKS = {"block_q": 32, "block_k": 16}


# What is expected -------------------------------------------------------------------------------------------


def visible(shape, mask, kv_len, causal):
    """(batch, heads, time, source): which key each query sees."""
    batch, heads, time, source = shape
    t, s = np.arange(time)[:, None], np.arange(source)
    see = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape).copy()
    if kv_len is not None:
        see &= s < np.asarray(kv_len).reshape(batch, 1, 1, 1)
    if causal is not None:
        see &= s <= t + {"top_left": 0, "bottom_right": source - time}[causal]
    return see


def expected(q, k, v, mask, bias, kv_len, causal, scale=SCALE):
    """o and lse, one query at a time, from nothing but the keys that it sees."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    (batch, time, heads, _), (source, kv_heads) = q.shape, k.shape[1:3]
    see = visible((batch, heads, time, source), mask, kv_len, causal)
    bias = np.broadcast_to(np.asarray(0.0 if bias is None else bias).astype(np.float64), see.shape)
    o, lse = np.zeros((*q.shape[:3], v.shape[-1])), np.full(see.shape[:3], -np.inf)
    for b, n, t in np.ndindex(*lse.shape):
        keys, shared = see[b, n, t], n // (heads // kv_heads)
        if not keys.any():
            continue
        score = k[b, keys, shared] @ q[b, t, n] * scale + bias[b, n, t, keys]
        weight = np.exp(score - score.max())
        lse[b, n, t] = np.log(weight.sum()) + score.max()
        o[b, t, n] = weight @ v[b, keys, shared] / weight.sum()
    return o, lse


def expected_gradients(q, k, v, mask, bias, kv_len, causal, do, dlse, scale=SCALE):
    """dq, dk, dv and dbias by JAX's own rules, from the plain formula in float64."""
    see = visible((*q.shape[:1], q.shape[2], q.shape[1], k.shape[1]), mask, kv_len, causal)
    alive = see.any(-1, keepdims=True)

    def formula(q, k, v, bias):
        k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
        S = jnp.einsum("btnh,bsnh->bnts", q, k) * scale + bias
        S = jnp.where(see | ~alive, S, -jnp.inf)  # a row without keys is kept finite, and dropped below
        P = jnp.where(alive, jax.nn.softmax(S), 0)
        lse = jnp.where(alive[..., 0], jax.scipy.special.logsumexp(S, axis=-1), 0)
        return jnp.einsum("bnts,bsnh->btnh", P, v), lse

    with jax.enable_x64(True):
        wide = [np.asarray(x).astype(np.float64) for x in (q, k, v, 0.0 if bias is None else bias, do)]
        dlse = np.where(alive[..., 0], dlse, 0).astype(np.float64)
        pullback = jax.jit(lambda *x: jax.vjp(formula, *x[:4])[1](x[4:]))
        gradients = pullback(*wide, dlse)
    return [*gradients[:3], None if bias is None else gradients[3]]


def example(time, source, heads=(2, 2), features=(8, 8), mask=None, bias=None, kv_len=None, causal=None,
            dtype=np.float64, batch=2, seed=0):  # fmt: skip
    """Operands, and cotangents. mask and bias: which of (batch, heads, time, source) they have in full."""
    random, (query_heads, kv_heads) = np.random.default_rng(seed), heads
    full = (batch, query_heads, time, source)
    shapes = [(batch, time, query_heads, features[0]), (batch, source, kv_heads, features[0]),
              (batch, source, kv_heads, features[1])]  # fmt: skip
    operands = [random.normal(size=shape).astype(dtype) for shape in shapes]
    if mask is not None:
        mask = random.random([n if keep else 1 for n, keep in zip(full, mask)]) > 0.4
        mask[:, :, -1] = mask[:, :, -1] & (mask.shape[2] == 1)  # the last query sees nothing at all
    if bias is not None:
        bias = random.normal(size=[n if keep else 1 for n, keep in zip(full, bias)]).astype(dtype)
    kv_len = None if kv_len is None else np.asarray(kv_len, np.int32)
    do = random.normal(size=(batch, time, query_heads, features[1])).astype(dtype)
    dlse = random.normal(size=(batch, query_heads, time)).astype(
        np.float32 if np.dtype(dtype).itemsize < 8 else dtype
    )
    return (*operands, mask, bias, kv_len), causal, (do, dlse)


def run(f, operands, *more, **options):
    """f under jit, in numpy; interpreted, and in small blocks, unless options say otherwise."""
    f = jax.jit(functools.partial(f, **{"scale": SCALE, "interpret": True, **BLOCKS, **options}))
    with jax.enable_x64(operands[0].dtype == np.float64):
        return jax.tree.map(np.asarray, f(*operands, *more))


def forward(operands, causal, **options):
    return run(attention_kernel.forward, operands, causal=causal, **options)


def backward(operands, causal, cotangents, results=None, **options):
    """The gradients; o and lse are the exact ones unless given."""
    o, lse = results or expected(*operands, causal)
    o, lse = o.astype(operands[0].dtype), lse.astype(cotangents[1].dtype)
    return run(attention_backward.backward, operands, o, lse, *cotangents, causal=causal, **options)


def distance(got, want, eps=2**-52):
    """The largest difference, in units of eps times the largest value that is finite."""
    got, want = (np.asarray(x).astype(np.float64) for x in (got, want))
    assert got.shape == want.shape and (np.isneginf(got) == np.isneginf(want)).all()
    finite = ~np.isneginf(want)
    size = np.abs(want[finite]).max(initial=0) or 1
    return np.abs(got[finite] - want[finite]).max(initial=0) / size / eps


# The value, and the gradients -------------------------------------------------------------------------------

LENGTHS = [(65, 130), (130, 65), (1, 5), (5, 1), (1, 192), (192, 1), (65, 65), (5, 130)]
HEADS = [(6, 2), (4, 1), (2, 2)]
SHAPES = list(itertools.product([True, False], repeat=4))
ALIGNMENTS = [None, "top_left", "bottom_right"]


@pytest.mark.parametrize("number", range(16))
def test_value(number):
    """Every shape of mask, with another shape of bias; lengths, groups of heads and alignments take turns."""
    time, source = LENGTHS[number % 8]
    operands, causal, _ = example(
        time, source, HEADS[number % 3], (8, 5), mask=SHAPES[number], bias=SHAPES[-number],
        kv_len=[[0, 100], [3, 1], None][number // 2 % 3], causal=ALIGNMENTS[number // 3 % 3], seed=number,
    )  # fmt: skip
    o, lse = forward(operands, causal)
    want_o, want_lse = expected(*operands, causal)
    assert distance(o, want_o) < 20 and distance(lse, want_lse) < 20


# Any three of the four dimensions of the bias are broadcast in each way that there is.
@pytest.mark.parametrize("number", range(8))
def test_gradients(number):
    batch, heads, time = SHAPES[2 * number][:3]
    shape = (batch, heads, time, batch ^ heads ^ time)
    operands, causal, cotangents = example(
        *LENGTHS[number], HEADS[number % 3], (8, 5), mask=tuple(not keep for keep in shape), bias=shape,
        kv_len=[None, [0, 60]][number % 2], causal=ALIGNMENTS[(number + 1) % 3], seed=number,
    )  # fmt: skip
    got = backward(operands, causal, cotangents)
    for name, dx, want in zip("qkvb", got, expected_gradients(*operands, causal, *cotangents)):
        assert distance(dx, want) < 100, name


def test_gradients_without_mask_and_bias():
    operands, causal, cotangents = example(65, 130, (4, 2), causal="bottom_right")
    *got, dbias = backward(operands, causal, cotangents)
    for dx, want in zip(got, expected_gradients(*operands, causal, *cotangents)):
        assert distance(dx, want) < 100
    assert dbias is None


def test_gradients_are_those_of_finite_differences():
    operands, causal, (do, dlse) = example(
        5, 7, (2, 1), (3, 4), mask=(1, 0, 1, 1), bias=(0, 1, 0, 1), kv_len=[7, 4], causal="bottom_right"
    )  # fmt: skip
    gradients, random = backward(operands, causal, (do, dlse)), np.random.default_rng(1)

    def scalar(moved):
        o, lse = expected(*moved, causal)
        return (do * o).sum() + (dlse * np.where(np.isneginf(lse), 0, lse)).sum()

    for place, dx in zip((0, 1, 2, 4), gradients):
        step = 1e-5 * random.normal(size=dx.shape)
        ahead, behind = (
            scalar([x + sign * step if i == place else x for i, x in enumerate(operands)]) for sign in (1, -1)
        )
        np.testing.assert_allclose((dx * step).sum(), (ahead - behind) / 2, rtol=1e-7)


# Precision --------------------------------------------------------------------------------------------------

DTYPES = {"float64": 2**-52, "float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10}


@pytest.mark.parametrize("name", DTYPES)
def test_precision(name):
    """Against float64 on the same rounded operands. `pytest -s -k precision` prints what it finds."""
    eps = DTYPES[name]
    operands, causal, cotangents = example(
        130, 192, (2, 1), (16, 16), bias=(1, 1, 1, 1), causal="bottom_right", dtype=jnp.dtype(name)
    )
    o, lse = forward(operands, causal)
    want_o, want_lse = expected(*operands, causal)
    gradients = backward(operands, causal, cotangents, results=(o, lse))
    found = {"o": distance(o, want_o, eps), "lse": distance(lse, want_lse, min(eps, 2**-23))}
    for letter, dx, want in zip("qkvb", gradients, expected_gradients(*operands, causal, *cotangents)):
        found["d" + letter] = distance(dx, want, eps)
    print(name, {key: f"{value:.2f} eps" for key, value in found.items()})
    assert o.dtype == name and lse.dtype == ("float64" if name == "float64" else "float32")
    assert all(dx.dtype == name for dx in gradients)
    assert max(found.values()) < {"float64": 30, "float32": 30}.get(name, 3), found


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, np.float16])
def test_huge_scores(dtype):
    """Scores of 1e13 (1e9 in float16), whose last digit is worth more than exp can bear."""
    operands, causal, cotangents = example(8, 40, (1, 1), (24, 24), batch=1, dtype=dtype)
    size = dtype(1e6 if dtype != np.float16 else 1e4)
    operands = (operands[0] * size, operands[1] * size, *operands[2:])
    o, lse = forward(operands, causal)
    want_o, want_lse = expected(*operands, causal)
    assert distance(o, want_o, 1e-2) < 1 and distance(lse, want_lse, 1e-5) < 1
    assert all(np.isfinite(dx.astype(np.float64)).all() for dx in backward(operands, causal, cotangents)[:3])


# What is hidden ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpret", [True, pltpu.InterpretParams()], ids=["interpreted", "as on a TPU"])
def test_what_nobody_sees_may_hold_anything(interpret):
    """Padding, masked keys, keys beyond the last query, and queries without a key: NaN and inf stay there."""
    operands, causal, (do, dlse) = example(
        40, 72, (2, 1), mask=(1, 0, 1, 1), kv_len=[23, 72], causal="top_left", dtype=np.float32
    )
    q, k, v, mask, _, kv_len = operands
    mask[:, :, :, 5] = mask[1, :, 8:12] = False
    see = visible((2, 1, 40, 72), mask, kv_len, causal)[:, 0]
    no_query, no_key = ~see.any(1), ~see.any(2)
    assert no_query[:, 40:].all() and no_query[:, 5].all() and no_key[1, 8:12].all() and no_key[:, -1].all()
    for x in (k, v):
        x[no_query] = 0
    for x in (q, do):
        x[no_key] = 0
    dlse[np.repeat(no_key[:, None], 2, axis=1)] = 0
    o, lse = forward(operands, causal, interpret=interpret)
    clean = (o, lse, *backward(operands, causal, (do, dlse), interpret=interpret, results=(o, lse)))

    def spoilt(x, rows):
        x = x.copy()
        x[rows] = np.resize([np.nan, np.inf, -np.inf], x[rows].shape)
        return x

    operands = (spoilt(q, no_key), spoilt(k, no_query), spoilt(v, no_query), mask, None, kv_len)
    cotangents = spoilt(do, no_key), spoilt(dlse, np.repeat(no_key[:, None], 2, axis=1))
    o, lse = forward(operands, causal, interpret=interpret)
    dirty = (o, lse, *backward(operands, causal, cotangents, interpret=interpret, results=(o, lse)))
    for want, got in zip(clean[:5], dirty):
        np.testing.assert_array_equal(want, got)
    assert (np.asarray(o)[no_key] == 0).all() and np.isneginf(lse).any()
    for dx, rows in zip(dirty[2:5], (no_key, no_query, no_query)):
        assert (np.asarray(dx)[rows] == 0).all()


def test_a_bias_of_minus_infinity_hides_a_key():
    operands, causal, cotangents = example(5, 40, mask=(1, 1, 1, 1), dtype=np.float32)
    *rest, mask, _, kv_len = operands
    bias = np.where(mask, 0, -np.inf).astype(np.float32)
    masked, biased = (*rest, mask, None, kv_len), (*rest, None, bias, kv_len)
    results, same = forward(masked, causal), forward(biased, causal)
    for want, got in zip(results, same):
        np.testing.assert_array_equal(want, got)
    gradients = backward(masked, causal, cotangents, results=results)
    *same, dbias = backward(biased, causal, cotangents, results=results)
    for want, got in zip(gradients, same):
        np.testing.assert_array_equal(want, got)
    assert (np.asarray(dbias)[~mask] == 0).all() and np.isfinite(dbias).all()


def test_a_nan_that_is_seen_is_passed_on():
    operands, causal, _ = example(40, 40, (1, 1), causal="top_left", batch=1, dtype=np.float32)
    operands[1][0, 3] = np.nan
    o, lse = forward(operands, causal)
    assert np.isnan(o[:, 3:]).all() and np.isnan(lse[..., 3:]).all() and np.isfinite(o[:, :3]).all()


@pytest.mark.parametrize("empty", ["batch", "time", "source"])
def test_empty_arrays(empty):
    sizes = {"batch": 2, "time": 3, "source": 4, empty: 0}
    operands, causal, cotangents = example(**sizes, bias=(1, 1, 1, 1), causal="top_left", dtype=np.float32)
    o, lse = forward(operands, causal)
    assert o.shape == (sizes["batch"], sizes["time"], 2, 8) and lse.shape == (
        sizes["batch"],
        2,
        sizes["time"],
    )
    assert (o == 0).all() and np.isneginf(lse).all()
    for x, dx in zip((*operands[:3], operands[4]), backward(operands, causal, cotangents)):
        assert x.shape == dx.shape and (dx == 0).all()


@pytest.mark.parametrize("features", [(0, 3), (3, 0)])
def test_no_features(features):
    operands, causal, cotangents = example(5, 7, (2, 1), features)
    for got, want in zip(forward(operands, causal), expected(*operands, causal)):
        assert distance(got, want) < 20
    got = backward(operands, causal, cotangents)
    for x, dx, want in zip(operands, got, expected_gradients(*operands, causal, *cotangents)[:3]):
        assert x.shape == dx.shape and distance(dx, want) < 100


# The grid ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [None, 0, -9, 13])
def test_blocks_that_are_stepped_over_are_those_that_nobody_sees(offset):
    tiles = Tiling(time=37, source=50, block_q=8, block_k=16, offset=offset)
    t, s = np.arange(37)[:, None], np.arange(50)
    for kv_len in (0, 1, 16, 17, 50, 60):
        see = (s < kv_len) & (s <= t + (50 if offset is None else offset))
        blocks = np.array(
            [[see[8 * i : 8 * i + 8, 16 * j : 16 * j + 16].any() for j in range(4)] for i in range(5)]
        )
        for i, j in np.ndindex(5, 4):
            assert tiles.seen(i, j, kv_len) == blocks[i, j]
        for i in range(5):
            assert tiles.last_key_block(i, kv_len) == max(np.flatnonzero(blocks[i]), default=0)
        for j in range(4):
            assert tiles.first_query_block(np.int32(j), kv_len) == min(
                np.flatnonzero(blocks[:, j]), default=4
            )


def both(*operands, causal, interpret=False, **blocks):
    """forward, then backward with the results for cotangents, to have all kernels in one function."""
    common = {"causal": causal, "scale": SCALE, "interpret": interpret, **blocks}
    o, lse = attention_kernel.forward(*operands, **common)
    return attention_backward.backward(*operands, o, lse, o, jnp.where(lse == -jnp.inf, 0, lse), **common)


@pytest.mark.parametrize("bias", [(1, 1, 1, 1), (0, 1, 0, 1), (1, 0, 1, 0)])
@pytest.mark.parametrize("causal", ALIGNMENTS)
def test_the_kernels_pass_the_check(causal, bias):
    operands, _, _ = example(70, 40, (4, 2), mask=(1, 0, 1, 1), bias=bias, kv_len=[40, 3], dtype=np.float32)
    found = pallas.check(functools.partial(both, causal=causal, **BLOCKS), *operands)
    assert found.empty, found.to_string()


def test_blocks_that_nobody_sees_are_not_fetched():
    """Of 8 by 8 blocks a causal mask leaves 36, and the first serves the second row too. Without it: 64."""
    operands, _, _ = example(64, 64, (1, 1), batch=1, dtype=np.float32)
    for kernel, operand in (("k0", "given.k"), ("k1", "given.k"), ("k2", "given.q")):
        for causal, fetched in ((None, 64), ("top_left", 35)):
            f = functools.partial(both, causal=causal, block_q=8, block_k=8)
            table = pallas.traffic(f, *operands, kernel=kernel).set_index("operand")
            assert table.moves[operand] == fetched, (kernel, causal)


@pytest.fixture
def interpreter():
    """Two cores that take the parallel steps in a random order; races are printed, or raised, or both."""
    yield pltpu.InterpretParams(detect_races=True, random_seed=7, num_cores_or_threads=2)
    pltpu.reset_tpu_interpret_mode_state()


def test_no_races(interpreter, capfd):
    operands, causal, cotangents = example(
        40,
        24,
        (4, 2),
        mask=(1, 0, 1, 1),
        bias=(0, 1, 0, 1),
        kv_len=[24, 3],
        causal="top_left",
        dtype=np.float32,
    )
    o, lse = forward(operands, causal, interpret=interpreter)
    want_o, want_lse = expected(*operands, causal)
    assert distance(o, want_o, 2**-23) < 20 and distance(lse, want_lse, 2**-23) < 20
    gradients = backward(operands, causal, cotangents, interpret=interpreter)
    for dx, want in zip(gradients, expected_gradients(*operands, causal, *cotangents)):
        assert distance(dx, want, 2**-23) < 50
    assert "RACE" not in "".join(capfd.readouterr())


def test_a_race_would_be_seen(interpreter, capfd, monkeypatch):
    def careless(*args, summed, **more):
        return launch(*args, summed=0, **more)  # as if the blocks of keys were independent

    launch = attention_kernel.launch
    monkeypatch.setattr(attention_kernel, "launch", careless)
    operands, causal, _ = example(8, 64, (1, 1), batch=1, dtype=np.float32)
    seen = ""
    try:
        jax.block_until_ready(forward(operands, causal, interpret=interpreter))
    except Exception as error:
        seen = str(error)
    assert "RACE" in seen + "".join(capfd.readouterr())


# For TPUs ---------------------------------------------------------------------------------------------------


def shapes(dtype, time=200, source=200, heads=(4, 2), features=64, mask=(1, 0, 1, 1), bias=(0, 1, 0, 1)):
    operands, _, _ = example(time, source, heads, (features, features), mask, bias, [0, 0])
    return [jax.ShapeDtypeStruct(x.shape, dtype if x.dtype == np.float64 else x.dtype) for x in operands]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_lowering_for_tpu(dtype, x64):
    with jax.enable_x64(x64):
        f = functools.partial(both, causal="bottom_right")
        text = jax.jit(f).trace(*shapes(dtype)).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") == 4


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["v5e:2x2", "v6e:2x2"])
def test_compiling_for_tpu(chip):
    """By the compiler of TPUs, which needs none. In a process of its own, as it must be set up before JAX."""
    pytest.importorskip("libtpu")
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
           "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    command = [sys.executable, "-c", f"import test_attention_kernel as t; t.compile_for({chip!r})"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and done.stdout.splitlines()[-1:] == ["compiled"], done.stdout + done.stderr


def compile_for(chip):
    from jax.experimental import topologies

    device = topologies.get_topology_desc(platform="tpu", topology_name=chip).devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    for dtype, features, mask in itertools.product(
        (jnp.float32, jnp.bfloat16), (64, 128), (None, (1, 0, 1, 1))
    ):
        placed = [
            None if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
            for x in shapes(dtype, features=features)
        ]
        placed[3:5] = [None, None] if mask is None else placed[3:5]
        lowered = (
            jax.jit(functools.partial(both, causal="top_left"))
            .trace(*placed)
            .lower(lowering_platforms=("tpu",))
        )
        assert lowered.compile().as_text().count('custom_call_target="tpu_custom_call"') == (
            3 if mask is None else 4
        )
    print("compiled")


def test_what_is_refused():
    def why(dtype="float32", features=64):
        q, k, v = (jax.ShapeDtypeStruct((2, 8, 2, features), dtype) for _ in range(3))
        return attention_kernel.refusal(q, k, v)

    assert why() is None and why("bfloat16", 1024) is None
    assert "float16" in why("float16") and "float64" in why("float64")
    assert "2000" in why(features=2000)
