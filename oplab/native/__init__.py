"""Attention in C++ for the CPU: compiled on first use, loaded once, called by XLA as one custom call.

    sources --compiler.py, build.py--> a shared library --cache.py--> kept --library.py--> known to XLA

`load()` walks that road and remembers where it ended, the failure too. Nothing happens at import.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from . import cache
from .build import HEADER, UNITS, Recipe, architecture
from .cache import UNWRITABLE_CURE
from .library import TARGETS, Library, open_library, register
from .unavailable import SwitchedOff, Unavailable

__all__ = ["TARGETS", "UNWRITABLE_CURE", "Library", "SwitchedOff", "Unavailable", "load", "status"]

INSTRUCTION_SETS = ("amx", "avx512", "avx2", "plain")  # what OPLAB_ISA may name, the best one that is allowed

_lock = threading.Lock()
_ended: Library | Unavailable | None = None  # where load() ended in this process


def load() -> Library:
    """The native library, built where it is not yet in the cache, its handlers known to XLA.

    Safe from several threads. The first call may take seconds, the next ones nothing, also where there is
    no library: then each raises Unavailable, with one sentence why.
    """
    global _ended
    _refuse_what_was_asked()
    with _lock:
        if _ended is None:
            try:
                _ended = _load(_recipe())
            except Unavailable as reason:
                _ended = reason
    _refuse_if_it_failed()
    return _ended


def status() -> dict:
    """What load() would find, without building: the doctor's question. Never raises Unavailable.

    Keys: state ("built", "not built" or "unavailable"), compiler (its name), instruction_set (where built),
    path (the library's place), reason and cure (where unavailable).
    """
    found = dict.fromkeys(("compiler", "instruction_set", "path"), None) | {"reason": "", "cure": ""}
    try:
        _refuse_what_was_asked()
        _refuse_if_it_failed()
        compiler, path, built = cache.choose(_recipe())
        found |= {"compiler": compiler.name, "path": path, "state": "built" if built else "not built"}
        if built:
            found["instruction_set"] = _opened(path, compiler.name).instruction_set
    except Unavailable as why:
        found |= {"state": "unavailable", "reason": str(why), "cure": why.cure}
    return found


def _refuse_what_was_asked() -> None:
    if os.environ.get("OPLAB_NATIVE", "").lower() in ("0", "false", "off", "no"):
        raise SwitchedOff(f"switched off by OPLAB_NATIVE={os.environ['OPLAB_NATIVE']}", "unset OPLAB_NATIVE")
    asked = os.environ.get("OPLAB_ISA", "")
    if asked not in ("", *INSTRUCTION_SETS):
        known = ", ".join(INSTRUCTION_SETS)
        raise Unavailable(f"OPLAB_ISA names {asked!r}, which is none of {known}", "unset OPLAB_ISA")


def _refuse_if_it_failed() -> None:
    if isinstance(_ended, Unavailable):
        raise Unavailable(str(_ended), _ended.cure)  # a new one each time: an error collects its callers


def _recipe() -> Recipe:
    """What to compile on this machine. Raises Unavailable where there is no code for its processor."""
    import jax

    if architecture() not in UNITS:
        known = " and ".join(UNITS)
        raise Unavailable(f"native code is written for {known} processors, not for {architecture()}")
    include = Path(jax.ffi.include_dir())
    if not (include / HEADER).is_file():
        why = f"this jaxlib came without its header {HEADER.as_posix()}"
        raise Unavailable(f"{why}; install it again", "python -m pip install --force-reinstall jaxlib")
    return Recipe(include)


def _load(recipe: Recipe, targets: dict[str, str] = TARGETS) -> Library:
    compiler, path = cache.obtain(recipe)
    try:
        library = open_library(path, compiler.name)
    except OSError:  # built for another system that shares this folder, perhaps: once more, here
        cache.discard(path)
        compiler, path = cache.obtain(recipe)
        library = _opened(path, compiler.name)
    try:
        register(library, targets)
    except Exception as error:  # XLA raises errors of its own
        raise Unavailable(f"XLA does not take the native library: {_first_line(error)}") from error
    return library


def _opened(path: Path, compiler: str) -> Library:
    try:
        return open_library(path, compiler)
    except OSError as error:
        why = f"the library that {compiler} built cannot be loaded: {_first_line(error)}"
        raise Unavailable(why) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
