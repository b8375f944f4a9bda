"""matmul: c[m, n] = sum_k a[m, k] b[k, n], for every matrix of a batch.

Nothing in the formula says that m is one axis. So the primitive multiplies groups of axes:

    a (*batch, *rows, *inner), b (*batch, *inner, *columns) -> c (*batch, *rows, *columns)

and all the cases of `jnp.matmul` are choices of groups. A vector has no rows, or no columns. A batch axis
that one operand lacks is no batch axis but one more group of rows or columns: (batch, m, k) @ (k, n) is one
large product, nothing is copied, and the gradient of b sums over the batch inside the product. The groups are
also closed under differentiation: both transposes, and vmap of either operand, are products of the same kind.

Integers wrap around in their own dtype, booleans are or-ed; float16 and bfloat16 are summed in float32 and
rounded once. `preferred_element_type` asks for another dtype to sum in and to give.

Cost: 2 m k n FLOPs (multiply and add) for each matrix, (m k + k n + m n) itemsize bytes. Of all operators
here it has the most arithmetic for each byte: k / 6 FLOPs a byte for square float32 matrices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive

from .._jax import ad, batching, convert, eager, hlo, is_zero, mlir, same_axes, zero_like
from .matmul_kernel import matmul_on_hopper, matmul_pallas
from .operator import Operator, by_pallas, check_implementation, lower
from .sums import kind, preferred_dtype, sum_dtype

# The operator -----------------------------------------------------------------------------------------------

matmul_p = Primitive("matmul")


def matmul(a, b, *, preferred_element_type=None, implementation=None):
    """The matrix product a @ b, for all operands that `jnp.matmul` takes.

    a: (..., m, k) or (k,). b: (..., k, n) or (k,). The axes in front are batch axes and broadcast.
    preferred_element_type: the dtype of the sums and of the result; unless given, the one to which a and b
    promote. Without `jax_enable_x64` JAX warns that float64 is not available, and the result is float32.
    implementation: "xla", "pallas", or None for the best one on the platform.
    Returns (..., m, n), without m where a is a vector and without n where b is one. Raises ValueError for
    shapes that do not fit, TypeError for a preferred_element_type that cannot hold the product.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    check_implementation("matmul", implementation)
    shared, of_a, of_b = batch_axes(a, b)
    if preferred_element_type is None:
        dtype = jnp.result_type(a, b)
    else:
        dtype = preferred_dtype("matmul", jnp.result_type(a, b), preferred_element_type)
        a, b = a.astype(a.dtype), b.astype(b.dtype)  # not weakly typed any more: the dtype is asked for
    c = product(
        arranged(a, [*shared, *of_a, *range(min(a.ndim, 2))]),
        arranged(b, [*shared, 0, *of_b, *range(1, min(b.ndim, 2))]),
        batch=len(shared),
        inner=1,
        dtype=dtype,
        sharding=None,
        implementation=implementation,
    )
    order = [*shared, *of_a, *range(min(a.ndim, 2) - 1), *of_b, *range(1, min(b.ndim, 2))]
    return lax.transpose(c, [order.index(axis) for axis in sorted(order)])


def batch_axes(a, b):
    """Batch axes that both have, that only a has, and that only b has.

    They count backwards, -1 is the one before the matrix. One of size 1 counts as lacking where the other
    operand has more.
    """

    def sizes(x):
        return {axis - len(x.shape[:-2]): size for axis, size in enumerate(x.shape[:-2])}

    of_a, of_b = sizes(a), sizes(b)
    axes = sorted(of_a | of_b)
    shared = [i for i in axes if i in of_a and i in of_b and of_a[i] == of_b[i]]
    only_a = [i for i in axes if i not in shared and i in of_a and (of_a[i] != 1 or i not in of_b)]
    only_b = [i for i in axes if i not in shared and i in of_b and (of_b[i] != 1 or i not in of_a)]
    scalar = a.ndim == 0 or b.ndim == 0
    if scalar or set(only_a) & set(only_b) or a.shape[-1] != b.shape[-2:][0]:
        a, b = (f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in (a, b))
        raise ValueError(f"matmul expects a (..., m, k) and b (..., k, n), got a {a} and b {b}.")
    return shared, only_a, only_b


def arranged(x, order):
    """x with these axes only: negative ones are batch axes, 0 and 1 are those of the matrix."""
    first = max(x.ndim - 2, 0)
    kept = [first + axis for axis in order]
    dropped = [axis for axis in range(x.ndim) if axis not in kept]
    return lax.squeeze(lax.transpose(x, (*dropped, *kept)), range(len(dropped)))


# In which dtype the numbers are multiplied ------------------------------------------------------------------


def multiplied(a, b, dtype):
    """That of the sums; but narrow operands stay narrow where products of theirs are exact in the sums.

    The machine has units that multiply int8 or bfloat16 and sum in 32 bits.
    """
    total = sum_dtype(jnp.promote_types(a, b), dtype)
    exact = a == b and kind(a) == kind(total) and jnp.promote_types(a, total) == total and total.itemsize <= 4
    return a if exact else total


# What it means ----------------------------------------------------------------------------------------------


def matmul_reference(a, b, *, preferred_element_type=None):
    a, b = jnp.asarray(a), jnp.asarray(b)
    dtype = preferred_element_type or jnp.result_type(a, b)
    total = sum_dtype(jnp.result_type(a, b), dtype)
    return jnp.matmul(a.astype(total), b.astype(total), precision="highest").astype(dtype)


# The product of groups: what derivatives and batching are made of -------------------------------------------


