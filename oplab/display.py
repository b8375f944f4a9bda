"""How things are printed: the stable mode, in which nothing that varies shows, errors, the progress bar.

`OPLAB_STABLE=1` is for outputs that are compared, such as a notebook's: times become dashes, versions are
masked, no bar is drawn. The numbers behind a dash are all there; only the picture of the table changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import pandas as pd
from tqdm import tqdm

DASH = "–"
# JAX's pointers: the reader's own line is shown beside a sentence, and addresses change with the version.
_POINTERS = re.compile(r" *The error occurred while tracing the function .*? for \w+\.| *See https://\S+$"
                       r"| at (?:/|[A-Za-z]:\\)[^\n]*?:\d+(?= |$)")


def stable() -> bool:
    """Is this the display mode in which nothing that varies is printed?"""
    return os.environ.get("OPLAB_STABLE", "") not in ("", "0")


def reason(error: BaseException) -> str:
    """The first paragraph of an error's text, in one line, without places in files or addresses."""
    return _POINTERS.sub("", " ".join(str(error).split("\n\n")[0].split()))


def progress(things: Iterable[Any], **options: Any) -> tqdm:
    """A progress bar in plain text, for work that takes longer than half a second; none where outputs are
    compared or logged.
    """
    quiet = stable() or bool(os.environ.get("CI"))
    return tqdm(things, disable=quiet, delay=0.5, leave=False, **options)


class Measured(pd.DataFrame):
    """A table with measured columns, which it shows as dashes in the stable mode."""

    _columns = ("start_us", "duration_us", "median_us", "spread_us", "share")

    @property
    def _constructor(self) -> type:
        return Measured

    def _shown(self) -> pd.DataFrame:
        table = pd.DataFrame(self)
        return table.assign(**{c: DASH for c in self._columns if c in table}) if stable() else table

    def __repr__(self) -> str:
        return repr(self._shown())

    def _repr_html_(self) -> str:
        return self._shown()._repr_html_()
