"""Factorisations: on the CPU they are calls into LAPACK, with loops of their own around some of them."""
import jax
import jax.numpy as jnp


def fn(a, b):
    spd = a.T @ a + 3 * jnp.eye(len(a))  # symmetric and positive definite
    eigenvalues = jnp.linalg.eigvalsh(spd)
    singular = jnp.linalg.svd(a, compute_uv=False)
    _, upper = jnp.linalg.qr(a)
    return {"cholesky": jnp.linalg.cholesky(spd), "eigenvalues": eigenvalues, "singular": singular,
            "upper": jnp.abs(jnp.diag(upper)), "solution": jnp.linalg.solve(spd, b),
            "logdet": jnp.linalg.slogdet(spd)[1], "exponential": jax.scipy.linalg.expm(a / 8)}


args = (jax.random.normal(jax.random.key(7), (5, 5)), jnp.linspace(0.0, 1.0, 5))
