"""Where the window of a convolution falls: stride, dilation and padding, as written and as numbers."""

from __future__ import annotations

from operator import index

from jax import lax
from jax.errors import InconclusiveDimensionOperation


def dilated(n, d):
    """The extent of n pixels d apart."""
    return (n - 1) * d + 1 if n else 0


def positions(n, k, stride, padding, dilation, input_dilation=1):
    """On how many positions along one axis does a window of k taps fit into n pixels?"""
    free = dilated(n, input_dilation) + sum(padding) - dilated(k, dilation)
    try:
        return free // stride + 1 if free >= 0 else 0
    except InconclusiveDimensionOperation:
        raise ValueError(
            f"conv2d expects to know whether the window fits into the padded image, got a window of {k} for "
            f"{n} pixels: give jax.export.symbolic_shape the constraint '{free} >= 0'."
        ) from None


def check_known(padding, image, window):
    """With symbolic sizes (jax.export) a stride may make the padding depend on them; it must be a number."""
    for end in (end for ends in padding for end in ends):
        try:
            index(end)
        except TypeError:
            raise ValueError(
                f"conv2d, or its gradient, expects a padding in numbers, got {end} for x {list(image)} and "
                f"w {list(window)}: write symbolic sizes so that the stride divides them, such as '2*h'."
            ) from None


# What a user may write --------------------------------------------------------------------------------------


def whole(name, value, least=1):
    try:
        if index(value) >= least:
            return index(value)
    except TypeError:
        pass
    raise ValueError(f"conv2d expects {name} to be an integer of at least {least}, got {name}={value!r}.")


def pair(name, value):
    values = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(values) != 2:
        raise ValueError(
            f"conv2d expects {name} as an integer or as two, one for the height and one for the width, "
            f"got {name}={value!r}."
        )
    return tuple(whole(name, v) for v in values)


def pads(padding, image, window, stride, dilation):
    """Padding in any of its forms -> ((top, bottom), (left, right))."""
    try:
        if isinstance(padding, str):
            extent = [(k - 1) * d + 1 for k, d in zip(window, dilation)]
            pairs = lax.padtype_to_pads(
                image, extent, stride, {"SAME": "SAME", "VALID": "VALID"}[padding.upper()]
            )
            return tuple((lo, hi) for lo, hi in pairs)
        if not isinstance(padding, (tuple, list)):
            return ((index(padding),) * 2,) * 2
        (top, bottom), (left, right) = padding
        return (index(top), index(bottom)), (index(left), index(right))
    except (TypeError, ValueError, KeyError):
        raise ValueError(
            f"conv2d expects padding as 'SAME', 'VALID', an integer or ((top, bottom), (left, right)), "
            f"got padding={padding!r}."
        ) from None
