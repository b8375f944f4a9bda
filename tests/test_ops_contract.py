"""One contract for every operator and every implementation: the line in the catalogue is all a test knows.

What an operator means, in numpy, and what it is tried on stand in `operator_contract.ENTRIES`.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from operator_contract import (
    DIFFERENCES,
    ENTRIES,
    FLOATS,
    Case,
    assert_close,
    example,
    expected,
    floats,
    is_float,
)

from oplab.ops import CATALOGUE, Unsupported
from oplab.ops.operator import IMPLEMENTATIONS, MAP, PLATFORMS

EVERYWHERE = ("xla", "pallas")  # run on any CPU whatever the operands; others may decline, and say why
PAIRS = [(name, implementation) for name in CATALOGUE for implementation in MAP[name]]


def cases(some=slice(None)):
    """(name, implementation, case) for some of each operator's cases; none where the entry is missing."""
    return [(n, i, case) for n, i in PAIRS if n in ENTRIES for case in ENTRIES[n].cases[some]]


def contract(*parameters, **labels):
    """Parametrise a test; an implementation that declines its operands with `Unsupported` is skipped."""

    def decorate(test):
        @functools.wraps(test)
        def run(*args, **kwargs):
            try:
                test(*args, **kwargs)
            except Unsupported as reason:
                if kwargs.get("implementation") in EVERYWHERE:
                    raise
                pytest.skip(str(reason))

        return pytest.mark.parametrize(*parameters, **labels)(run)

    return decorate


def label(value):
    return (
        str(value)
        if not isinstance(value, Case)
        else " ".join([value.layout, *map(str, value.options.values())])
    )


each = contract("name, implementation", PAIRS)
each_case = contract("name, implementation, case", cases(), ids=label)


def plain(name):
    return ENTRIES[name].cases[0]


@functools.cache
def applied(name, implementation, case):
    """The operator as a function of one dictionary of operands, compiled once."""
    return jax.jit(functools.partial(apply, name, implementation, case))


def apply(name, implementation, case, operands):
    return CATALOGUE[name].function(**operands, **case.options, implementation=implementation)


@functools.cache
def differentiated(name, implementation, case):
    """(value, gradients by the floating-point operands) of a dictionary of operands and a cotangent."""

    def both(operands, cotangent):
        still = {key: x for key, x in operands.items() if not jnp.issubdtype(x.dtype, jnp.floating)}
        moving = {key: x for key, x in operands.items() if key not in still}
        value, pull = jax.vjp(lambda moving: apply(name, implementation, case, {**moving, **still}), moving)
        return value, *pull(cotangent)

    return jax.jit(both)


def assert_all_close(got, expected, **how):
    assert got.keys() == expected.keys()
    for key in got:
        assert_close(got[key], expected[key], **how)


# The catalogue ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_operator_has_its_entry_here(name):
    assert name in ENTRIES, f"write the formula of {name} in numpy, and a few cases, into ENTRIES"


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_line_is_true(name):
    operator = CATALOGUE[name]
    assert operator.name == operator.primitive.name == name
    assert operator.formula and set(MAP[name]) <= set(IMPLEMENTATIONS)
    operands = {
        key: jnp.asarray(np.linspace(-1, 1, max(np.prod(list(axes.values())), 1)).reshape(*axes.values()))
        for key, axes in operator.example.items()
    }
    assert_close(operator.function(**operands), np.asarray(operator.reference(**operands), np.float64))


@pytest.mark.parametrize("name, case", [(n, c) for n, i, c in cases() if i == "xla"], ids=label)
def test_the_reference_is_the_formula(name, case):
    operands, _, value, _ = example(name, case, "float32")
    reference = CATALOGUE[name].reference(**jax.tree.map(jnp.asarray, operands), **case.options)
    assert_close(reference, value)


# Values, shapes, gradients ----------------------------------------------------------------------------------


