"""Which C++ compiler builds the native library: $CXX, else conda's, else PATH's, else the ziglang package.

The sources use the vector extensions of GCC and Clang, so Microsoft's cl is none of them. Where a laptop has
no compiler, `pip install ziglang` brings Clang and its headers in one wheel, without an administrator.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .unavailable import Unavailable

TRIAL = '#include <cstddef>\nextern "C" std::size_t oplab_trial() { return 1; }\n'
WINDOWS = platform.system() == "Windows"
PIC = () if WINDOWS else ("-fPIC",)  # Windows moves all code, and clang refuses to be told so
# On Windows GCC keeps AVX variables where the stack is not aligned for them (its bug 54412), and they crash.
ON_PATH = ("clang++",) if WINDOWS else ("c++", "g++", "clang++")
PATIENCE_S = 600  # zig builds its C++ library first, which takes minutes on a slow laptop


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C++, what to call it, and the text by which two compilers are told apart."""

    command: tuple[str, ...]
    name: str  # "g++ 12.2.0"
    identity: str

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command or Path(self.command[0]).stem == "zig"


def run(command: list[str], folder: str | Path | None = None, text: str = "") -> subprocess.CompletedProcess:
    """Runs a compiler there, in English so that its errors can be found; never raises for what it answers."""
    english = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, cwd=folder, env=english, input=text, capture_output=True, text=True,
            errors="replace", timeout=PATIENCE_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"error: no answer within {PATIENCE_S} seconds")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", f"error: {error}")


def candidates() -> Iterator[Compiler]:
    """The compilers that answer when asked for their version, the preferred one first.

    Where $CXX names one, it is that one and no other.
    """
    for command in [wanted()] if wanted() else [*_conda(), *([name] for name in ON_PATH), *_zig()]:
        found = _ask(command)
        if found:
            yield found


def wanted() -> list[str]:
    """The command in $CXX, or nothing. Conda on Windows sets it to Microsoft's, which nobody asked for."""
    text = os.environ.get("CXX", "")
    try:
        command = [text] if shutil.which(text) else shlex.split(text, posix=not WINDOWS)
    except ValueError:  # a quotation mark that is not closed: no command is called that
        command = [text]
    return [] if command and Path(command[0]).stem.lower() == "cl" else command


def why_not(compiler: Compiler) -> str:
    """What keeps it from making a shared library of one line, as far as it says; "" where it can."""
    if compiler.is_zig:  # complete by construction, and its first run takes minutes
        return ""
    flags = ["-std=c++17", "-shared", *PIC, "-x", "c++", "-", "-o", "trial.so"]
    try:
        with tempfile.TemporaryDirectory(prefix="oplab-") as folder:
            done = run([*compiler.command, *flags], folder, TRIAL)
    except OSError as error:
        return f"no temporary folder to try it in: {error.strerror or error}"
    return first_error(done.stderr) if done.returncode else ""


def none_found(failed: dict[str, str]) -> Unavailable:
    """The error where no compiler is left, given those that failed and why."""
    if wanted():
        why = next(iter(failed.values()), "there is no such command, or it is no compiler")
        text = f"CXX names {os.environ['CXX']}, which does not work here ({why})"
        return Unavailable(f"{text}; set it to g++ or clang++, or unset it", "unset CXX")
    tried = "".join(f"; {name} does not work here ({why})" for name, why in failed.items())
    microsoft = ", and Microsoft's cannot compile these sources" if WINDOWS else ""
    return Unavailable(f"no C++ compiler was found{microsoft}{tried}", cure())


def cure() -> str:
    """The command that brings a compiler to this machine."""
    if os.environ.get("CONDA_PREFIX"):
        return "conda install -c conda-forge cxx-compiler"
    if platform.system() == "Darwin":
        return "xcode-select --install"
    return "python -m pip install ziglang"


def first_error(text: str) -> str:
    """The line in which a compiler or linker says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)]
    return (errors or lines or ["it says nothing"])[0]


def _conda() -> list[list[str]]:
    """The compilers of this conda environment, also where it runs without having been activated."""
    own = [sys.prefix] if Path(sys.prefix, "conda-meta").is_dir() else []
    roots = dict.fromkeys(filter(None, [*own, os.environ.get("CONDA_PREFIX")]))
    found: list[list[str]] = []
    for root in roots:
        for folder in (Path(root, "bin"), Path(root, "Library", "bin")):
            names = ("*-c++", "g++", "clang++", "clang++.exe")
            found += [[str(path)] for name in names for path in sorted(folder.glob(name))]
    return found


def _zig() -> list[list[str]]:
    return [[sys.executable, "-m", "ziglang", "c++"]] if importlib.util.find_spec("ziglang") else []


def _ask(command: list[str]) -> Compiler | None:
    """The compiler that a command is, or None where it is none."""
    program = shutil.which(command[0])
    if program is None:
        return None
    done = run([program, *command[1:], "--version"])
    if done.returncode != 0 or not done.stdout.strip():
        return None
    identity = "\n".join([os.path.realpath(program), *command[1:], done.stdout])
    found = Compiler((program, *command[1:]), _name(Path(program).stem, done.stdout), identity)
    return replace(found, name=f"zig's {found.name}") if found.is_zig else found


def _name(program: str, version: str) -> str:
    """ "g++ 12.2.0" from what --version prints: a command named c++ may be either, and a script any."""
    makers = {"clang": "clang++", "Free Software Foundation": "g++"}
    name = next((makers[word] for word in makers if word in version), program)
    first = version.strip().splitlines()[0]
    number = re.search(r"version (\d[\w.]*)", first) or re.search(r"(\d+\.\d[\w.]*)\s*$", first)
    return f"{name} {number[1]}" if number else name

