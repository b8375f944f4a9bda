"""The operators together: how they are listed, and what the rest of the lab sees of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import oplab
from oplab.ops import CATALOGUE, Unsupported, attention, catalogue, layer_norm, matmul, relu


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_the_catalogue_says_who_has_which_entry_and_fits_into_a_notebook():
    table = catalogue().set_index("operator")
    assert list(table.index) == list(CATALOGUE)
    assert set(table["xla"]) == {"any"} and table.loc["matmul", "pallas"] == "cpu, tpu, cuda"
    assert table.loc["layer_norm", "operands"] == "x, scale, bias"
    assert table.map(len).max(axis=None) <= 50  # pandas cuts longer cells off


def test_the_catalogue_shows_names_and_no_row_numbers():
    table = catalogue()
    assert "<th>0</th>" in table.head(1)._repr_html_() and "<th>0</th>" not in table._repr_html_()
    assert table.shape[0] == len(CATALOGUE) and repr(table).splitlines()[1].split()[0] == "relu"


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_kernel_of_an_operator_can_be_read_before_it_is_lowered(name):
    operator = CATALOGUE[name]
    example = [shape(*axes.values()) for axes in operator.example.values()]
    f = lambda *operands: operator.function(*operands, implementation="pallas")
    kernels = oplab.pallas.kernels(f, *example)
    assert list(kernels["equation"]) == ["e0"] and set(kernels["file"]) == {"test_ops_catalogue.py"}
    assert oplab.pallas.check(f, *example).empty
    assert oplab.pallas.kernels(lambda *operands: operator.function(*operands), *example).empty


def test_an_operator_inside_other_code_is_read_with_its_own_line_and_id():
    f = jax.jit(lambda a, b: jax.lax.map(lambda a: relu(matmul(a, b, implementation="pallas")), a))
    kernels = oplab.pallas.kernels(f, shape(3, 700, 600), shape(600, 900))
    assert kernels["equation"].item() == "e0.jaxpr.e0" and kernels["grid"].item() == (1, 2, 2, 2)
    traffic = oplab.pallas.traffic(f, shape(3, 700, 600), shape(600, 900)).set_index("operand")
    assert traffic.loc["a_ref", "moved_bytes"] == 2 * 4 * 700 * 600  # once for each block of columns


def test_the_gradient_of_attention_is_read_too_with_values_of_what_the_grid_depends_on():
    q, k, kv_len = shape(2, 600, 4, 64), shape(2, 700, 2, 64), jnp.array([3, 700])

    def f(q, k, v):
        return attention(q, k, v, kv_len=kv_len, implementation="pallas").sum()

    gradient = jax.grad(f, (0, 1, 2))
    names = list(oplab.pallas.kernels(gradient, q, k, k)["name"])
    assert names[0] == "attention_forward" and len(names) == 3
    assert oplab.pallas.check(gradient, q, k, k).empty
    blocks = oplab.pallas.traffic(gradient, q, k, k, kernel="k0").set_index("operand")
    assert blocks.loc["given.k", "blocks"] == 2 * (1 + 2)  # three keys are one block, 700 are two


def test_a_walk_says_what_ran_without_lowering_again(monkeypatch):
    w = oplab.walk(lambda x: relu(relu(x), implementation="pallas"), jnp.ones((4, 4)))
    w.stablehlo  # noqa: B018 (lowered here)
    monkeypatch.setattr("oplab._jax.with_jaxpr", lambda *args: pytest.fail("lowered again"))
    table = w.ran()
    assert list(table["ran"]) == ["xla", "pallas"] and list(table["interpreted"]) == [False, True]
    assert oplab.ran(w).equals(table)


def test_a_row_may_lie_on_several_devices():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    f = jax.grad(lambda x: (layer_norm(x) ** 3).sum())
    with jax.set_mesh(mesh):
        cut = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "d")))
        np.testing.assert_allclose(jax.jit(f)(cut), f(jnp.asarray(x)), rtol=1e-4, atol=1e-5)


def test_what_is_too_wide_for_the_fused_kernel_is_refused_and_left_to_xla_when_nobody_asked():
    q = shape(1, 8, 1, 2000)
    asked = jax.jit(lambda q: attention(q, q, q, implementation="pallas")).trace(q)
    with pytest.raises(Unsupported, match="up to 1024 features on a TPU.*got 2000"):
        asked.lower(lowering_platforms=("tpu",))
    ran = lambda q: oplab.ran(lambda q: attention(q, q, q), q, platform="tpu")["ran"].item()
    assert ran(q) == "xla" and ran(shape(1, 8, 1, 64)) == "pallas"