@each_case
@pytest.mark.parametrize("dtype", FLOATS)
def test_value(name, implementation, case, dtype):
    operands, _, value, _ = example(name, case, dtype)
    with jax.enable_x64(dtype == "float64"):
        got = applied(name, implementation, case)(operands)
    assert got.dtype == (case.options.get("preferred_element_type") or dtype)
    assert not got.weak_type
    assert_close(got, value, inside=ENTRIES[name].inside.get(implementation, 0))


@each
@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_other_dtypes_are_right_or_refused(name, implementation, dtype):
    case = plain(name)
    operands = case.operands(dtype)
    try:
        got = applied(name, implementation, case)(operands)
    except (TypeError, Unsupported) as refusal:  # by the operator, or by this implementation
        assert name in str(refusal) and dtype in str(refusal)
    else:
        assert_close(got, expected(name, operands, case.options))


@each_case
def test_shape_rule(name, implementation, case):
    operands, _, value, _ = example(name, case, "bfloat16")
    shape = jax.eval_shape(applied(name, implementation, case), operands)
    assert shape.shape == value.shape
    assert shape.dtype == case.options.get("preferred_element_type", jnp.bfloat16)
    reference = jax.eval_shape(functools.partial(CATALOGUE[name].reference, **case.options), **operands)
    assert (reference.shape, reference.dtype) == (shape.shape, shape.dtype)


@contract(
    "name, implementation, case, dtype",
    [(*call, "float32") for call in cases()]
    + [(*call, dtype) for call in cases(slice(1)) for dtype in ("bfloat16", "float16")],
    ids=label,
)
def test_gradient_is_that_of_float64(name, implementation, case, dtype):
    operands, cotangent, value, gradients = example(name, case, dtype)
    got, found = differentiated(name, implementation, case)(operands, cotangent)
    assert all(found[key].dtype == operands[key].dtype for key in found)
    assert_close(got, value, inside=ENTRIES[name].inside.get(implementation, 0))
    assert_all_close(found, gradients, slack=DIFFERENCES, inside=ENTRIES[name].inside.get(implementation, 0))


@contract("name, implementation, case", cases(slice(2)), ids=label)
def test_derivatives_to_second_order(name, implementation, case):
    if case.options.get("preferred_element_type"):
        pytest.skip("a float32 result is too coarse for difference quotients")
    with jax.enable_x64(True):
        operands = jax.tree.map(jnp.asarray, example(name, case, "float64")[0])
        moving = floats(operands)
        still = {key: x for key, x in operands.items() if key not in moving}
        f = lambda moving: apply(name, implementation, case, {**moving, **still})
        check_grads(f, (moving,), order=2, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5)


# vmap -------------------------------------------------------------------------------------------------------


def mapped(case, dims, size=3, dtype="float32"):
    """Operands with one more axis at `dims`, and the list of `size` operands that a loop would take."""
    rows = [case.operands(dtype, seed) for seed in range(size)]
    if size == 0:
        rows, count = [case.operands(dtype)], 0
    else:
        count = size
    stacked = {
        key: rows[0][key]
        if dims[key] is None
        else np.stack([row[key] for row in rows], dims[key]).take(range(count), dims[key])
        for key in rows[0]
    }
    return stacked, [
        {key: row[key] if dims[key] is not None else rows[0][key] for key in row} for row in rows[:count]
    ]


@each_case
def test_vmap_is_a_loop(name, implementation, case):
    """Values and gradients, the mapped axis in a different place for each operand."""
    dims = {key: i % (len(axes) + 1) - len(axes) - 1 for i, (key, axes) in enumerate(case.axes.items(), 1)}
    operands, rows = mapped(case, dims)
    _, cotangent, *_ = example(name, case, "float32")
    f = differentiated(name, implementation, case)
    loop = [f(row, cotangent) for row in rows]
    value, gradients = jax.jit(jax.vmap(f, (dims, None)))(operands, cotangent)
    assert_close(value, np.stack([value for value, _ in loop]).astype(np.float64))
    for key in gradients:
        assert_close(gradients[key], np.stack([gradient[key] for _, gradient in loop]).astype(np.float64))


