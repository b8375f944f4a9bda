"""Programs that nobody wrote: drawn by Hypothesis, walked, and held against jit and against NumPy.

OPLAB_RANDOM_PROGRAMS says how many (200 on a desk, 1,000 under CI); the seeds are fixed, so a failure comes
back, and it is shrunk to the few steps that are needed for it.
"""

import os

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from program_rules import RULES, Block, Program, Step, Type, infer, jax_arguments, jax_function, oracle
from strategies import programs

import oplab

COUNT = int(os.environ.get("OPLAB_RANDOM_PROGRAMS") or (1000 if os.environ.get("CI") else 200))
SHARDS = 10  # each is a test of its own, so that several workers can share them
FATES = {"kept", "fused", "merged", "folded", "absorbed", "dead", "library", "inlined"}


def drawn(check, shard, count):
    """Run `check` on `count` programs drawn from the shard's own seed."""
    quiet = list(HealthCheck)
    chosen = settings(max_examples=count, deadline=None, database=None, suppress_health_check=quiet)
    seed(shard)(chosen(given(programs())(check)))()


def check_against_oracle(program, outputs):
    types = infer(program.steps, program.inputs)
    for i, got, want in zip(program.outputs, outputs, oracle(program)):
        expected = types[i]
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype) and want.shape == expected.shape
        exact = expected.dtype in ("int32", "bool")
        got, want = (np.asarray(x).astype(want.dtype if exact else np.complex128) for x in (got, want))
        off = np.abs(np.not_equal(got, want) if exact else got - want).max()
        assert off <= expected.error, f"value {i}: {off} from the oracle's, {expected.error} allowed"


def check_owners(walk):
    """Every kernel has an equation, but for the copy of an argument that no equation touched."""
    kernels = walk.kernels.table
    ownerless = [kernel for kernel, owners in zip(kernels["instruction"], kernels["equations"]) if not owners]
    jaxpr = walk.traced.jaxpr.jaxpr
    made = {id(v) for eqn in jaxpr.eqns for v in eqn.outvars}
    untouched = [v for v in jaxpr.outvars if id(v) not in made]
    assert len(ownerless) <= len(untouched), f"no equation owns {ownerless}"


def check_life(walk):
    """An equation whose results nobody reads, and which has no effect, has no instruction."""
    fates = dict(zip(walk.fates["equation"], walk.fates["fate"]))
    jaxpr = walk.traced.jaxpr.jaxpr
    read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars} | {id(v) for v in jaxpr.outvars}
    for number, eqn in enumerate(jaxpr.eqns):
        if not eqn.effects and not any(id(v) in read for v in eqn.outvars):
            assert fates[f"e{number}"] not in ("kept", "fused", "library"), f"e{number} is unused, yet alive"


def check_walk(program):
    function, args = jax_function(program), jax_arguments(program)
    walk = oplab.walk(function, *args)

    fates = walk.fates  # first: one compile with dumps then serves every stage
    assert sorted(fates["equation"]) == sorted(walk.jaxpr.table["equation"])
    assert set(fates["fate"]) <= FATES
    check_owners(walk)
    check_life(walk)

    outputs = walk.compiled(*args)
    for mine, plain in zip(outputs, jax.jit(function)(*args), strict=True):
        assert mine.dtype == plain.dtype and np.asarray(mine).tobytes() == np.asarray(plain).tobytes()
    check_against_oracle(program, outputs)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_programs_are_walked(shard):
    drawn(check_walk, shard, COUNT // SHARDS)


# The proving ground is proved too

@pytest.mark.parametrize("shard", range(2))
def test_jax_and_the_oracle_agree(shard):
    def check(program):
        check_against_oracle(program, jax_function(program)(*jax_arguments(program)))

    drawn(check, 100 + shard, 20)


def by_hand():
    """x: (2, 3) float32; three times x = tanh(x) + 1; then the row that an integer names."""
    body = Block((Step("tanh", (2,)), Step("shift", (4,), (1.0,))), 5)  # 0 x, 1 n; inside: 2 x, 3 trip, 4, 5
    steps = (Step("fori", (0,), (3,), (body,)), Step("take", (2, 1)))
    return Program((Type((2, 3), "float32", 3.0), Type((), "int32", 5.0)), steps, (3,))


def test_a_program_means_what_it_says():
    program = by_hand()
    x, n = (np.asarray(a) for a in jax_arguments(program))
    for _ in range(3):
        x = np.tanh(x) + 1
    np.testing.assert_allclose(oracle(program)[0], x[n % 2], rtol=1e-6)
    check_against_oracle(program, jax_function(program)(*jax_arguments(program)))


@pytest.mark.parametrize("broken", [lambda x: x + 1e-4, lambda x: x.astype("float16"), lambda x: x[:1]])
def test_a_wrong_result_is_noticed(broken):
    outputs = jax_function(by_hand())(*jax_arguments(by_hand()))
    with pytest.raises(AssertionError):
        check_against_oracle(by_hand(), [broken(x) for x in outputs])


def test_every_operation_is_drawn():
    seen = set()

    def collect(steps):
        for step in steps:
            seen.add(step.op)
            for block in step.blocks:
                collect(block.steps)

    drawn(lambda program: collect(program.steps), 0, 1000)
    assert seen == set(RULES)
