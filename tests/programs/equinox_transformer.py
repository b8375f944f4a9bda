"""needs: equinox. A causal transformer block made of library modules, its gradient, vmap inside vmap."""
import equinox as eqx
import jax
import jax.numpy as jnp

TIME, FEATURES = 8, 16
keys = jax.random.split(jax.random.key(0), 3)
modules = {"attention": eqx.nn.MultiheadAttention(2, FEATURES, key=keys[0]), "norm1": eqx.nn.LayerNorm(FEATURES),
           "norm2": eqx.nn.LayerNorm(FEATURES), "mlp": eqx.nn.MLP(FEATURES, FEATURES, 32, 1, key=keys[1])}
params, rest = eqx.partition(modules, eqx.is_array)
causal = jnp.tril(jnp.ones((TIME, TIME), bool))


def fn(params, x):
    def loss(params):
        m = eqx.combine(params, rest)

        def block(h):
            n = jax.vmap(m["norm1"])(h)
            h = h + m["attention"](n, n, n, mask=causal)
            return h + jax.vmap(m["mlp"])(jax.vmap(m["norm2"])(h))

        return (jax.vmap(block)(x) ** 2).sum()

    return jax.value_and_grad(loss)(params)


args = (params, jax.random.normal(keys[2], (2, TIME, FEATURES)))
