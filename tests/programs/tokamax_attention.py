"""needs: tokamax. Library attention with grouped heads, causal and in chunks, then a library layer norm."""
import jax
import jax.numpy as jnp
import tokamax


def fn(q, k, v, scale, offset):
    mixed = tokamax.dot_product_attention(q, k, v, is_causal=True, implementation="xla_chunked")
    return tokamax.layer_norm(mixed, scale, offset, implementation="xla")


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


args = (normal(0, 1, 16, 4, 8), normal(1, 1, 16, 2, 8), normal(2, 1, 16, 2, 8), jnp.ones(8), jnp.zeros(8))
