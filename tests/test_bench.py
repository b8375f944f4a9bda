"""oplab.bench: what makes a timing honest, each point with a function that would show the opposite."""

import importlib
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oplab.bench import bench, time_us
from oplab.memory import peak_bytes

timing = importlib.import_module("oplab.timing")
MIB = 2**20


def nap(milliseconds, x=None):
    time.sleep(milliseconds / 1e3)
    return x


def test_one_row_for_each_case_and_variant_in_order():
    double = jax.jit(lambda x: 2 * x)
    table = bench({"plain": lambda x: 2 * x, "jit": double}, label="S", repeats=3,
                  cases={4: (jnp.ones(4),), 8: lambda: (jnp.ones(8),)})
    assert list(zip(table["S"], table["variant"])) == [(4, "plain"), (4, "jit"), (8, "plain"), (8, "jit")]
    assert (table["rounds"] == 3).all() and (table["median_us"] > 0).all() and (table["spread_us"] >= 0).all()
    assert all(len(samples) == 3 for samples in table["samples_us"])
    assert table.attrs["jax"] == jax.__version__ and table.attrs["threads"] >= 1


def test_without_cases_there_is_no_size_column():
    assert bench({"f": jnp.sin}, jnp.ones(3), repeats=1).columns[0] == "variant"


def test_ci_takes_only_the_first_cases(monkeypatch):
    cases = {n: (jnp.ones(n),) for n in (1, 2, 3)}
    for name, value, found in (("CI", "", [1, 2, 3]), ("CI", "true", [1, 2]), ("OPLAB_STABLE", "1", [1, 2])):
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.delenv("OPLAB_STABLE", raising=False)
        monkeypatch.setenv(name, value)
        assert list(bench({"f": jnp.sin}, cases=cases, repeats=1, memory=False, ci_cases=2)["case"]) == found


def test_variants_take_turns():
    seen = []
    variants = {"a": lambda: seen.append("a") or nap(2), "b": lambda: seen.append("b") or nap(2)}
    bench(variants, repeats=4, warmup=1, memory=False)
    assert "".join(seen) == "ab" * 6  # the first call, one warm-up, four rounds


def test_waits_for_the_result():
    matmuls, x = jax.jit(lambda x: x @ x @ x), jnp.ones((1000, 1000))
    waited = []
    for _ in range(4):
        start = time.perf_counter()
        matmuls(x).block_until_ready()
        waited.append((time.perf_counter() - start) * 1e6)
    measured = time_us(matmuls, x, repeats=5)
    assert measured > 0.3 * min(waited)
    assert measured > 4 * 1000**3 / 10e12 * 1e6  # two matmuls at 10 TFLOP/s: no CPU of today is faster


def test_waits_for_effects():
    @jax.jit
    def slow_callback(x):
        jax.debug.callback(lambda: time.sleep(0.02))
        return x + 1

    assert time_us(slow_callback, jnp.ones(3), repeats=3) > 19_000


def test_first_call_is_counted_apart():
    row = bench({"jit": jax.jit(lambda x: jnp.sin(x) + 1)}, jnp.ones(8), repeats=5).iloc[0]
    assert row["first_us"] > 10 * row["median_us"]
    assert max(row["samples_us"]) < row["first_us"]


def test_short_calls_are_repeated_within_a_sample():
    variants = {"short": jax.jit(lambda x: x + 1), "long": partial(nap, 5)}
    short, long = bench(variants, jnp.ones(1), repeats=3, warmup=2)["calls"]
    assert short > 1 and long == 1  # on a busy machine even a short call may take a while


def test_processor_time_is_not_wall_time():
    def busy(milliseconds):
        end = time.process_time() + milliseconds / 1e3
        while time.process_time() < end:
            pass

    table = bench({"nap": partial(nap, 30), "busy": partial(busy, 30)}, repeats=4, memory=False)
    asleep, awake = (table["user_us"] + table["system_us"])
    assert asleep < 10_000 < 25_000 < awake < 60_000


def test_spread_is_flagged():
    naps = iter([1, 1, 1, 9, 1, 9, 1, 9, 1, 9, 1, 9, 1])
    table = bench({"odd": lambda: nap(next(naps))}, repeats=8, warmup=1, memory=False)
    assert "spread is" in table["noise"].iloc[0]


def test_other_load_is_flagged(monkeypatch):
    monkeypatch.setattr(timing, "_busy_s", lambda: 1.5 * time.perf_counter())
    noisy = bench({"nap": partial(nap, 30)}, repeats=10, memory=False).iloc[0]
    assert "other programs kept 1.5 cores busy" in noisy["noise"] and 1.3 < noisy["other_cores"] < 1.6
    monkeypatch.setattr(timing, "_busy_s", lambda: 0.0)
    assert "other programs" not in bench({"nap": partial(nap, 30)}, repeats=10, memory=False)["noise"].iloc[0]


def test_closed_over_arrays_are_flagged():
    x = jnp.ones((8, 8))
    assert "no arguments" in bench({"closed": jax.jit(lambda: x @ x)}, repeats=1)["noise"].iloc[0]
    assert "no arguments" not in bench({"open": jax.jit(lambda x: x @ x)}, x, repeats=1)["noise"].iloc[0]


