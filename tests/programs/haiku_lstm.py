"""needs: dm-haiku. An LSTM unrolled by a scan; one argument is None."""
import haiku as hk
import jax


def network(x):
    core = hk.LSTM(8)
    hidden, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
    return jax.nn.softmax(hk.Linear(3)(hidden))


transformed = hk.transform(network)
x = jax.random.normal(jax.random.key(0), (5, 2, 4))
fn = transformed.apply
args = (transformed.init(jax.random.key(1), x), None, x)
