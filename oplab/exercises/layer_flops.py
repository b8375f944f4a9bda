"""Read: what a layer costs, said before it is run."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from ..walk import walk
from .exercise import Exercise

STARTER = '''\
def flops(batch, inputs, outputs):
    """FLOPs of relu(x @ W + b): x is (batch, inputs), W is (inputs, outputs), b is (outputs,)."""
    return ...'''


def flops(batch, inputs, outputs):
    matmul = 2 * batch * inputs * outputs  # a multiplication and an addition for each input
    bias = batch * outputs
    relu = batch * outputs
    return matmul + bias + relu


def faults(guess: Callable) -> Iterator[str]:
    for batch, inputs, outputs in [(8, 32, 16), (5, 7, 11), (1, 1, 1)]:
        right = counted(batch, inputs, outputs)
        said = guess(batch, inputs, outputs)
        case = f"batch={batch}, inputs={inputs}, outputs={outputs}"
        if said is None or said is ...:
            yield "it returns nothing yet: fill the hole."
        elif said == right - batch * inputs * outputs:
            yield f"at {case} it says {said}, and the walk counts {right}: a multiply-add is two operations."
        elif said == right - batch * outputs:
            yield f"at {case} it says {said}, and the walk counts {right}: one of three operators is missing."
        elif said == right - 2 * batch * outputs:
            yield f"at {case} it says {said}, and the walk counts {right}: + b and relu are operators too."
        elif said != right:
            yield f"at {case} it says {said}, and the walk counts {right}."


def counted(batch: int, inputs: int, outputs: int) -> int:
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((batch, inputs), (inputs, outputs), (outputs,))]
    equations = walk(lambda x, W, b: jax.nn.relu(x @ W + b), *shapes).jaxpr.table
    return int(equations[equations.depth == 0].flops.sum())


EXERCISE = Exercise(
    name="layer_flops", level=1, solution="flops", starter=STARTER, size="one line", faults=faults,
    task="How many floating-point operations does one layer take? Say it for any size, as a formula.",
    hints=(
        "Three operators: matmul, +, relu. How many numbers does each of them write, and what does "
        "each cost?",
        "One number of the matmul is a sum over all inputs: a multiplication and an addition for each.",
        "matmul: 2 · batch · inputs · outputs. + and relu: one operation for each of the batch · "
        "outputs numbers.",
    ),
    notice=("The matmul's share grows with `inputs`; the other two matter for the memory, hardly for "
            "the FLOPs."),
    code=inspect.getsource(flops),
)
