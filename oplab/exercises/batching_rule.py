"""Write an operator: the rule that lets vmap through."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive

from .._jax import batching, mlir
from .exercise import Exercise

STARTER = '''\
from oplab.exercises.batching_rule import reverse


def rule(x, where, axis):
    """vmap of `reverse`, which turns x around along `axis`.

    x has one axis more than `reverse` knows of: the batch, at place `where`. Returns what `reverse(x, axis)`
    makes of the whole batch at once, and the place at which the batch stands in it.
    """
    return reverse(x, axis), where'''

reverse_p = Primitive("reverse_along")


def reverse(x, axis):
    """x, turned around along an axis: the operator for which a rule is wanted."""
    return reverse_p.bind(x, axis=axis)


def plain(x, axis):
    return jax.lax.rev(x, (axis,))


reverse_p.def_impl(plain)
reverse_p.def_abstract_eval(lambda x, axis: x)
mlir.register_lowering(reverse_p, mlir.lower_fun(plain, multiple_results=False))


def rule(x, where, axis):
    return reverse(x, axis + 1 if axis >= where else axis), where  # axes from `where` on have moved by one


def faults(rule: Callable) -> Iterator[str]:
    def batched(args, dims, *, axis):
        return rule(args[0], dims[0], axis)

    batching.primitive_batchers[reverse_p] = batched
    try:
        yield from _compared(jnp.arange(24.0).reshape(2, 3, 4))
    finally:
        del batching.primitive_batchers[reverse_p]


def _compared(x: jax.Array) -> Iterator[str]:
    for where in range(3):
        for axis in range(2):
            one = lambda y, axis=axis: reverse(y, axis)
            wanted = np.stack([plain(y, axis) for y in jnp.moveaxis(x, where, 0)])
            got = np.asarray(jax.vmap(one, in_axes=where)(x))
            if got.shape != wanted.shape:
                yield (f"with the batch at {where} and axis={axis} the result has shape {got.shape}, "
                       f"expected {wanted.shape}: say where the batch stands in the result.")
            elif not np.array_equal(got, wanted):
                yield (f"with the batch at {where} and axis={axis} the wrong axis is turned around: "
                       f"in x, which has the batch too, axis {axis} is not where it was.")
    twice = jax.vmap(jax.vmap(lambda y: reverse(y, 0)), in_axes=2)(x)
    if not np.array_equal(twice, jnp.moveaxis(x, 2, 0)[..., ::-1]):
        yield "vmap of vmap gives something else than two loops."


EXERCISE = Exercise(
    name="batching_rule", level=2, solution="rule", starter=STARTER, size="one expression", faults=faults,
    task="Complete the batching rule of `reverse`. The axis that it was given counts without the batch.",
    hints=(
        "x is (2, 3, 4) and the batch stands at 0. Which axis of x did the caller mean by axis=0?",
        "Axes before the batch keep their number; the others have moved by one.",
        "axis + 1 if axis >= where else axis.",
    ),
    notice="vmap never loops: it asks each operator, once, what it would do with one axis more.",
    code=inspect.getsource(rule),
)