@each
def test_vmap_of_one_operand_under_grad(name, implementation):
    """The operands that are not mapped gather the gradients of all."""
    case = plain(name)
    _, cotangent, *_ = example(name, case, "float32")
    f, one = applied(name, implementation, case), differentiated(name, implementation, case)
    for only in case.axes:
        dims = {key: -1 if key == only else None for key in case.axes}
        operands, rows = mapped(case, dims)
        batched = jax.vmap(f, (dims,))
        found = jax.jit(jax.grad(lambda operands, batched=batched: (batched(operands) * cotangent).sum()))(
            operands
        )
        loop = [one(row, cotangent)[1] for row in rows]
        for key in found:
            each_row = [np.asarray(gradient[key], np.float64) for gradient in loop]
            assert_close(found[key], np.stack(each_row, -1) if key == only else sum(each_row))


@each
@pytest.mark.parametrize("size", [0, 1])
def test_vmap_over_nothing_and_over_one(name, implementation, size):
    case = plain(name)
    dims = dict.fromkeys(case.axes, 0)
    operands, rows = mapped(case, dims, size)
    got = jax.vmap(applied(name, implementation, case))(operands)
    value = example(name, case, "float32")[2]
    assert_close(got, np.stack([value] * size) if size else np.zeros((0, *value.shape)))


@each
def test_nested_vmap(name, implementation):
    case = plain(name)
    first, *others = case.axes
    operands = case.operands()
    operands[first] = np.stack(
        [np.stack([case.operands(seed=3 * i + j)[first] for j in range(3)], -1) for i in range(2)]
    )
    inner = {first: -1} | dict.fromkeys(others)
    outer = {first: 0} | dict.fromkeys(others)
    f = jax.vmap(jax.vmap(applied(name, implementation, case), (inner,)), (outer,))
    loop = [
        [expected(name, {**operands, first: operands[first][i, ..., j]}, case.options) for j in range(3)]
        for i in range(2)
    ]
    assert_close(jax.jit(f)(operands), np.array(loop))


# Under the other transformations ----------------------------------------------------------------------------


@each
def test_eager_is_jit(name, implementation):
    case = plain(name)
    operands, _, value, _ = example(name, case, "float32")
    assert_close(apply(name, implementation, case, operands), value)
    operands = jax.tree.map(jnp.asarray, operands)
    eager = jax.grad(lambda operands: apply(name, implementation, case, operands).sum())(operands)
    compiled = differentiated(name, implementation, case)(operands, np.ones(value.shape, np.float32))[1]
    assert_all_close(eager, jax.tree.map(lambda x: np.asarray(x, np.float64), compiled))


@each
def test_remat(name, implementation):
    case = plain(name)
    operands, cotangent, _, gradients = example(name, case, "float32")
    f = jax.checkpoint(applied(name, implementation, case), policy=jax.checkpoint_policies.nothing_saveable)
    found = jax.jit(jax.grad(lambda operands: (f(operands) * cotangent).sum()))(operands)
    assert_all_close(found, gradients, slack=DIFFERENCES)


@each
def test_linear_transpose(name, implementation):
    case = plain(name)
    operands, cotangent, _, gradients = example(name, case, "float32")
    for together in ENTRIES[name].linear:
        moving = {key: operands[key] for key in together}
        f = lambda moving: apply(name, implementation, case, {**operands, **moving})
        (found,) = jax.linear_transpose(f, moving)(cotangent)
        assert_all_close(found, {key: gradients[key] for key in together}, slack=DIFFERENCES)


