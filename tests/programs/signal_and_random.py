"""Spectra, sorting, searching, random numbers of a typed key, bits: few equations, thousands of instructions."""
import jax
import jax.numpy as jnp


def fn(key, signal):
    noise_key, order_key, gamma_key = jax.random.split(key, 3)
    noisy = signal + 0.05 * jax.random.normal(noise_key, signal.shape)
    spectrum = jnp.fft.rfft(noisy)
    power = jnp.fft.irfft(spectrum * spectrum.conj(), n=len(signal))
    best, where = jax.lax.top_k(power, 3)
    order = jnp.argsort(power, descending=True, stable=True)
    bits = jax.random.bits(noise_key, (5,), "uint32")
    return (power[order], jnp.abs(spectrum), best, where, jnp.searchsorted(jnp.sort(signal), best),
            jax.random.permutation(order_key, len(signal)), jax.random.gamma(gamma_key, 1.5, (2,)), bits ^ (bits >> 5))


args = (jax.random.key(3), jnp.cos(jnp.arange(24.0)))
