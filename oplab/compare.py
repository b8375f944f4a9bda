"""Two functions on the same arguments: what does the compiler make of each?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .diff import Difference
from .walk import walk


def compare(f: Callable, g: Callable, *args: Any, **kwargs: Any) -> Difference:
    """Walk `f(*args, **kwargs)` and `g(*args, **kwargs)`, and return their difference (see `walk.diff`).

    args, kwargs: as for `oplab.walk`, `target` and `options` included; both functions get the same.
    """
    return walk(f, *args, **kwargs).diff(walk(g, *args, **kwargs))
