"""Costs of whole programs: equations that hold others, what is not known, bytes, and what the walk needs."""

import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import MATMUL, W, X, counts_to, of_primitive, ones, ours
from jax import lax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive

from oplab import cost, ops
from oplab.cost import Cost, equations, flops, function_cost
from oplab.provenance import tag


def test_flops_of_an_exact_count_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flops(jax.jit(lambda x, n: x * n, static_argnums=1), ones(4), 3) == 4


def test_bad_input_is_refused_in_words():
    with pytest.raises(TypeError, match=r"expected a function to count, got ndarray: call flops\(f, x\)"):
        flops(np.ones(3))


# Other equations that hold jaxprs

def test_cond_is_its_most_expensive_branch_unless_the_choice_is_known():
    def f(i, x):
        return lax.switch(i, [lambda x: x, lambda x: x @ x, lambda x: x * 2], x)
    x = ones(16, 16)
    unknown = function_cost(f, ones(dtype=jnp.int32), x)
    assert unknown.flops == 2 * 16**3 + 2 and "most expensive branch" in unknown.note  # 2 to clamp i
    known = function_cost(lambda x: f(jnp.int32(2), x), x)
    assert known.exact and known.flops == 16**2 + 2
    either = lambda p, x: lax.cond(p, lambda x: x * 2, lambda x: x * 3, x)
    same = function_cost(either, ones(dtype=bool), x)
    assert same.exact and same.flops == 16**2


def test_custom_linear_solve_counts_the_solve_alone():
    counted = function_cost(jnp.linalg.solve, ones(30, 30), ones(30))
    factor, solve = 2 / 3 * 30**3, 2 * 30**2
    assert factor + solve <= counted.flops <= 1.01 * (factor + solve)
    assert counted.notes == ("`lu`: leading terms only",)
    inside = equations(jax.jit(jnp.linalg.solve).trace(ones(30, 30), ones(30)).jaxpr)
    runs = {(c.eqn.primitive.name, c.runs) for c in inside if ".jaxprs." in c.id}
    assert {("triangular_solve", 1), ("dot_general", 0)} <= runs


def test_custom_rules_count_the_function_itself():
    @jax.custom_vjp
    def f(x):
        return x * 2
    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * jnp.sin(x) * 3,))
    assert ours(f, ones(10)) == (10, 0)
    assert ours(jax.grad(lambda x: f(x).sum()), ones(10)) == (10 + 9 + 20, 10)

    @jax.custom_batching.custom_vmap
    def batched(x):
        return jnp.exp(x)
    batched.def_vmap(lambda size, in_batched, x: (batched(x), True))
    assert ours(batched, ones(10)) == (0, 10)


def test_a_high_level_primitive_is_what_it_stands_for():
    # In newer JAX this is an equation that holds no jaxpr.
    counted = function_cost(jnp.searchsorted, ones(64), ones(10))
    assert counted.exact and counted.flops >= 10 * math.log2(64)


def test_remat_pays_twice():
    def f(x, w):
        return jnp.sin(jnp.sin(x @ w) @ w).sum()
    plain, again = (function_cost(jax.grad(g), X, W).flops for g in (f, jax.checkpoint(f)))
    assert round((again - plain) / MATMUL) in (1, 2)


