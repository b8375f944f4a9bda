"""The emitters' MLIR: what XLA's CPU emitters write for a fusion before LLVM takes over.

XLA prints it while several threads compile, from one shared printer, and now and then that ends the process
("pure virtual method called"). A learner's kernel must not die of a dump, so a child process compiles the
same StableHLO and may die in our place; what it had written by then is kept, and it is tried again for the
rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .. import _jax

_SUFFIX = "_kernel_module-pre-optimization.mlir"
_TRIES, _SECONDS = 4, 120


def read_mlir(lowered: Any, options: dict[str, Any]) -> dict[str, str]:
    """Kernel -> its MLIR as the emitter wrote it. Empty where this XLA has no such emitters, or where no
    child can be started.
    """
    found: dict[str, str] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="oplab-", ignore_cleanup_errors=True) as folder:
            Path(folder, "module.mlirbc").write_bytes(_jax.stablehlo_bytes(lowered))
            dumps = Path(folder, "dumps")
            dumps.mkdir()
            Path(folder, "options.json").write_text(
                json.dumps({**options, "xla_dump_to": str(dumps), "xla_dump_emitter_re": "mlir"})
            )
            for _ in range(_TRIES):
                finished = _child(folder)
                for file in dumps.glob("*" + _SUFFIX):
                    found[file.name.split(".", 2)[2].removesuffix(_SUFFIX)] = file.read_text(
                        encoding="utf-8", errors="replace"
                    )
                if finished:
                    break
    except OSError:
        pass
    return found


def _child(folder: str) -> bool:
    """Compile in a child process. True unless a signal killed it (then another try may get further)."""
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    try:
        program = f"from {__name__} import compile_here; compile_here({folder!r})"
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode >= 0


def compile_here(folder: str) -> None:
    """What the child does: compile the module that lies in `folder`, with the options beside it."""
    options = json.loads(Path(folder, "options.json").read_text())
    _jax.compile_bytes(Path(folder, "module.mlirbc").read_bytes(), options)
