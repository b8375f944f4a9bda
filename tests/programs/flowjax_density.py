"""needs: flowjax. Log density of a masked autoregressive flow, a scan under vmap."""
import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.distributions import Normal
from flowjax.flows import masked_autoregressive_flow

flow = masked_autoregressive_flow(jax.random.key(0), base_dist=Normal(jnp.zeros(2)), flow_layers=2, nn_width=6)
params, rest = eqx.partition(flow, eqx.is_inexact_array)


def fn(params, x):
    return eqx.combine(params, rest).log_prob(x)


args = (params, jax.random.normal(jax.random.key(1), (4, 2)))
