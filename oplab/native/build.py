"""How the native library is compiled: one object for each instruction set, then XLA's entry, then one link.

The kernels are one source, compiled once for each instruction set; which of them runs is asked of the
processor at run time, so that a library built on one machine runs on the next and needs no `-march=native`.
"""

from __future__ import annotations

import hashlib
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

from .compiler import PIC, Compiler, first_error, run

SOURCES = Path(__file__).parent
HEADER = Path("xla", "ffi", "api", "c_api.h")  # the plain C interface: one library serves every jaxlib


@dataclass(frozen=True)
class Unit:
    """One object file. An optional one may fail, where a compiler is too old for its flags; the entry, which
    is compiled last, then gets -DOPLAB_NO_<NAME>.
    """

    source: str
    name: str
    flags: tuple[str, ...] = ()
    optional: bool = False


AVX512 = "-mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma -mavx2 -mprefer-vector-width=512".split()
UNITS = {
    "x86_64": (
        Unit("kernels.cc", "avx512", ("-DOPLAB_ISA_AVX512", *AVX512)),
        Unit("kernels.cc", "avx2", ("-DOPLAB_ISA_AVX2", "-mavx2", "-mfma")),
        Unit("kernels.cc", "plain", ("-DOPLAB_ISA_PLAIN",)),
        Unit("amx.cc", "amx", (*AVX512, "-mamx-tile", "-mamx-bf16"), optional=True),
    ),
    "arm64": (Unit("kernels.cc", "neon", ("-DOPLAB_ISA_PLAIN",)),),  # every arm64 has NEON
}
ENTRY = Unit("entry.cc", "entry")
FLAGS = (
    "-O3", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi",
    "-fvisibility=hidden",
)  # fmt: skip


def architecture() -> str:
    """The machine's kind of processor, by one name on every system: "x86_64", "arm64", or another's own."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "aarch64": "arm64"}.get(machine, machine)


@dataclass(frozen=True)
class Recipe:
    """What to compile: the folder of the sources, their units, the entry, the flags, the headers' folder."""

    include: Path
    sources: Path = SOURCES
    units: tuple[Unit, ...] = field(default_factory=lambda: UNITS[architecture()])
    entry: Unit = ENTRY
    flags: tuple[str, ...] = FLAGS


class Failed(Exception):
    """A compiler's refusal: the line that says why, and everything it wrote."""

    def __init__(self, what: str, log: str):
        super().__init__(f"{what}: {first_error(log)}")
        self.log = log


def key(recipe: Recipe, compiler: Compiler) -> str:
    """A name for the library that this recipe and compiler make: it changes with whatever changes that."""
    parts = [repr((recipe.units, recipe.entry, _flags(recipe, compiler))), architecture(), platform.system()]
    parts.append(compiler.identity)
    digest = hashlib.sha256("\0".join(parts).encode())
    texts = [path for path in sorted(recipe.sources.iterdir()) if path.suffix in (".cc", ".h")]
    for path in [*texts, recipe.include / HEADER]:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:20]


def suffix() -> str:
    return {"Windows": ".dll", "Darwin": ".dylib"}.get(platform.system(), ".so")


def build(recipe: Recipe, compiler: Compiler, folder: Path) -> Path:
    """The shared library, built in that folder. Raises Failed."""
    with ThreadPoolExecutor(max_workers=2) as pool:  # more compilers at once would fill a hub's gigabyte
        done = list(pool.map(lambda unit: _compile(recipe, compiler, unit, folder), recipe.units))
    made, missing = [], []
    for unit, result in zip(recipe.units, done):
        if result.returncode == 0:
            made.append(f"{unit.name}.o")
        elif unit.optional:
            missing.append(f"-DOPLAB_NO_{unit.name.upper()}")
        else:
            raise Failed(f"{compiler.name} cannot compile {unit.source} for {unit.name}", result.stderr)
    result = _compile(recipe, compiler, recipe.entry, folder, missing)
    if result.returncode:
        raise Failed(f"{compiler.name} cannot compile {recipe.entry.source}", result.stderr)
    objects = [*made, f"{recipe.entry.name}.o"]
    threads = [] if platform.system() == "Windows" else ["-lpthread"]
    flags = [*_target(compiler), "-shared", "-o", f"library{suffix()}"]
    result = run([*compiler.command, *flags, *objects, *threads], folder)
    if result.returncode:
        raise Failed(f"{compiler.name} cannot link the library", result.stderr)
    return folder / f"library{suffix()}"


def _compile(recipe: Recipe, compiler: Compiler, unit: Unit, folder: Path, more=()) -> CompletedProcess:
    flags = [*_flags(recipe, compiler), *unit.flags, *more]
    places = ["-I", str(recipe.sources), "-I", str(recipe.include)]
    source = str(recipe.sources / unit.source)
    return run([*compiler.command, *flags, *places, "-c", source, "-o", f"{unit.name}.o"], folder)


def _flags(recipe: Recipe, compiler: Compiler) -> list[str]:
    return [*recipe.flags, *PIC, *_target(compiler)]


def _target(compiler: Compiler) -> list[str]:
    """Zig alone compiles for this very processor unless told otherwise: its `plain` might need AVX-512."""
    return ["-mcpu=baseline"] if compiler.is_zig else []
