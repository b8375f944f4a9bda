"""The built library, kept in the user's cache folder (or in $OPLAB_CACHE) under a name that changes with it.

A library that is there is taken without a lock and without compiling, so a folder that only an administrator
can write to serves a whole class. Where there is none, one process builds, and the others wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from . import compiler as compilers
from .build import Failed, Recipe, build, key, suffix
from .compiler import Compiler
from .unavailable import Unavailable

KEPT = 4  # libraries: two Pythons and an upgrade of each
PATIENCE_S = 900  # for another process that builds
HOUR_S = 3600
UNWRITABLE_CURE = "export OPLAB_CACHE=$(mktemp -d)"


def folder() -> Path:
    """Where the libraries are kept. Not made before something is built."""
    named = os.environ.get("OPLAB_CACHE")
    return Path(named).expanduser().absolute() if named else user_cache_path("oplab", appauthor=False)


def choose(recipe: Recipe) -> tuple[Compiler, Path, bool]:
    """(compiler, path, built): the first compiler that works, the library's place, whether it is there.

    A library that is there proves its compiler, which need not be tried again. Raises Unavailable.
    """
    failed: dict[str, str] = {}
    for compiler in compilers.candidates():
        path = folder() / f"attention-{key(recipe, compiler)}{suffix()}"
        if intact(path):
            return compiler, path, True
        why = compilers.why_not(compiler)
        if not why:
            return compiler, path, False
        failed[compiler.name] = why
    raise compilers.none_found(failed)


def obtain(recipe: Recipe) -> tuple[Compiler, Path]:
    """The compiler and the library, which is built first where it is missing. Raises Unavailable."""
    compiler, path, built = choose(recipe)
    try:
        if not built:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path.parent):
                if not intact(path):  # another process may have built it meanwhile
                    _build_into(path, recipe, compiler)
                    _tidy(path)
    except OSError as error:
        why = f"the cache folder {path.parent} cannot be written ({error.strerror or error})"
        raise Unavailable(f"{why}; set OPLAB_CACHE to one that can", UNWRITABLE_CURE) from error
    with suppress(OSError):
        os.utime(path)  # the newest few are kept: let that mean those last used
    return compiler, path


def intact(path: Path) -> bool:
    """Is the library there, as long and as it was written? Loading half of one may end the process."""
    try:
        return json.loads(_record(path).read_text())["sha256"] == _digest(path)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def discard(path: Path) -> None:
    """Takes the library out of the cache, so that it is built again."""
    for part in (_record(path), path):
        with suppress(OSError):
            part.unlink()


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """No other process builds here meanwhile. A process that dies gives the lock back."""
    lock = FileLock(place / "build.lock")
    try:
        lock.acquire(timeout=PATIENCE_S)
    except Timeout:
        minutes = PATIENCE_S // 60
        why = f"another process has been building the library for {minutes} minutes: end it, and try again"
        raise Unavailable(why) from None
    except NotImplementedError:  # some network drives know no locks: two may build, and either's will do
        pass
    try:
        yield
    finally:
        lock.release()


def _build_into(path: Path, recipe: Recipe, compiler: Compiler) -> None:
    """Builds beside the library's place and moves it there in one step, so that nobody sees half of one."""
    wait = "up to some minutes" if compiler.is_zig else "some seconds"  # zig builds a C++ library first
    _say(f"oplab: building its attention kernel with {compiler.name} (once, {wait}) ...")
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as work:
            made = build(recipe, compiler, Path(work))
            record = Path(work, "record.json")
            record.write_text(json.dumps({"sha256": _digest(made), "compiler": compiler.name}))
            os.replace(made, path)
            os.replace(record, _record(path))
    except Failed as failure:
        _say(" failed\n")
        log = path.with_name("build.log")
        log.write_text(failure.log)
        raise Unavailable(f"{failure} (all that it wrote is in {log})") from None
    except BaseException:
        _say(" stopped\n")
        raise
    _say(f" done in {time.monotonic() - start:.0f} s\n")


def _say(text: str) -> None:
    """Tells whoever waits, but not where what is printed is compared (what `display.stable` asks)."""
    if os.environ.get("OPLAB_STABLE", "") in ("", "0"):
        print(text, end="", file=sys.stderr, flush=True)


def _tidy(newest: Path) -> None:
    """Deletes all but the newest few libraries, and what a process that died left behind."""
    libraries = [path for path in newest.parent.glob(f"attention-*{suffix()}") if path != newest]
    for path in sorted(libraries, key=_modified, reverse=True)[KEPT - 1 :]:
        discard(path)  # Windows refuses where one is in use: next time, then
    for left in newest.parent.glob("build-*"):
        if time.time() - _modified(left) > HOUR_S:
            shutil.rmtree(left, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0