@each_case
def test_integers_have_float0_tangents(name, implementation, case):
    """A mask, or lengths, beside operands that move; else the operator of integers, if it takes them."""
    operands, cotangent, value, gradients = example(name, case, "float32")
    if all(map(is_float, operands.values())):
        operands = case.operands("int32")
        try:
            value = applied(name, implementation, case)(operands)
        except (TypeError, Unsupported):
            pytest.skip(f"{implementation}/{name} takes no integers")
        gradients = {}
        cotangent = np.zeros(value.shape, cotangent.dtype if value.dtype == np.float32 else jax.dtypes.float0)
    f = functools.partial(apply, name, implementation, case)
    operands = jax.tree.map(jnp.asarray, operands)
    out, pull = jax.vjp(f, operands)
    (found,) = pull(cotangent)
    for key, x in operands.items():
        if jnp.issubdtype(x.dtype, jnp.floating):
            assert_close(found[key], gradients[key], slack=DIFFERENCES)
        else:
            assert found[key].dtype == jax.dtypes.float0 and found[key].shape == x.shape
    tangents = {
        key: jnp.ones_like(x)
        if jnp.issubdtype(x.dtype, jnp.floating)
        else np.zeros(x.shape, jax.dtypes.float0)
        for key, x in operands.items()
    }
    out, tangent = jax.jvp(f, (operands,), (tangents,))
    if cotangent.dtype == jax.dtypes.float0:
        assert tangent.dtype == jax.dtypes.float0 and tangent.shape == out.shape
    else:
        along = sum((gradient.sum() for gradient in gradients.values()), 0.0)
        assert abs((np.asarray(tangent, np.float64) * cotangent).sum() - along) < 1e-4 * max(1, abs(along))


# Weak types -------------------------------------------------------------------------------------------------


@each
def test_weak_types(name, implementation):
    """Operands made of Python's own numbers, and a scan whose carry begins as one."""
    case = plain(name)
    operands = {key: jnp.full(shape, 0.5) for key, shape in case.shapes().items()}
    assert all(x.weak_type for x in operands.values())
    f = functools.partial(apply, name, implementation, case)

    def step(carry, _):
        return f({key: jnp.broadcast_to(carry, x.shape) for key, x in operands.items()}).max(), None

    last, _ = jax.lax.scan(step, 0.5, length=2)
    once = expected(name, jax.tree.map(np.asarray, operands), case.options).max()
    twice = expected(name, {key: np.full(x.shape, once) for key, x in operands.items()}, case.options).max()
    assert last.dtype == np.float32
    assert_close(last, twice)


@each
def test_weak_operands_do_not_widen(name, implementation):
    case = plain(name)
    operands = jax.tree.map(jnp.asarray, case.operands("bfloat16"))
    first, *others = case.axes
    operands |= {key: jnp.full(operands[key].shape, 0.5) for key in others}
    try:
        got = jax.eval_shape(functools.partial(apply, name, implementation, case), operands)
    except TypeError as refusal:
        assert name in str(refusal) and "bfloat16" in str(refusal)
    else:
        assert got.dtype == jnp.bfloat16 and not got.weak_type


# Edges ------------------------------------------------------------------------------------------------------


@each_case
def test_empty_arrays(name, implementation, case):
    for axis in case.sizes.keys() - set(case.full):
        operands = case.operands(**{axis: 0})
        value = expected(name, operands, case.options)
        got, gradients = differentiated(name, implementation, case)(
            operands, np.ones(value.shape, np.float32)
        )
        assert_close(got, value)
        for key, gradient in gradients.items():
            assert gradient.shape == operands[key].shape
            assert np.isfinite(gradient).all()


@each_case
def test_nan_goes_where_it_belongs(name, implementation, case):
    for key, x in floats(case.operands()).items():
        for i in case.nan if x.size else ():
            operands = case.operands()
            operands[key].flat[i] = np.nan
            assert_close(
                applied(name, implementation, case)(operands), expected(name, operands, case.options)
            )


@each
def test_many_ragged_blocks(name, implementation):
    case = ENTRIES[name].large
    operands = case.operands()
    assert_close(applied(name, implementation, case)(operands), expected(name, operands, case.options))


# The names --------------------------------------------------------------------------------------------------