def kernel(x_ref, o_ref):
    o_ref[...] = jnp.exp(x_ref[...]) + 1.0


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_pallas_kernel_runs_once_for_each_step_of_its_grid(batch):
    def f(x):
        spec = pl.BlockSpec((8, 16), lambda i, j: (i, j))
        return pl.pallas_call(kernel, grid=(4, 2), in_specs=[spec], out_specs=spec, interpret=True,
                              out_shape=jax.ShapeDtypeStruct((32, 32), jnp.float32))(x)
    for _ in batch:
        f = jax.vmap(f)
    n = math.prod(batch) * 32 * 32
    assert function_cost(f, ones(*batch, 32, 32)) == Cost(n, n, 2 * 4 * n)
    counted = equations(jax.jit(f).trace(ones(*batch, 32, 32)).jaxpr)
    assert {c.runs for c in counted if c.id.startswith("e0.")} == {n // (8 * 16)}


def test_shard_map_counts_all_shards():
    mesh = jax.sharding.AbstractMesh((4, 2), ("d", "e"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    def f(x):
        spec = jax.sharding.PartitionSpec("d", "e")
        return jax.shard_map(lambda x: jnp.sin(x) * 2, mesh=mesh, in_specs=spec, out_specs=spec)(x)
    assert ours(f, ones(8, 8)) == (64, 64)


def test_psum_over_a_named_axis_and_over_a_batched_one():
    def f(x):
        return lax.psum(x, "i")
    mesh = jax.sharding.AbstractMesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    assert function_cost(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec), ones(4, 6)).flops == 24
    assert function_cost(jax.vmap(f, axis_name="i"), ones(4, 6)).flops == 18


# What is not known is said

def test_an_unknown_operator_is_none_and_a_sum_with_it_is_at_least():
    def call(x):
        return jax.ffi.ffi_call("no_such_target", ones(3))(x)
    counted = of_primitive("ffi_call", call, ones(4))
    assert counted.flops is None and counted.transcendentals is None and counted.bytes == 4 * 7
    assert counted.notes == ("the cost of `ffi_call` is not known",)
    assert function_cost(call, ones(4)).flops is None
    beside = function_cost(lambda x: call(x) * 2, ones(4))
    assert beside.flops == 3 and not beside.exact
    looped = function_cost(lambda x: lax.scan(lambda c, _: (call(c) * 2, None), x, length=5)[0], ones(3))
    assert looped.flops == 15 and "ffi_call" in looped.note


@pytest.mark.parametrize("f", [
    lambda x: jax.pure_callback(lambda x: x, ones(4), x),
    lambda x: jax.random.gamma(jax.random.key(0), x),
], ids=["pure_callback", "random_gamma"])
def test_host_code_and_rejection_sampling_are_not_known(f):
    assert not function_cost(f, ones(4)).exact


def test_another_library_s_primitives():
    hold = Primitive("hold")
    hold.def_abstract_eval(lambda x, **_: x)
    body = jax.make_jaxpr(lambda x: x * 2 + 1)(ones(4))
    counted = function_cost(lambda x: hold.bind(x, pair=(body, {"again": body})), ones(4))
    assert counted.flops == 16 and "`hold` is not known" in counted.note

    sort = Primitive("sort")  # the name of JAX's, the params of nobody's
    sort.def_abstract_eval(lambda x, **_: x)
    counted = function_cost(lambda x: sort.bind(x, order="up"), ones(4))
    assert counted.flops is None and "could not be counted (KeyError)" in counted.note

    scan = Primitive("scan")
    scan.def_abstract_eval(lambda x, **_: x)
    closed = jax.make_jaxpr(lambda x: scan.bind(x, mine=body))(ones(4))
    runs = {c.id: c.runs for c in equations(closed)}
    assert runs == {"e0": 1, "e0.mine.e0": None, "e0.mine.e1": None}


def test_symbolic_shapes_are_not_known():
    n, = jax.export.symbolic_shape("n")
    counted = cost.jaxpr_cost(jax.make_jaxpr(lambda x: x * 2)(ones(n)))
    assert counted.flops is None and not counted.exact


def test_every_primitive_of_jax_has_a_rule():
    import jax.extend.core.primitives as jaxs
    names = {getattr(jaxs, name).name for name in dir(jaxs) if name.endswith("_p")}
    known = {*cost.RULES, *cost.CALLS, *cost.COMBINERS, *cost.LOOPS}
    assert names - known <= {"random_gamma", "custom_lin"} and len(names & known) > 150


# Bytes

def test_bytes_of_each_operand_and_result_once():
    f32 = ones(10)
    assert function_cost(lambda x: x * x, f32).bytes == 80  # one operand, not two
    assert function_cost(lambda x: x * 2.0, f32).bytes == 80  # the literal is in the code
    assert function_cost(lambda x, y: x * y, f32, f32).bytes == 120
    sizes = {"bool": 10, "int4": 5, "int8": 10, "float8_e4m3fn": 10, "bfloat16": 20, "complex64": 80}
    for dtype, size in sizes.items():
        assert function_cost(lambda x: lax.rev(x, (0,)), ones(10, dtype=dtype)).bytes == 2 * size, dtype
    assert function_cost(lambda x: lax.stop_gradient(x) * 2.0, f32).bytes == 80  # a remark moves nothing
    key = jax.random.key(0)
    assert of_primitive("random_split", lambda k: jax.random.split(k, 10), key).bytes == 8 + 80
    assert function_cost(lambda x: jax.debug.print("{}", x) or x + 1, f32).bytes == 40 + 80


@pytest.mark.parametrize("f, moves", [
    (lambda x: x.reshape(12, 5), False), (lambda x: x[:, None], False), (lambda x: jnp.squeeze(x, 0), False),
    (lambda x: x.transpose(1, 0, 2, 3), False),  # an axis of 1 moves: every element stays
    (lambda x: x.swapaxes(1, 2), True), (lambda x: lax.rev(x, (1,)), True),
    (lambda x: lax.bitcast_convert_type(x, jnp.int32), False), (lambda x: x.astype(jnp.float16), True),
    (lambda x: lax.reshape(x, (60,), (0, 1, 2, 3)), False),
    (lambda x: lax.reshape(x, (60,), (0, 2, 1, 3)), True),
])
def test_a_new_name_for_the_same_bytes_moves_none(f, moves):
    x = ones(1, 3, 4, 5)
    assert bool(function_cost(f, x).bytes) == moves


def test_a_broadcast_moves_when_it_repeats():
    assert function_cost(lambda x: jnp.broadcast_to(x, (3, 10)), ones(1, 10)).bytes == 40 + 120
    # a literal is in the code, and what is made of it is written
    assert function_cost(lambda: jnp.full((10, 1), 2.0)).bytes == 40


def test_an_operator_with_new_names_around_it_moves_what_it_moves_alone():
    x = ones(8, 64, 16)
    wide = ones(8, 64, 1, 16)
    def named_anew(*qkv):
        return ops.attention(*(x[:, :, None] for x in qkv))[:, :, 0]
    assert function_cost(named_anew, x, x, x).bytes == function_cost(ops.attention, wide, wide, wide).bytes


def test_slices_and_updates_move_what_they_touch():
    table, three, i, rows = ones(1000, 16), ones(3, dtype=jnp.int32), ones(dtype=jnp.int32), ones(3, 16)
    row = 16 * 4
    def moved(name, f, *args):
        return of_primitive(name, f, *args).bytes
    assert moved("gather", lambda t, i: t.at[i].get(mode="clip"), table, three) == 2 * 3 * row + 12
    assert moved("scatter-add", lambda t, i, r: t.at[i].add(r), table, three, rows) == 3 * 3 * row + 12
    assert moved("slice", lambda t: t[2:4], table) == 2 * 2 * row
    assert moved("dynamic_slice", lambda t, i: lax.dynamic_slice_in_dim(t, i, 3), table, i) == 2 * 3 * row + 8
    update = moved("dynamic_update_slice", lambda t, r: lax.dynamic_update_slice(t, r, (0, 0)), table, rows)
    assert update == 2 * 3 * row + 8


def test_a_loop_moves_what_its_body_moves():
    def body(i, x):
        return x * 2 + 1
    once = function_cost(lambda x: body(0, x), ones(100)).bytes
    loop = function_cost(lambda x: lax.fori_loop(0, 7, body, x), ones(100))
    assert loop.bytes == 7 * (once + 8)  # the counter too


# What the walk needs

def test_equations_have_the_names_that_the_walk_uses():
    def f(x, w):
        x, _ = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, length=3)
        x = lax.cond(x.sum() > 0, jnp.sin, jax.jit(lambda x: x * 2), x)
        return jnp.linalg.solve(w, x.T), counts_to(4, x)
    closed = jax.jit(f).trace(X, W).jaxpr
    counted = {c.id: c for c in equations(closed)}
    assert list(counted) == list(tag(closed).equations)
    runs = {(c.eqn.primitive.name, c.runs) for c in counted.values()}
    assert {("tanh", 3), ("sin", 1), ("lu", 1), ("lt", 5)} <= runs
    whole = sum((c.cost for c in counted.values() if "." not in c.id), Cost())
    assert whole == function_cost(f, X, W)


def test_a_shared_body_is_counted_once_and_forgotten_with_its_jaxpr():
    import gc
    before = len(cost._counted)
    f = jax.jit(lambda x: x * 3 + 1)
    for _ in range(40):  # 2**40 additions, were each call looked into
        f = jax.jit(lambda x, f=f: f(f(x)))
    closed = jax.make_jaxpr(f)(ones(1))
    del f
    assert cost.jaxpr_cost(closed).flops == 2 * 2**40
    del closed
    jax.clear_caches()
    gc.collect()
    assert len(cost._counted) <= before + 1


def test_costs_add_and_multiply():
    a, b = Cost(1, 2, 3), Cost(None, 0, 5, ("b",))
    assert a + b == Cost(1, 2, 8, ("b",)) and b + Cost() == b and (a + b + b).notes == ("b",)
    assert 3 * a == a * 3 == Cost(3, 6, 9) and b * 0 == Cost() and b * 2 == Cost(None, 0, 10, ("b",))
    assert a.exact and not b.exact and b.note == "b"
