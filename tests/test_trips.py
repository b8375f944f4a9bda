"""Trip counts against loops that are really run, unrolled, or counted by Python."""

import operator

import jax
import jax.numpy as jnp
import pytest
from counting import W, X, counts_to, ones, ours, xla
from jax import lax

from oplab.cost import Cost, equation_cost, equations, flops, function_cost, jaxpr_cost

# Loops: as often as they run

def layer(h, w):
    return jnp.tanh(h @ w), (h * 2).sum()


def test_a_scan_costs_what_the_unrolled_loop_costs():
    def scanned(h, w):
        return lax.scan(lambda h, _: layer(h, w), h, length=10)
    def unrolled(h, w):
        sums = []
        for _ in range(10):
            h, s = layer(h, w)
            sums.append(s)
        return h, sums
    assert ours(scanned, X, W) == ours(unrolled, X, W) == xla(unrolled, X, W)
    assert xla(scanned, X, W)[0] < ours(scanned, X, W)[0] / 9  # what XLA makes of the loop


def test_the_gradient_of_a_scan_costs_what_the_unrolled_gradient_costs():
    def loss(run):
        return jax.grad(lambda w, h: run(h, w).sum())
    def scanned(h, w):
        return lax.scan(lambda h, _: (jnp.sin(h @ w), None), h, length=6)[0]
    def unrolled(h, w):
        for _ in range(6):
            h = jnp.sin(h @ w)
        return h
    a, b = function_cost(loss(scanned), W, X), function_cost(loss(unrolled), W, X)
    assert a.exact and b.exact and a.transcendentals == b.transcendentals
    assert b.flops <= a.flops <= b.flops + 6 * 3 * W.size  # the scan adds up the gradients of w in its carry


def run(jaxpr, args, consts=()):
    """Run a jaxpr, its loops in Python, and add up the cost of every equation as it is met."""
    inner, total = getattr(jaxpr, "jaxpr", jaxpr), Cost()
    env = dict(zip((*inner.constvars, *inner.invars), (*getattr(jaxpr, "consts", ()), *args)))
    for eqn in inner.eqns:
        values, p = [v.val if hasattr(v, "val") else env[v] for v in eqn.invars], eqn.params
        if eqn.primitive.name == "scan":
            body = getattr(p["jaxpr"], "jaxpr", p["jaxpr"])
            carries = sum(v.aval.ndim == w.aval.ndim for v, w in zip(eqn.outvars, body.outvars))
            given = sum(v.aval.ndim == w.aval.ndim for v, w in zip(eqn.invars, body.invars)) - carries
            constants, carry, xs = values[:given], values[given:given + carries], values[given + carries:]
            rows = []
            for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
                out, met = run(p["jaxpr"], [*constants, *carry, *(x[i] for x in xs)])
                carry, total = out[:carries], total + met
                rows.append(out[carries:])
            results = [*carry, *(jnp.stack(y[::-1] if p["reverse"] else y) for y in zip(*rows))]
        elif eqn.primitive.name == "while":
            n, m = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
            results = values[m:]
            while True:
                (again,), met = run(p["cond_jaxpr"], [*values[:n], *results])
                total += met
                if not again:
                    break
                results, met = run(p["body_jaxpr"], [*values[n:m], *results])
                total += met
        elif eqn.primitive.name == "cond":
            results, met = run(p["branches"][int(values[0])], values[1:])
            total += met
        elif "jaxpr" in p:
            results, met = run(p["jaxpr"], values)
            total += met
        else:
            results, total = eqn.primitive.bind(*values, **p), total + equation_cost(eqn)
            results = results if eqn.primitive.multiple_results else [results]
        env.update(zip(eqn.outvars, results))
    return [v.val if hasattr(v, "val") else env[v] for v in inner.outvars], total


def power(x, n):
    return lax.fori_loop(0, n, lambda i, y: y @ x * 0.1, x)