def test_numpy_arguments_are_put_on_the_device_once():
    kinds = set()
    bench({"f": lambda x: kinds.add(type(x)) or x}, np.ones(3, np.float32), repeats=2)
    assert kinds and all(issubclass(kind, jax.Array) for kind in kinds)


def test_budget_ends_the_rounds_but_not_before_three():
    few = bench({"nap": partial(nap, 40)}, repeats=50, budget_s=0.3, memory=False)["rounds"].iloc[0]
    assert 3 <= few <= 10
    assert bench({"nap": partial(nap, 40)}, repeats=50, budget_s=0.0, memory=False)["rounds"].iloc[0] == 3


def test_results_that_are_no_arrays():
    bench({"none": lambda x: None, "mixed": lambda x: {"a": x, "b": "text", "c": 3}}, jnp.ones(2), repeats=1)


# ---- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
def test_peak_memory_is_what_was_really_touched(monkeypatch, sampled):
    def slow(x):  # 16 MiB, then 32 MiB while the first is still needed; long enough to be sampled
        y = jax.block_until_ready(x + 1)
        z = jax.block_until_ready(jnp.concatenate([y, y]))
        time.sleep(0.01)
        return z[:1]

    if sampled:
        def no_reset(path, *args):
            if "clear_refs" in path:
                raise OSError("read-only")
            return open(path, *args)

        monkeypatch.setattr("oplab.memory.open", no_reset, raising=False)
    row = bench({"slow": slow}, jnp.ones(4 * MIB), repeats=1).iloc[0]
    assert row["peak_how"] == ("resident memory, sampled" if sampled else "high-water mark")
    assert 46 * MIB < row["peak_bytes"] < 56 * MIB


def test_memory_that_an_earlier_call_freed_is_not_free():
    grow = jax.jit(lambda x: jnp.concatenate([x, x, x]))  # 12 MiB: malloc would keep such blocks
    x = jnp.ones(MIB)
    for _ in range(3):
        peak, _ = peak_bytes(lambda: grow(x).block_until_ready())
        assert 11 * MIB < peak < 16 * MIB


def test_planned_memory_stands_beside_measured():
    def twice(x):
        return jnp.sum(jnp.sin(x @ x) @ x)

    jitted, x = jax.jit(twice), jnp.ones((600, 600))
    table = bench({"plain": twice, "jit": jitted}, x, repeats=1)
    assert np.isnan(table["temp_bytes"].iloc[0])
    assert table["temp_bytes"].iloc[1] == jitted.lower(x).compile().memory_analysis().temp_size_in_bytes
    assert "peak_bytes" not in bench({"jit": jitted}, x, repeats=1, memory=False)


# ---- what is printed ---------------------------------------------------------------------------------------


def test_stable_mode_prints_nothing_that_varies(monkeypatch, capsys):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("OPLAB_STABLE", "1")

    def shown():
        table = bench({"f": jax.jit(jnp.sin)}, cases={16: (jnp.ones(16),)}, label="S", repeats=2)
        assert table["median_us"].iloc[0] > 0  # the number is there, only not printed
        return repr(table) + table._repr_html_() + repr(table[["S", "median_us"]])

    assert shown() == shown() and "–" in shown()
    assert capsys.readouterr() == ("", "")


def test_printed_numbers_are_rounded_and_names_escaped(monkeypatch):
    monkeypatch.delenv("OPLAB_STABLE", raising=False)
    table = bench({"<b>": jax.jit(jnp.sin)}, jnp.ones(16), repeats=2)
    assert "<b>" not in table._repr_html_() and "samples" not in repr(table)
    table["median_us"], table["temp_bytes"] = 123456.789, 4198401
    assert "123,500" in repr(table) and "4,198,401" in repr(table)


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "error", "says"), [
    (lambda: bench(jnp.sin, jnp.ones(3)), TypeError, "dictionary of functions"),
    (lambda: bench({}), TypeError, "nothing in it"),
    (lambda: bench({"f": jnp.ones(3)}), TypeError, "'f' should be a function"),
    (lambda: bench({"f": jnp.sin}, jnp.ones(3), cases={1: (jnp.ones(3),)}), ValueError, "got both"),
    (lambda: bench({"f": jnp.sin}, cases=[jnp.ones(3)]), TypeError, "got list"),
    (lambda: bench({"f": jnp.sin}, jnp.ones(3), repeats=0), ValueError, "at least 1"),
    (lambda: bench({"f": jax.jit(jnp.sin, donate_argnums=0)}, jnp.ones(3)), ValueError, "donates"),
    (lambda: bench({"f": jnp.dot}, cases={3: (jnp.ones(3), jnp.ones(4))}, label="n"), RuntimeError,
     r"'f' failed at n = 3: TypeError"),
])
def test_bad_input_is_refused_in_one_sentence(call, error, says):
    with pytest.raises(error, match=says) as caught:
        call()
    if error is RuntimeError:
        assert isinstance(caught.value.__cause__, TypeError)
    else:
        assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
