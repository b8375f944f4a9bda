"""What is special to conv2d: where the window may lie, and that its gradients are convolutions again."""

import importlib
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from oplab.ops import Unsupported

module = importlib.import_module("oplab.ops.conv2d")
conv2d = module.conv2d

implementations = pytest.mark.parametrize("implementation", ["xla", "pallas"])

# stride, padding, dilation, groups, (height, width) of the window; the image is 7 by 6
GEOMETRIES = [
    ((1, 1), "SAME", (2, 2), 1, (3, 3)),
    ((2, 3), "SAME", (1, 1), 1, (4, 3)),
    ((2, 1), ((2, 0), (1, 3)), (1, 1), 2, (3, 2)),
    ((2, 2), ((1, 1), (1, 1)), (1, 1), 4, (3, 3)),
    ((1, 1), ((-1, 0), (0, -1)), (1, 1), 1, (2, 2)),
    ((3, 3), "VALID", (1, 1), 1, (1, 1)),
    ((2, 3), ((-2, 3), (4, -1)), (2, 3), 2, (2, 3)),
    ((1, 1), "VALID", (1, 1), 1, (9, 2)),
]


def normal(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def by_lax(x, w, *, stride, padding, dilation, groups):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, stride, padding, rhs_dilation=dilation, feature_group_count=groups, dimension_numbers=numbers
    )


