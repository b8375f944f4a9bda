"""needs: distrax. Log probability of a mixture, and of a distribution pushed through a chain of bijectors."""
import distrax
import jax
import jax.numpy as jnp


def fn(logits, centres, widths, x):
    parts = distrax.Normal(centres, jax.nn.softplus(widths))
    mixture = distrax.MixtureSameFamily(distrax.Categorical(logits=logits), parts)
    bent = distrax.Transformed(distrax.Normal(0.0, 1.0),
                               distrax.Chain([distrax.Tanh(), distrax.ScalarAffine(0.2, 0.6)]))
    return mixture.log_prob(x).sum() + bent.log_prob(0.8 * jnp.tanh(x)).sum()


args = (jnp.array([0.1, -0.3]), jnp.array([-1.0, 1.0]), jnp.array([0.2, 0.4]), jnp.linspace(-1.5, 1.5, 7))
