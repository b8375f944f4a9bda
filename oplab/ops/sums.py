"""In which dtype an operator computes: wider than its operands, where they have few bits.

float16 and bfloat16 are computed in float32 and rounded once, at the end: a float16 sum of ones is stuck at
2048.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)  # each holds the one before


def kind(dtype):
    return next(i for i, of_kind in enumerate(KINDS) if jnp.issubdtype(dtype, of_kind))


def wide(dtype):
    """At least float32 for floating-point numbers; all others are summed as they are."""
    dtype = jnp.dtype(dtype)
    return jnp.promote_types(dtype, jnp.float32) if kind(dtype) == kind(jnp.float32) else dtype


def sum_dtype(multiplied, dtype):
    """What products are added up in: for integers that of the result, else what holds both, widened."""
    return wide(jnp.promote_types(multiplied, dtype) if kind(dtype) > kind(jnp.int32) else dtype)


def preferred_dtype(operator, natural, preferred):
    """The dtype asked for, as this JAX allows it: without `jax_enable_x64`, JAX warns and gives 32 bits.

    natural: the dtype to which the operands promote. TypeError for a dtype that cannot hold their products.
    """
    dtype = jax.eval_shape(lambda: jnp.empty((), preferred)).dtype
    shorter = kind(dtype) == kind(jnp.int32) == kind(natural) and dtype.itemsize < natural.itemsize
    if kind(dtype) < kind(natural) or shorter:
        raise TypeError(
            f"{operator} expects a preferred_element_type that can hold products of {natural}, got {dtype}: "
            f"convert the result instead, with .astype(jnp.{dtype})."
        )
    return dtype
