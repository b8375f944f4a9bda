"""needs: e3nn-jax. Spherical harmonics and an equivariant tensor product, with Clebsch-Gordan constants."""
import e3nn_jax as e3nn
import jax


def fn(vectors, scalars):
    harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", vectors, normalize=True)
    features = e3nn.concatenate([e3nn.IrrepsArray("3x0e", scalars), e3nn.IrrepsArray("1x1o", vectors)])
    product = e3nn.tensor_product(features, harmonics, filter_ir_out=["0e", "1o"]).array
    return product, (product**2).sum(-1)


args = (jax.random.normal(jax.random.key(0), (4, 3)), jax.random.normal(jax.random.key(1), (4, 3)))