def scans(x):
    def outer(c, w):
        return lax.scan(lambda d, v: (jnp.tanh(d @ v), d.sum()), c, w)[0], c * c
    return lax.scan(outer, x, jnp.ones((3, 2, 4, 4)))


def powers(x):
    def twice(x):
        return lax.scan(lambda d, _: (jax.jit(power)(d, 4), None), x, length=2)[0]
    return lax.while_loop(lambda c: c[0] != 6, lambda c: (c[0] + 2, twice(c[1])), (0, x))


RUN = {
    "nested scans": scans,
    "gradient of nested scans": jax.grad(lambda x: scans(x)[0].sum()),
    "gradient of fori_loop": jax.grad(lambda x: power(x, 5).sum()),
    "while in scan in while": powers,
    "vmap of scan with remat": jax.vmap(lambda x: lax.scan(
        lambda c, _: (jax.checkpoint(jnp.sin)(c), None), x, length=4)[0]),
    "reverse scan": lambda x: lax.scan(lambda c, a: (c + a, c * a), x[0], x, reverse=True),
    "no trips at all": lambda x: lax.fori_loop(3, 3, lambda i, y: y @ x, lax.scan(
        lambda c, _: (c * 2, None), x, length=0)[0]),
    "switch": lambda x: lax.scan(
        lambda c, i: (lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], c), None), x, jnp.arange(3))[0],
}


@pytest.mark.parametrize("name", RUN)
def test_loops_cost_what_they_cost_when_they_are_run(name):
    closed = jax.make_jaxpr(RUN[name])(jnp.ones((4, 4)))
    (_, met), counted = run(closed, [jnp.ones((4, 4))]), jaxpr_cost(closed)
    assert counted == met and counted.exact and counted.flops + counted.transcendentals >= 0


@pytest.mark.parametrize("compare", ["lt", "gt", "le", "ge", "ne"])
@pytest.mark.parametrize("swapped", [False, True])
def test_while_loops_that_count_run_as_often_as_python_says(compare, swapped):
    counts = [(0, 10, 3), (10, 0, -3), (0, 9, 3), (9, 0, -3), (5, 5, 1), (-7, 8, 5), (3, -3, -1)]
    for start, bound, step in counts:
        def loop(x, start=start, bound=bound, step=step):
            def test(c):
                return getattr(lax, compare)(*((bound, c[0]) if swapped else (c[0], bound)))
            return lax.while_loop(test, lambda c: (c[0] + step, c[1] * 2.0), (start, x))
        i, trips, python = start, 0, getattr(operator, compare)
        while (python(bound, i) if swapped else python(i, bound)) and trips < 100:
            i, trips = i + step, trips + 1
        counted = function_cost(loop, ones(5))
        if trips < 100:
            assert counted.exact and counted.flops == trips * (1 + 5) + trips + 1, (start, bound, step)
        else:
            assert not counted.exact  # ends, if at all, by wrapping around


LIMIT, STEP = jnp.array(10), jnp.array(2)

KNOWN_LOOPS = {
    "fori_loop": lambda x: lax.fori_loop(0, 10, lambda i, x: x * 2.0, x),
    "while": lambda x: counts_to(10, x),
    "bound is an argument of a jitted function": lambda x: jax.jit(counts_to)(10, x),
    "bound is a constant array": lambda x: counts_to(LIMIT, x),
    "bound is computed": lambda x: counts_to(jnp.int32(4) * 2 + jnp.array(2), x),
    "bound in the carry": lambda x: jax.jit(lambda n: lax.fori_loop(0, n, lambda i, x: x * 2.0, x))(10),
    "in remat": lambda x: jax.checkpoint(lambda n, x: counts_to(n, x))(10, x),
    "in a branch that is taken": lambda x: lax.switch(jnp.int32(7), [jnp.sin, lambda x: counts_to(10, x)], x),
    "step is a constant array": lambda x: lax.while_loop(
        lambda c: c[0] < LIMIT, lambda c: (c[0] + STEP, c[1] * 10.0 + 1.0), (0, x))[1],
    "bound is the operand of a taken branch": lambda x: lax.switch(
        jnp.int32(1), [lambda n, x: x, counts_to], 10, x),
    "counting down by two": lambda x: lax.while_loop(
        lambda c: 0 < c[0], lambda c: (c[0] - 2, c[1] * 2.0), (jnp.array(20), x))[1],
    "vmap": jax.vmap(lambda x: counts_to(10, x)),
    "jvp": lambda x: jax.linearize(lambda y: counts_to(10, y), x)[0],
}


