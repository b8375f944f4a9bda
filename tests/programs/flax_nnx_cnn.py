"""needs: flax. An nnx network in training: batch norm that returns new state, dropout that carries a random key."""
import jax
from flax import nnx


class Network(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = nnx.Linear(4 * 25, 3, rngs=rngs)

    def __call__(self, x):
        h = nnx.relu(self.norm(self.conv(x))).reshape(len(x), -1)
        return self.head(self.dropout(h))


definition, state = nnx.split(Network(nnx.Rngs(0)))


def fn(state, x):
    network = nnx.merge(definition, state)
    return network(x), nnx.state(network, nnx.BatchStat)


args = (state, jax.random.normal(jax.random.key(1), (3, 10, 10, 1)))