@implementations
@pytest.mark.parametrize("stride, padding, dilation, groups, window", GEOMETRIES)
def test_values_and_gradients_are_those_of_lax(implementation, stride, padding, dilation, groups, window):
    x, w = normal(2, 7, 6, 4), normal(*window, 4 // groups, 8)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    want, want_back = jax.vjp(lambda *xw: by_lax(*xw, **geometry), x, w)
    ours = jax.jit(lambda *xw: conv2d(*xw, **geometry, implementation=implementation))
    got, back = jax.vjp(ours, x, w)
    for a, b in zip((got, *back(want)), (want, *want_back(want)), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-4)


@pytest.mark.parametrize("implementation", [None, "pallas"])
def test_gradients_of_any_order_are_the_primitive_itself(implementation):
    def loss(x, w):
        return (conv2d(x, w, stride=2, padding=1, groups=2, implementation=implementation) ** 3).sum()

    x, w = normal(1, 5, 4, 4), normal(3, 3, 2, 4)
    jaxpr = jax.make_jaxpr(jax.grad(lambda x: jax.grad(loss, 1)(x, w).sum()))(x)
    names = Counter(equation.primitive.name for equation in jaxpr.eqns)
    assert names["conv2d"] >= 4 and "conv_general_dilated" not in names
    assert {e.params["implementation"] for e in jaxpr.eqns if e.primitive.name == "conv2d"} == {
        implementation
    }


@implementations
@pytest.mark.parametrize("mapped", [(0, None), (None, 4), (2, 1)])
def test_vmap_is_one_convolution(implementation, mapped):
    geometry = {"stride": (2, 1), "padding": ((1, 0), (-1, 2)), "dilation": (1, 2), "groups": 2}
    shapes = [(2, 6, 5, 4), (3, 2, 2, 6)]
    x, w = (normal(*(s if d is None else (*s[:d], 3, *s[d:]))) for s, d in zip(shapes, mapped, strict=True))
    ours = jax.vmap(lambda x, w: conv2d(x, w, **geometry, implementation=implementation), mapped)
    want = jax.vmap(lambda x, w: module.conv2d_reference(x, w, **geometry), mapped)(x, w)
    np.testing.assert_allclose(ours(x, w), want, 1e-5, 1e-5)
    bound = [e.params["groups"] for e in jax.make_jaxpr(ours)(x, w).eqns if e.primitive.name == "conv2d"]
    assert bound == [6 if None not in mapped else 2]


@implementations
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_low_precision_is_summed_in_float32(implementation, dtype):
    x, w = jnp.ones((1, 3000, 1, 1), dtype), jnp.ones((3000, 1, 1, 1), dtype)  # float16 is stuck at 2048
    y = conv2d(x, w, implementation=implementation)
    assert y.dtype == dtype and float(y[0, 0, 0, 0]) == float(dtype(3000))
    assert (
        conv2d(x, w, preferred_element_type=jnp.float32, implementation=implementation).dtype == jnp.float32
    )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_sum_is_wide_in_stablehlo_too(dtype):
    f = jax.jit(conv2d).trace(jnp.ones((1, 4, 4, 1), dtype), jnp.ones((2, 2, 1, 1), dtype))
    (line,) = [line for line in f.lower().as_text().splitlines() if "stablehlo.convolution" in line]
    assert line.endswith(
        "-> tensor<1x3x3x1xf32>"
    )  # where a backend adds up in the dtype it is told, this decides


@implementations
def test_integers_wrap_unless_a_wider_sum_is_asked_for(implementation):
    x, w = jnp.full((1, 2, 2, 1), 100, jnp.int8), jnp.ones((2, 2, 1, 1), jnp.int8)
    assert conv2d(x, w, implementation=implementation).item() == np.int32(400).astype(np.int8)
    assert conv2d(x, w, preferred_element_type=jnp.int32, implementation=implementation).item() == 400


@implementations
def test_nan_stays_in_the_windows_that_touch_it(implementation):
    x = jnp.ones((1, 4, 5, 1)).at[0, 0, 0, 0].set(jnp.nan)
    y = conv2d(x, jnp.ones((2, 2, 1, 1)), stride=2, padding=1, implementation=implementation)
    assert np.isnan(y).sum() == 1


def test_out_features_may_fill_their_last_block_in_part_only(monkeypatch):
    monkeypatch.setattr("oplab.ops.conv2d_kernel.LANES", 4)
    x, w = normal(1, 5, 4, 3), normal(2, 2, 3, 10)
    got = conv2d(x, w, implementation="pallas")
    np.testing.assert_allclose(got, module.conv2d_reference(x, w), 1e-5, 1e-5)


def test_kernel_has_no_races_on_a_simulated_tpu():
    x, w = normal(2, 5, 6, 4), normal(3, 2, 2, 6)
    params = {"stride": (2, 1), "padding": ((1, 1), (0, 2)), "dilation": (1, 2), "groups": 2}
    interpret = pltpu.InterpretParams(detect_races=True)
    got = module.conv2d_pallas(
        x, w, **params, input_dilation=(1, 1), preferred_element_type=None, interpret=interpret
    )
    np.testing.assert_allclose(got, module.conv2d_reference(x, w, **params), 1e-5, 1e-5)


def on_tpu(f, *operands):
    return jax.jit(f).trace(*operands).lower(lowering_platforms=("tpu",)).as_text()


def test_kernel_lowers_for_tpu_with_its_gradients():
    def loss(x, w):
        return conv2d(x, w, stride=2, padding="SAME", groups=2, implementation="pallas").sum()

    text = on_tpu(jax.grad(loss, (0, 1)), normal(2, 9, 7, 4), normal(3, 2, 2, 6))
    assert text.count("tpu_custom_call") >= 2


def test_an_image_too_large_for_the_kernel_is_refused():
    x, w = (
        jax.ShapeDtypeStruct((1, 300, 300, 4), jnp.float32),
        jax.ShapeDtypeStruct((3, 3, 4, 8), jnp.float32),
    )
    with pytest.raises(Unsupported, match="need .* bytes of .*use implementation='xla'"):
        on_tpu(lambda x, w: conv2d(x, w, implementation="pallas"), x, w)


@pytest.mark.parametrize(
    "error, sentence, x, w, options",
    [
        (ValueError, r"w \(height, width, in/groups, out\)", (1, 4, 4), (3, 3, 4, 2), {}),
        (ValueError, r"in/groups = 4, got .*\[3, 3, 2, 2\]", (1, 4, 4, 4), (3, 3, 2, 2), {}),
        (
            ValueError,
            "groups that divide in and out, got groups=2",
            (1, 4, 4, 3),
            (3, 3, 1, 2),
            {"groups": 2},
        ),
        (ValueError, "stride to be an integer of at least 1", (1, 4, 4, 1), (3, 3, 1, 2), {"stride": 0}),
        (ValueError, "dilation as an integer or as two", (1, 4, 4, 1), (3, 3, 1, 2), {"dilation": (1, 2, 3)}),
        (ValueError, "padding as 'SAME'", (1, 4, 4, 1), (3, 3, 1, 2), {"padding": "FULL"}),
        (
            TypeError,
            "hold products of float32, got int32",
            (1, 4, 4, 1),
            (3, 3, 1, 2),
            {"preferred_element_type": jnp.int32},
        ),
    ],
)
def test_what_it_refuses(error, sentence, x, w, options):
    with pytest.raises(error, match=sentence):
        conv2d(jnp.ones(x), jnp.ones(w), **options)


def test_complex_numbers_and_booleans_are_refused():
    for dtype in (jnp.complex64, bool):
        with pytest.raises(TypeError, match="expects real numbers"):
            conv2d(jnp.ones((1, 4, 4, 1), dtype), jnp.ones((3, 3, 1, 2), dtype))


# Axes that are cut over devices, and sizes that are not known -----------------------------------------------


@implementations
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("cut_x, cut_w", [(0, None), (3, None), (None, 2), (None, 3), (0, 3), (3, 2)])
def test_gradients_on_a_mesh_with_explicit_axes(implementation, groups, cut_x, cut_w):
    """Batch or features, cut over two devices: the gradients are those of one device, cut as the operands."""
    x, w = normal(2, 5, 4, 8), normal(3, 3, 8 // groups, 4)

    def loss(x, w):
        y = conv2d(x, w, stride=2, padding=1, groups=groups, implementation=implementation)
        return (y**2).sum()

    want = jax.grad(loss, (0, 1))(x, w)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x, w = (
            jax.device_put(a, NamedSharding(mesh, P(*("devices" if i == cut else None for i in range(4)))))
            for a, cut in ((x, cut_x), (w, cut_w))
        )
        got = jax.jit(jax.grad(loss, (0, 1)))(x, w)
    for a, b, operand in zip(got, want, (x, w), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-4)
        assert a.sharding.is_equivalent_to(operand.sharding, 4)


@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("cut", [0, 1, 4])  # the mapped axis, that of the batch (height for w), the features
def test_vmap_on_a_mesh_with_explicit_axes(mapped, groups, cut):
    x, w = normal(2, 2, 5, 4, 8), normal(2, 2, 2, 8 // groups, 4)
    x, w = (a if d == 0 else a[0] for a, d in zip((x, w), mapped, strict=True))

    def loss(x, w):
        return (jax.vmap(lambda x, w: conv2d(x, w, groups=groups), mapped)(x, w) ** 2).sum()

    want = jax.value_and_grad(loss, (0, 1))(x, w)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        spec = P(*("devices" if i == cut else None for i in range(5)))
        x, w = (
            jax.device_put(a, NamedSharding(mesh, spec if d == 0 else P()))
            for a, d in zip((x, w), mapped, strict=True)
        )
        got = jax.jit(jax.value_and_grad(loss, (0, 1)))(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), got, want)


def exported(f, sizes, constraints=()):
    h, q = export.symbolic_shape(sizes, constraints=constraints)
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((2, h, q, 4), (3, 3, 4, 8))]
    return export.deserialize(export.export(jax.jit(f))(*shapes).serialize())


@pytest.mark.parametrize(
    "sizes, constraints, options",
    [
        ("h, q", (), {"padding": "SAME"}),
        ("h, q", ["h >= 3", "q >= 3"], {"padding": "VALID"}),
        ("2*h, 2*q", (), {"padding": "SAME", "stride": 2}),
    ],
)
def test_height_and_width_may_be_symbolic(sizes, constraints, options):
    gradients = jax.grad(lambda x, w: (conv2d(x, w, **options) ** 2).sum(), (0, 1))
    x, w = normal(2, 8, 6, 4), normal(3, 3, 4, 8)
    got = exported(gradients, sizes, constraints).call(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), got, gradients(x, w))


@pytest.mark.parametrize(
    "sentence, options",
    [
        ("the constraint 'h - 3 >= 0'", {}),
        ("a padding in numbers, got .* such as '2.h'", {"padding": "SAME", "stride": 2}),
    ],
)
def test_symbolic_sizes_that_leave_a_shape_open_are_refused(sentence, options):
    with pytest.raises(ValueError, match=sentence):
        exported(lambda x, w: conv2d(x, w, **options), "h, q")
