"""needs: flax. A small GPT in flax.linen; `fn` is a bound method, and params are its own pytree."""
import flax.linen as nn
import jax
import jax.numpy as jnp

LAYERS, FEATURES, HEADS, VOCABULARY, TIME = 2, 32, 2, 61, 12


class GPT(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(VOCABULARY, FEATURES)
        h = embed(tokens) + nn.Embed(TIME, FEATURES)(jnp.arange(tokens.shape[1]))
        for _ in range(LAYERS):
            attention = nn.MultiHeadDotProductAttention(HEADS)
            h = h + attention(nn.LayerNorm()(h), mask=nn.make_causal_mask(tokens))
            h = h + nn.Dense(FEATURES)(nn.gelu(nn.Dense(4 * FEATURES)(nn.LayerNorm()(h))))
        return embed.attend(nn.LayerNorm()(h))


tokens = jax.random.randint(jax.random.key(1), (2, TIME), 0, VOCABULARY)
model = GPT()
fn = model.apply
args = (model.init(jax.random.key(0), tokens), tokens)
