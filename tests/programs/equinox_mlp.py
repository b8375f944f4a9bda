"""needs: equinox. Loss and gradient of a multilayer perceptron whose parameters are half of a module."""
import equinox as eqx
import jax
import jax.numpy as jnp

model = eqx.nn.MLP(6, 2, width_size=16, depth=2, activation=jax.nn.gelu, key=jax.random.key(0))
params, rest = eqx.partition(model, eqx.is_array)


def fn(params, x, y):
    def loss(params):
        predicted = jax.vmap(eqx.combine(params, rest))(x)
        return ((predicted - y) ** 2).mean()

    return jax.value_and_grad(loss)(params)


args = (params, jax.random.normal(jax.random.key(1), (8, 6)), jax.random.normal(jax.random.key(2), (8, 2)))