@each
def test_the_name_survives_to_the_optimised_hlo(name, implementation):
    f, operands = applied(name, implementation, plain(name)), example(name, plain(name), "float32")[0]
    primitives = [e.primitive.name for e in jax.make_jaxpr(f.__wrapped__)(operands).eqns]
    assert primitives.count(name) == 1
    lowered = f.lower(operands)
    assert re.search(rf'loc\("jit[^"]*/{implementation}/{name}\b', lowered.as_text(debug_info=True))
    assert re.search(rf'op_name="jit[^"]*/{implementation}/{name}\b', lowered.compile().as_text())


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_best_implementation_is_named_too(name):
    f, (operands, _, value, _) = applied(name, None, plain(name)), example(name, plain(name), "float32")
    assert_close(f(operands), value)
    chosen = re.search(rf'loc\("jit[^"]*/(\w+)/{name}\b', f.lower(operands).as_text(debug_info=True))[1]
    assert chosen in MAP[name]
    for platform in PLATFORMS:
        f.trace(operands).lower(lowering_platforms=(platform,))


# The map from act to kernel ---------------------------------------------------------------------------------


def platforms(name, implementation):
    rules = MAP[name][implementation]
    return [platform for platform in PLATFORMS if platform in rules or "any" in rules]


def may_decline(implementation, platform):
    """Kernels for a GPU take what they want; XLA takes everything everywhere, Pallas on CPU and TPU."""
    return implementation != "xla" and platform not in ("cpu", "tpu")


def lowered(f, platform, *args):
    return f.trace(*args).lower(lowering_platforms=(platform,)).as_text(debug_info=True)


EVERY = [(*pair, platform) for pair in PAIRS for platform in PLATFORMS]
ENTERED = [
    (name, implementation, p) for name, implementation, p in EVERY if p in platforms(name, implementation)
]


@pytest.mark.parametrize("name, implementation, platform", ENTERED)
def test_lowers_where_the_map_has_an_entry(name, implementation, platform):
    """Value and gradient. A kernel that may decline says so in a sentence, and takes one of these."""
    declines = may_decline(implementation, platform)
    tried = [(plain(name), "float32"), (ENTRIES[name].large, "bfloat16")]
    worked = set()
    for case, dtype in tried if declines else tried[:1]:
        f, operands = applied(name, implementation, case), case.operands(dtype)
        both = differentiated(name, implementation, case)
        for what, g, args in ("value", f, ()), ("gradient", both, (jax.eval_shape(f, operands),)):
            try:
                assert f"/{implementation}/{name}" in lowered(g, platform, operands, *args)
                worked.add(what)
            except Unsupported as refusal:
                assert declines and name in str(refusal) and str(refusal).endswith(".")
    assert "value" in worked  # a kernel for a GPU may lack a gradient, and then says so


@pytest.mark.parametrize("name, implementation, platform", sorted(set(EVERY) - set(ENTERED)))
def test_says_why_it_does_not_lower(name, implementation, platform):
    f, operands = applied(name, implementation, plain(name)), plain(name).operands()
    with pytest.raises(Unsupported) as refusal:
        lowered(f, platform, operands)
    said = str(refusal.value)
    assert all(word in said for word in (name, repr(implementation), platform, "use implementation='xla'"))


@each
def test_export_round_trip(name, implementation):
    """For all its platforms at once, through bytes, with its gradient."""
    if implementation not in EVERYWHERE:
        pytest.skip("its library is built on the machine that runs it")
    case = plain(name)
    operands, cotangent, value, gradients = example(name, case, "float32")
    f = applied(name, implementation, case)
    everywhere = [p for p in platforms(name, implementation) if not may_decline(implementation, p)]
    exported = export.export(f, platforms=everywhere)(operands)
    again = export.deserialize(exported.serialize(vjp_order=1))
    assert_close(again.call(operands), value)
    found = jax.grad(lambda operands: (again.call(operands) * cotangent).sum())(operands)
    assert_all_close(found, gradients, slack=DIFFERENCES)


@pytest.mark.parametrize("name", CATALOGUE)
def test_export_with_a_symbolic_dimension(name):
    case = plain(name)
    first = next(iter(case.axes.values()))[0]
    (size,) = export.symbolic_shape("n")
    shapes = {
        key: jax.ShapeDtypeStruct(
            [size if axis == first else n for axis, n in zip(case.axes[key], shape)], np.float32
        )
        for key, shape in case.shapes().items()
    }
    exported = export.export(applied(name, "xla", case))(shapes)
    again = export.deserialize(exported.serialize())
    operands = case.operands(**{first: 5})
    assert_close(again.call(operands), expected(name, operands, case.options))


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_unknown_implementation_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} .*'magic'.*'xla'"):
        apply(name, "magic", plain(name), example(name, plain(name), "float32")[0])


