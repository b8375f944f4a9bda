"""needs: numpyro. Log density of a hierarchical regression and its gradient, through a stack of effect handlers."""
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_density


def model(x, group, y):
    centre = numpyro.sample("centre", dist.Normal(0.0, 3.0))
    width = numpyro.sample("width", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", 3):
        offset = numpyro.sample("offset", dist.Normal(centre, width))
    slope = numpyro.sample("slope", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.StudentT(4.0, offset[group] + x @ slope, 0.5), obs=y)


keys = jax.random.split(jax.random.key(0), 3)
data = (jax.random.normal(keys[0], (12, 2)), jax.random.randint(keys[1], (12,), 0, 3), jax.random.normal(keys[2], (12,)))


def fn(parameters):
    return jax.value_and_grad(lambda p: log_density(model, data, {}, p)[0])(parameters)


args = ({"centre": jnp.array(0.2), "width": jnp.array(0.7), "offset": jnp.array([0.1, 0.0, -0.1]),
         "slope": jnp.array([0.3, -0.4])},)