def product(a, b, *, dtype, **params):
    """a (*batch, *rows, *inner) times b (*batch, *inner, *columns): `batch` and `inner` count axes."""
    narrow = multiplied(a.dtype, b.dtype, dtype)
    a, b = (x if x.dtype == narrow else lax.convert_element_type(x, narrow) for x in (a, b))
    return matmul_p.bind(*same_axes(a, b), dtype=jnp.dtype(dtype), **params)


def dimension_numbers(a, b, batch, inner):
    """((contracted axes of a, of b), (batch axes of a, of b)), as dot_general counts them."""
    first = range(batch)
    return (range(a.ndim - inner, a.ndim), range(batch, batch + inner)), (first, first)


# What shape it has: (*batch, *rows, *columns). lax's own rule says how it is sharded ------------------------


def matmul_shape(a, b, *, batch, inner, dtype, sharding, implementation):
    numbers = dimension_numbers(a, b, batch, inner)
    c = jax.make_jaxpr(lambda a, b: lax.dot_general(a, b, numbers, out_sharding=sharding))(a, b).out_avals[0]
    return c.update(dtype=dtype, weak_type=a.weak_type and b.weak_type and a.dtype == dtype)


# How it differentiates --------------------------------------------------------------------------------------
#   c  = a b
#   dc = da b + a db      linear in a, and linear in b: the operator itself acts on the tangents
# Transposed, with the cotangent ct of c (the sum runs over the axes that the gradient does not have):
#   ct_a[m, k] = sum_n ct[m, n] b[k, n]      ct_a = ct b^T
#   ct_b[k, n] = sum_m a[m, k] ct[m, n]      ct_b = a^T ct
# Where these axes are sharded, the sum is a sum over devices, and the gradient is sharded as its operand.


def matmul_jvp(primals, tangents, **params):
    (a, b), (da, db) = primals, tangents
    c = matmul_p.bind(a, b, **params)
    terms = [] if is_zero(da) else [matmul_p.bind(da, b, **params)]
    terms += [] if is_zero(db) else [matmul_p.bind(a, db, **params)]
    return c, sum(terms[1:], start=terms[0]) if terms else zero_like(c)


def matmul_transpose(ct, a, b, *, batch, inner, dtype, sharding, implementation):
    linear = a if ad.is_undefined_primal(a) else b
    if is_zero(ct):
        gradient = ad.Zero(linear.aval)
    else:
        params = dict(
            dtype=linear.aval.dtype, sharding=sharding_of(linear.aval), implementation=implementation
        )
        if linear is a:
            columns = b.ndim - batch - inner
            gradient = product(ct, swapped(b, batch, inner), batch=batch, inner=columns, **params)
        else:
            rows = a.ndim - batch - inner
            gradient = product(swapped(a, batch, rows), ct, batch=batch, inner=rows, **params)
    return (gradient, None) if linear is a else (None, gradient)


def swapped(x, batch, first):
    """x (*batch, *first, *last) as (*batch, *last, *first)."""
    axes = range(x.ndim)
    return lax.transpose(x, (*axes[:batch], *axes[batch + first :], *axes[batch : batch + first]))


def sharding_of(aval):
    return None if aval.sharding.mesh.empty else aval.sharding


# How it batches: two mapped operands have a batch axis more, one alone has rows or columns more -------------


def matmul_batch(operands, dims, *, batch, inner, sharding, **params):
    (a, b), (a_dim, b_dim) = operands, dims
    mapped = a if a_dim is not None else b
    out = batch if a_dim is not None else batch + (a.ndim - batch - inner)
    if sharding is not None:
        axis = jax.typeof(mapped).sharding.spec[a_dim if a_dim is not None else b_dim]
        spec = (*sharding.spec[:out], axis, *sharding.spec[out:])
        sharding = sharding.update(spec=jax.sharding.PartitionSpec(*spec))
    if a_dim is not None:
        a = jnp.moveaxis(a, a_dim, batch)
    if b_dim is not None:
        b = jnp.moveaxis(b, b_dim, batch if a_dim is not None else batch + inner)
    batch += a_dim is not None and b_dim is not None
    return matmul_p.bind(a, b, batch=batch, inner=inner, sharding=sharding, **params), out


# How it becomes StableHLO: dot_general, which sums in the dtype of its result, and a conversion -------------


def matmul_stablehlo(ctx, a, b, *, batch, inner, dtype, sharding):
    (a_aval, b_aval), (c_aval,) = ctx.avals_in, ctx.avals_out
    (inner_a, inner_b), (batch_a, batch_b) = dimension_numbers(a_aval, b_aval, batch, inner)
    numbers = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(batch_a),
        rhs_batching_dimensions=list(batch_b),
        lhs_contracting_dimensions=list(inner_a),
        rhs_contracting_dimensions=list(inner_b),
    )
    total = c_aval.update(dtype=sum_dtype(a_aval.dtype, dtype))
    c = hlo.dot_general(mlir.aval_to_ir_type(ctx.module_context, total), a, b, numbers)
    return [convert(ctx, c, total, dtype)[0]]


# The table of contents --------------------------------------------------------------------------------------

matmul_p.def_impl(eager(matmul_p))
matmul_p.def_abstract_eval(matmul_shape)
ad.primitive_jvps[matmul_p] = matmul_jvp
ad.primitive_transposes[matmul_p] = matmul_transpose
batching.primitive_batchers[matmul_p] = matmul_batch
lower(matmul_p, xla=matmul_stablehlo, pallas=by_pallas(matmul_pallas, cuda=matmul_on_hopper))

OPERATOR = Operator(
    "matmul",
    matmul,
    matmul_reference,
    matmul_p,
    {"a": {"rows": 16, "features": 24}, "b": {"features": 24, "columns": 8}},
    "c = a b",
)
