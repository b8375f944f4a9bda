"""How batch, groups and features change places in a convolution's gradients and under vmap.

On a mesh with explicit axes an array's axis may be cut: each device holds a part of it. JAX refuses to make
one axis of two, or two of one, where that would move numbers between devices. Here the cut axis is gathered
first, so that every device holds all of it.
"""

from __future__ import annotations

import math

import jax
from jax.sharding import PartitionSpec


def split(x, axis, n, m):
    """An axis of n m -> two, (n, m)."""
    if n != 1 and cuts(x, axis) != 1 and n % cuts(x, axis):
        x = gathered(x, axis)
    return x.reshape(*x.shape[:axis], n, m, *x.shape[axis + 1 :])


def merge(x, axis):
    """This axis and the next, (n, m) -> one of n m."""
    if x.shape[axis] != 1:
        x = gathered(x, axis + 1)
    return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def swap_features(w, groups):
    """(height, width, in / groups, out) -> (height, width, out / groups, in), each group for itself."""
    o = w.shape[3] // groups
    return merge(split(w, 3, groups, o).transpose(0, 1, 4, 3, 2), 3)


def batch_as_features(x, groups):
    """(batch, height, width, in) -> (in / groups, height, width, groups batch)."""
    c = x.shape[3] // groups
    return merge(split(x, 3, groups, c).transpose(4, 1, 2, 3, 0), 3)


# On a mesh with explicit axes (elsewhere no axis is cut, and these do nothing) ------------------------------


def names(cut):
    """One entry of a PartitionSpec, None or a name or several, as a tuple of mesh axes."""
    return () if cut is None else cut if isinstance(cut, tuple) else (cut,)


def cuts(x, axis):
    """Into how many parts is this axis cut?"""
    sharding = jax.typeof(x).sharding
    return math.prod(sharding.mesh.shape[name] for name in names(sharding.spec[axis]))


def gathered(x, axis):
    """x with this axis whole on every device."""
    sharding = jax.typeof(x).sharding
    if cuts(x, axis) == 1:
        return x
    spec = PartitionSpec(*sharding.spec[:axis], None, *sharding.spec[axis + 1 :])
    return jax.sharding.reshard(x, sharding.update(spec=spec))


def cut_as(aval, x):
    """x cut over the devices as aval is: an operand's gradient lies where the operand does."""
    right = jax.typeof(x).sharding == aval.sharding
    return x if right else jax.sharding.reshard(x, aval.sharding)
