"""Corners of JAX itself: a sparse product, image resizing, an ODE solver, special functions, segment sums."""
import jax
import jax.numpy as jnp
from jax.experimental import sparse
from jax.experimental.ode import odeint


def fn(dense, image, times):
    product = sparse.BCOO.fromdense(dense, nse=5) @ dense.T
    bigger = jax.image.resize(image, (6, 8, 2), "cubic")
    decay = odeint(lambda y, t, rate: -rate * y, jnp.array([1.0, 2.0]), times, 0.5)
    special = jax.scipy.special.gammaln(1 + image[..., 0] ** 2) + jax.scipy.special.erfinv(jnp.tanh(image[..., 1]))
    sums = jax.ops.segment_sum(image.ravel(), jnp.arange(image.size) % 4, 4)
    return product, bigger, decay, special, sums


args = (jnp.array([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0], [4.0, 0.0, 5.0]]),
        jax.random.normal(jax.random.key(5), (3, 4, 2)), jnp.linspace(0.0, 2.0, 5))
