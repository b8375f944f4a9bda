"""The script: the lines of Python that a function's equations came from.

JAX remembers the Python stack of every equation. Of that stack, two frames matter to a reader: the innermost
line in a file of their own (the *script* line), and the innermost line at all, which may lie inside a library
such as Flax. Sources are looked up as Python's own tracebacks do it, so a notebook cell has one, and a
function typed into `exec` has none.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import _jax
from ..provenance import Equation
from .stage import Stage, frame

COLUMNS = ["file", "line", "text", "equations", "text_line"]
NO_SOURCE = "(source not available)"
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_ADDRESS = re.compile(r"(dense<[^>]*>)|\b0x[0-9a-fA-F]{6,16}\b")  # or MLIR's constants, such as infinity


@dataclass(frozen=True)
class Location:
    """Where an equation was asked for. `path` finds the source, `file` is what people are shown."""

    path: str
    line: int
    column: int
    function: str

    @property
    def file(self) -> str:
        return shown(self.path)

    @property
    def text(self) -> str:
        return linecache.getline(self.path, self.line).rstrip("\n") or NO_SOURCE


@functools.lru_cache(maxsize=4096)
def is_library(path: str) -> bool:
    """Is this file an installed package's, or oplab's own, rather than the reader's?"""
    return (
        path.startswith(_HERE)
        or f"{os.sep}site-packages{os.sep}" in path
        or f"{os.sep}dist-packages{os.sep}" in path
    )


def shown(path: str) -> str:
    """A file's name as people are shown it: short, and without the folders of this machine."""
    cell = _cell(path)
    return cell if cell else _shown(path, os.getcwd())


@functools.lru_cache(maxsize=4096)
def _shown(path: str, here: str) -> str:
    if path.startswith("<"):
        return path
    for folder in (here, *_package_folders()):
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :].replace(os.sep, "/")
    packages = re.search(r"[/\\](?:site|dist)-packages[/\\](.+)", path)
    return packages[1].replace(os.sep, "/") if packages else os.path.basename(path)


@functools.cache
def _package_folders() -> tuple[str, ...]:
    folders = {
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        sysconfig.get_path("stdlib"),
        os.path.dirname(os.path.dirname(_jax.jax.__file__)),
        *site.getsitepackages(),
    }
    return tuple(sorted(filter(None, folders), key=len, reverse=True))


def _cell(path: str) -> str | None:
    """`In[3]` for the file that Jupyter pretends a cell to be (its real name holds a process number)."""
    if "IPython" not in sys.modules or not ("ipykernel" in path or path.startswith("<ipython")):
        return None
    shell = sys.modules["IPython"].get_ipython()
    try:
        return shell.compile.format_code_name(path)[1]
    except (AttributeError, TypeError, LookupError):
        return "<cell>"


def hide_addresses(text: str) -> str:
    """Memory addresses differ on every run and tell nothing. Constants in hexadecimal stay what they are."""
    return _ADDRESS.sub(lambda found: found[1] or "0x...", text) if "0x" in text else text


def locate(
    equations: Iterable[Equation], default: Location | None
) -> dict[str, tuple[Location | None, Location | None]]:
    """Equation id -> its script line and the innermost line, both inherited from around it if need be."""
    found: dict[str, tuple[Location | None, Location | None]] = {}
    sample = default.path if default and default.path.startswith(_HERE) else None  # ours, but to be read
    for equation in equations:
        above = found[equation.parent.id] if equation.parent else (default, default)
        own = [Location(f.file, f.line, f.column, f.function) for f in _jax.frames(equation.eqn)]
        script = next((f for f in own if not is_library(f.path) or f.path == sample), None)
        found[equation.id] = (script or above[0] or (own[0] if own else None), own[0] if own else above[1])
    return found


def definition(function: Any) -> Location | None:
    """Where a function begins: what an equation without any frame of its own is shown at."""
    for _ in range(20):  # jit of a partial of a method, in any order
        if isinstance(function, functools.partial):
            function = function.func
        elif callable(wrapped := getattr(function, "__wrapped__", None)):
            function = wrapped
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return Location(code.co_filename, code.co_firstlineno, 0, code.co_name) if code else None


def blamed(error: BaseException | None) -> Location | None:
    """The reader's own line that an error passed through last, on its way up from a library."""
    found = None
    for at, line in traceback.walk_tb(error.__traceback__ if error else None):
        path = at.f_code.co_filename
        if not is_library(path) and not path.startswith(sysconfig.get_path("stdlib")):
            found = Location(path, line, 0, at.f_code.co_name)
    return found


def stage(locations: dict[str, tuple[Location | None, Location | None]]) -> Stage:
    """The script stage: every line reached, file by file, with lines around so that it reads as code."""
    reached: dict[tuple[str, int], list[str]] = {}
    for equation, (script, _) in locations.items():
        if script:
            reached.setdefault((script.path, script.line), []).append(equation)
    text: list[str] = []
    rows = []
    files = list(dict.fromkeys(path for path, _ in reached))
    for path in files:
        lines = sorted(line for where, line in reached if where == path)
        text.append(f"# {shown(path)}")
        for number in _with_context(path, lines):
            if number is None:
                text.append("    ...")
                continue
            source = linecache.getline(path, number).rstrip("\n")
            text.append(
                f"{number:4d}  {source}" if source or number not in lines else f"{number:4d}  {NO_SOURCE}"
            )
            if number in lines:
                rows.append(
                    (
                        shown(path),
                        number,
                        source.strip() or NO_SOURCE,
                        tuple(reached[path, number]),
                        len(text),
                    )
                )
    return Stage("script", "\n".join(text), frame(rows, COLUMNS))


def _with_context(path: str, lines: list[int]) -> list[int | None]:
    """The lines to print: from the first reached to the last, with gaps of more than eight lines cut out
    (None).
    """
    last = len(linecache.getlines(path))
    wanted: list[int | None] = []
    for line in lines:
        start = max(1, line - 1) if not wanted or line - wanted[-1] > 8 else wanted[-1] + 1
        if wanted and start > wanted[-1] + 1:
            wanted.append(None)
        wanted.extend(range(start, line + 1))
        if not last:  # no source at all: the numbers are all there is
            wanted = [w for w in wanted if w is None or w in lines]
    return wanted
