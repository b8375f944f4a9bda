"""The operators on sizes, dtypes, options and mapped axes that nobody chose, drawn from `ENTRIES`."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_contract import DIFFERENCES, ENTRIES, FLOATS, assert_close, expected, floats, gradients, random

from oplab.ops import CATALOGUE, Unsupported
from oplab.ops.operator import MAP

PAIRS = [(name, implementation) for name in CATALOGUE if name in ENTRIES for implementation in MAP[name]]
QUICK = settings(deadline=None, derandomize=True, database=None)  # the same draws on every machine


@st.composite
def calls(draw, name, smallest=0, largest=5):
    """(case, options, sizes): a case of the operator with any of its options, and other sizes."""
    case = draw(st.sampled_from(ENTRIES[name].cases + ENTRIES[name].more))
    options = {option: draw(st.sampled_from(values)) for option, values in case.choices.items()}
    sizes = {
        axis: draw(st.integers(max(smallest, axis in case.full), largest), label=axis) for axis in case.sizes
    }
    return case, options, sizes


@st.composite
def mapped(draw, name):
    """A call, a dtype, and for each operand the axis that vmap maps (None: it is the same for all)."""
    case, options, sizes = draw(calls(name))
    dims = {key: draw(st.none() | st.integers(0, len(axes)), label=key) for key, axes in case.axes.items()}
    return case, options, sizes, dims, draw(st.integers(0, 3), label="count"), draw(st.sampled_from(FLOATS))


def function(name, implementation, options):
    return lambda operands: CATALOGUE[name].function(**operands, **options, implementation=implementation)


@pytest.mark.parametrize("name, implementation", PAIRS)
def test_value_and_vmap(name, implementation):
    @settings(QUICK, max_examples=25 if implementation == "xla" else 12)
    @given(mapped(name))
    def check(drawn):
        case, options, sizes, dims, count, dtype = drawn
        f = function(name, implementation, options)
        rows = [case.operands(dtype, seed, **sizes) for seed in range(max(count, 1))]
        alone = all(dim is None for dim in dims.values())
        if alone:
            operands, wanted = rows[0], expected(name, rows[0], options)
        else:
            operands = {
                key: rows[0][key] if dim is None else np.stack([row[key] for row in rows], dim)
                for key, dim in dims.items()
            }
            rows = [{key: (rows[0] if dims[key] is None else row)[key] for key in row} for row in rows]
            wanted = np.stack([expected(name, row, options) for row in rows])
            if count == 0:
                operands = {
                    key: x if dims[key] is None else x.take([], dims[key]) for key, x in operands.items()
                }
                wanted = wanted[:0]
            f = jax.vmap(f, (dims,))
        with jax.enable_x64(dtype == "float64"):
            try:
                got = jax.jit(f)(operands)
            except Unsupported:
                assert implementation not in ("xla", "pallas")
                return
        assert got.dtype == (options.get("preferred_element_type") or dtype)
        assert_close(got, wanted, inside=ENTRIES[name].inside.get(implementation, 0))

    check()


@pytest.mark.parametrize("name, implementation", PAIRS)
def test_gradients(name, implementation):
    @settings(QUICK, max_examples=12 if implementation == "xla" else 6)
    @given(calls(name, smallest=1, largest=3))
    def check(drawn):
        case, options, sizes = drawn
        operands = case.operands("float64", **sizes)
        shape = expected(name, operands, options).shape
        cotangent = random(
            np.random.default_rng(2), shape, options.get("preferred_element_type") or "float64"
        )
        moving = floats(operands)
        f = function(name, implementation, options)
        with jax.enable_x64(True):
            try:
                pull = jax.jit(lambda moving, ct: jax.vjp(lambda m: f({**operands, **m}), moving)[1](ct))
                (found,) = pull(moving, cotangent)
            except Unsupported:
                assert implementation not in ("xla", "pallas")
                return
        wanted = gradients(name, operands, options, cotangent)
        for key in moving:
            assert_close(
                found[key],
                wanted[key],
                "float32" if "preferred_element_type" in options else None,
                slack=DIFFERENCES,
            )

    check()