@pytest.mark.parametrize(
    "name, case", [(n, c) for n in CATALOGUE if n in ENTRIES for c in ENTRIES[n].refused], ids=label
)
def test_bad_input_is_refused_in_a_sentence(name, case):
    """Before anything runs, with what was given: the shape of an operand, or the option."""
    with pytest.raises((ValueError, TypeError)) as refusal:
        jax.eval_shape(functools.partial(apply, name, None, case), case.operands())
    text = str(refusal.value)
    assert name in text and "expects" in text and text.endswith(".") and "\n" not in text
    given = [str(list(shape))[1:-1] for shape in case.shapes().values()] + [
        repr(v) for v in case.options.values()
    ]
    assert any(said.replace(" ", "") in text.replace(" ", "") for said in given)


# Sharding, over the two devices that conftest.py asks for ---------------------------------------------------


def sharded(case, mesh):
    """The plain case's first axis is divided; an operand that has no such axis is whole on each device."""
    first = next(iter(case.axes.values()))[0]
    return {
        key: P(*("devices" if axis == first else None for axis in axes)) for key, axes in case.axes.items()
    }


@each
def test_shard_map(name, implementation):
    case, mesh = plain(name), jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
    operands, cotangent, value, gradients = example(name, case, "float32")
    specs = sharded(case, mesh)
    both = differentiated(name, implementation, case)
    f = jax.shard_map(
        both, mesh=mesh, in_specs=(specs, P("devices")), out_specs=(P("devices"), specs), check_vma=True
    )
    got, found = jax.jit(f)(operands, cotangent)
    assert_close(got, value)
    assert_all_close(found, gradients, slack=DIFFERENCES)


@each
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_mesh(name, implementation, kind):
    case, mesh = plain(name), jax.make_mesh((2,), ("devices",), axis_types=(kind,))
    operands, cotangent, value, gradients = example(name, case, "float32")
    specs = sharded(case, mesh)
    with jax.set_mesh(mesh):
        operands = {key: jax.device_put(x, NamedSharding(mesh, specs[key])) for key, x in operands.items()}
        cotangent = jax.device_put(cotangent, NamedSharding(mesh, P("devices")))
        got, found = jax.jit(differentiated(name, implementation, case))(operands, cotangent)
        assert kind == AxisType.Auto or jax.typeof(got).sharding.spec[0] == "devices"
        assert_close(got, value)
        assert_all_close(found, gradients, slack=DIFFERENCES)


# The Pallas kernels, as the TPU interpreter sees them -------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CATALOGUE if "pallas" in MAP[name]])
@pytest.mark.parametrize("size", ["plain", "large"])
def test_the_kernel_has_no_races(name, size, monkeypatch, capfd):
    """Beside races, this interpreter checks the bounds of loads and stores, and draws the order of parallel
    programs. It needs ordered callbacks, which no lowering rule may have: the launcher is called itself.
    """
    interpreter, grids = pltpu.InterpretParams(detect_races=True, random_seed=0), []
    launcher = MAP[name]["pallas"]["cpu"].launcher
    pallas_call = pl.pallas_call

    def watched(kernel, *args, **kwargs):
        grids.append(kwargs.get("grid"))
        assert kwargs["interpret"] is interpreter
        return pallas_call(kernel, *args, **kwargs)

    def bind(*operands, implementation, **params):
        return launcher(*operands, **params, interpret=interpreter)

    monkeypatch.setattr(pl, "pallas_call", watched)
    monkeypatch.setattr(CATALOGUE[name].primitive, "bind", bind)
    case = plain(name) if size == "plain" else ENTRIES[name].large
    operands = case.operands()
    got = np.asarray(apply(name, "pallas", case, operands))
    assert grids and "RACE" not in capfd.readouterr().out
    assert_close(got, expected(name, operands, case.options))
