"""The gradient of a sharded loss: shard_map with a sum over devices, a scan inside it, a checkpoint inside that."""
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

mesh = Mesh(np.array(jax.devices()[:1]), ("data",))


def layers(weights, x):
    @jax.checkpoint
    def layer(h, w):
        return jnp.tanh(h @ w)

    h, means = jax.lax.scan(lambda h, w: (layer(h, w), h.mean()), x, weights)
    return jax.lax.psum((h**2).sum(), "data"), jax.lax.psum(means, "data")


everywhere, by_row = PartitionSpec(), PartitionSpec("data")
sharded = jax.shard_map(layers, mesh=mesh, in_specs=(everywhere, by_row), out_specs=(everywhere, everywhere))


def fn(weights, x):
    return jax.value_and_grad(lambda w: sharded(w, x)[0])(weights)


args = (0.3 * jax.random.normal(jax.random.key(1), (4, 6, 6)), jax.random.normal(jax.random.key(2), (2, 6)))
