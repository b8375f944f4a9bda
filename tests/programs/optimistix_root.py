"""needs: optimistix. The derivative of a root found by Newton's method: loops, linear solves, library primitives."""
import jax
import jax.numpy as jnp
import optimistix


def residual(y, p):
    return jnp.array([y[0] ** 2 + p * y[1] - 1.5, y[0] - y[1] ** 3])


def fn(p, start):
    solver = optimistix.Newton(rtol=1e-5, atol=1e-5)

    def root(p):
        return optimistix.root_find(residual, solver, start, p, max_steps=16, throw=False).value.sum()

    return jax.value_and_grad(root)(p)


args = (jnp.float32(0.6), jnp.array([1.0, 0.8]))
