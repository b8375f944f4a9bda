"""Write an operator: "not supported" is met, and cured."""

import inspect
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from ..support import support
from .exercise import Exercise

STARTER = '''\
def spectral_radius(a):
    """The largest absolute value of the eigenvalues of a symmetric matrix."""
    return jnp.abs(jnp.linalg.eigvals(a)).max()'''

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def spectral_radius(a):
    return jnp.abs(jnp.linalg.eigvalsh(a)).max()


def faults(f: Callable) -> Iterator[str]:
    numbers = np.random.default_rng(0)
    for n in (1, 2, 5):
        a = numbers.normal(size=(n, n)).astype(np.float32)
        a = a + a.T - 3 * np.eye(n, dtype=np.float32)  # the largest in absolute value is negative here
        got, right = float(f(jnp.asarray(a))), float(np.abs(np.linalg.eigvalsh(a)).max())
        if not abs(got - right) < 1e-4 * max(right, 1):
            yield f"for a {n} by {n} matrix it gives {got:.4f}, expected {right:.4f}."
    cells = support(f, jax.ShapeDtypeStruct((4, 4), jnp.float32), platform=PLATFORMS)
    for row in cells[cells["supported"].eq(False) & cells["primitive"].notna()].itertuples():
        yield f"`{row.primitive}` has no rule on {row.platform}."
    for row in cells[cells["supported"].eq(False)].itertuples():
        yield f"it does not lower on {row.platform}: {row.reason}"


EXERCISE = Exercise(
    name="missing_rule", level=2, solution="spectral_radius", starter=STARTER, size="one word", faults=faults,
    task="This works here, on the CPU. Make it work on cuda, rocm and tpu as well, before anyone deploys.",
    hints=(
        "oplab.support(spectral_radius, a, platform='tpu') names the operator that has no entry there.",
        "The matrix is symmetric. Which operator knows that, and is there on every platform?",
        "jnp.linalg.eigvalsh instead of eigvals.",
    ),
    notice="An operator is missing on a platform, not in Python: another one with a rule there is the cure.",
    code=inspect.getsource(spectral_radius),
)