@pytest.mark.parametrize("name", KNOWN_LOOPS)
def test_trip_counts_are_found(name):
    f = KNOWN_LOOPS[name]
    counted = function_cost(f, ones(1000))
    assert counted.exact and 10_000 <= counted.flops <= 10_040, counted


def test_a_bound_that_reaches_a_loop_inside_a_scan():
    def f(x, n):
        return lax.scan(lambda c, _: (counts_to(n, c), None), x, length=3)[0]
    assert function_cost(lambda x: jax.jit(f)(x, 5), ones(1000)).flops // 1000 == 15


UNKNOWN_LOOPS = {
    "data": lambda x: lax.while_loop(lambda x: x.sum() < 1e9, lambda x: x * 2, x),
    "bound is data": lambda x: lax.fori_loop(0, x[0].astype(int), lambda i, x: x * 2, x),
    "start is data": lambda x: lax.fori_loop(x[0].astype(int), 10, lambda i, x: x * 2, x),
    "step is data": lambda x: lax.while_loop(
        lambda c: c[0] < 9, lambda c: (c[0] + c[1][0].astype(int), c[1] * 2), (0, x))[1],
    "counter is a float": lambda x: lax.while_loop(
        lambda c: c[0] < 1.0, lambda c: (c[0] + 0.1, c[1] * 2), (0.0, x))[1],
    "bound moves too": lambda x: lax.while_loop(
        lambda c: c[0] < c[1], lambda c: (c[0] + 2, c[1] + 1, c[2] * 2), (0, 10, x))[2],
    "bound grows in a scan": lambda x: lax.scan(
        lambda c, _: ((c[0] + 1, counts_to(c[0], c[1])), None), (1, x), length=1)[0][1],
    "two conditions": lambda x: lax.while_loop(
        lambda c: (c[0] < 10) & (c[1][0] < 5), lambda c: (c[0] + 1, c[1] * 2), (0, x))[1],
    "counter wraps": lambda x: lax.while_loop(
        lambda c: c[0] <= 127, lambda c: (c[0] + jnp.int8(1), c[1] * 2), (jnp.int8(0), x))[1],
    "batched predicate": jax.vmap(lambda x: lax.while_loop(lambda x: x < 1e9, lambda x: x * 2, x)),
}


@pytest.mark.parametrize("name", UNKNOWN_LOOPS)
def test_a_loop_that_stops_on_the_data_is_counted_once_and_says_so(name):
    f = UNKNOWN_LOOPS[name]
    counted = function_cost(f, ones(1000))
    assert not counted.exact and "stops on the data" in counted.note and 1000 <= counted.flops < 4000
    runs = {c.id: c.runs for c in equations(jax.jit(f).trace(ones(1000)).jaxpr)}
    assert None in runs.values() and runs["e0"] == 1
    with pytest.warns(UserWarning, match="stops on the data"):
        flops(f, ones(1000))


def test_what_stands_in_a_loop_that_never_runs_runs_never():
    def f(x):
        return lax.scan(lambda x, _: (UNKNOWN_LOOPS["data"](x), None), x, length=0)[0]
    assert function_cost(f, ones(4)) == Cost()
    assert {c.runs for c in equations(jax.jit(f).trace(ones(4)).jaxpr) if "." in c.id} == {0}
