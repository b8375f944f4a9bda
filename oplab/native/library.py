"""The shared library in this process: loaded with ctypes, its handlers made known to XLA."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

# The name in the compiled program -> the function that the library exports.
TARGETS = {
    "oplab_attention": "OplabAttention",
    "oplab_attention_backward": "OplabAttentionBackward",
}


@dataclass(frozen=True)
class Library:
    """The loaded library: where it is, its choice of instruction set, whether it multiplies bfloat16 as it is
    (AMX), who built it, its ctypes handle.
    """

    path: Path
    instruction_set: str
    takes_bfloat16: bool
    compiler: str
    cdll: ctypes.CDLL


def open_library(path: Path, compiler: str) -> Library:
    """Loads it, and asks which instruction set it takes on this processor. Raises OSError."""
    cdll = ctypes.CDLL(str(path))
    try:
        name, bfloat16 = cdll.oplab_instruction_set, cdll.oplab_takes_bfloat16
    except AttributeError as error:
        raise OSError(f"{path.name} does not say its instruction set") from error
    name.restype, name.argtypes = ctypes.c_char_p, ()
    bfloat16.restype, bfloat16.argtypes = ctypes.c_int, ()
    return Library(path, name().decode(), bool(bfloat16()), compiler, cdll)


def register(library: Library, targets: dict[str, str] = TARGETS) -> None:
    """Makes each exported handler known to XLA under its name. Raises OSError where one is missing."""
    import jax

    for name, symbol in targets.items():
        try:
            handler = getattr(library.cdll, symbol)
        except AttributeError as error:
            raise OSError(f"{library.path.name} has no {symbol}") from error
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
