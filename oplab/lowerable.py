"""Can this be lowered for that platform? Asked by doing it, and answered in one sentence.

Lowering is where JAX looks up, for every operator, the rule that writes it for a platform. None of the
hardware has to be present. Nothing is compiled here: `compile` on what was lowered for another platform would
quietly compile it for the local CPU.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _jax
from .ops.operator import PLATFORMS
from .stages.script import hide_addresses

INTERPRET = "interpret"  # not hardware: a Pallas kernel, run step by step on the CPU


class Answer(NamedTuple):
    """What lowering said."""

    supported: bool | None  # None: it could not be asked
    reason: str = ""  # why not, in one sentence without its full stop
    note: str = ""


def ask(lower: Callable[[], Any], who: str, platform: str) -> Answer:
    """Does `lower()` give a `jax.stages.Lowered`? `who`: what is lowered, for the sentence if it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same program is lowered many times, and was warned of once
            return Answer(True, note=_note(lower().as_text()))
    except Exception as error:
        return Answer(False, why(error, who, platform))


def platforms(
    who: str, given: str | Iterable[str] | None, default: Iterable[str] = PLATFORMS
) -> list[str]:
    """The platforms that somebody asked `who` for; ValueError for what is none.

    Any other name is taken as the name of a platform: JAX lowers for names that it does not know, and
    `no_backend` says what that is worth.
    """
    names = list(default if given is None else [given] if isinstance(given, str) else given)
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if wrong or not names:
        known = f"{', '.join(PLATFORMS)} or {INTERPRET}"
        raise ValueError(f"{who} expects names of platforms, such as {known}, got {given!r}.")
    if "gpu" in names:
        raise ValueError(f"{who} expects 'cuda' or 'rocm', got 'gpu': each is lowered by rules of its own.")
    return list(dict.fromkeys(names))


def no_backend(platform: str) -> str:
    """Why nothing runs on a platform that this JAX has no backend for; empty if it has one."""
    if platform == INTERPRET or _jax.has_backend(platform):
        return ""
    meant = difflib.get_close_matches(platform.lower(), [*PLATFORMS, INTERPRET], n=1, cutoff=0.75)
    question = f" (is {meant[0]!r} meant?)" if meant else ""
    return (f"JAX has no backend named {platform!r} in this installation{question}: what is lowered "
            "could not be compiled there")


# What JAX says, in a sentence -----------------------------------------------------------------------------

_NO_RULE = re.compile(r"MLIR translation rule for primitive '([^']+)' not found for platform (\w+)")
_NO_KERNEL_RULE = re.compile(r"Unimplemented primitive in (Pallas [\w ]+?) lowering(?: for \w+)?: ?([\w-]+)")
# What oplab's own operators add after the reason, as `nearest` says it too.
_ADVICE = re.compile(r"(?: \(it has one on [^)]*\))?: (?:use implementation=|give ')[^\n]*$")
_LONGEST = 200  # characters of somebody else's sentence


def why(error: Exception, who: str, platform: str) -> str:
    """The reason why lowering failed, short, without its full stop."""
    text = str(error).strip()
    if match := _NO_RULE.search(text):
        missing = f"{match[1]} has no rule on {match[2]}"
        return missing if match[1] == who else f"{who} needs {match[1]}, and {missing}"
    if match := _NO_KERNEL_RULE.search(text):
        return f"{match[2]} has no rule in {match[1]}"
    if "Only interpret mode is supported on CPU" in text:
        return f"{who} runs on the cpu only in the interpreter (interpret=True)"
    if "specified backend" in text and "lowering platform" in text:
        return f"{who} calls back into Python, which only a process that runs on {platform} can lower"
    if "`EmitPythonCallback` not supported" in text:
        return f"{who} calls back into Python, which has no rule on {platform}"
    if "No supported GPU devices found" in text:
        return (f"{who} is lowered for one model of GPU, and none is here: name one with "
                "jax.sharding.AbstractDevice (see use_abstract_mesh)")
    text = text.replace(" implementation on this platform ", f" implementation on {platform} ")
    first = hide_addresses(" ".join(_ADVICE.sub("", text.split("\n\n")[0]).split())).rstrip(".")
    if not isinstance(error, (NotImplementedError, ValueError, TypeError)) or not first:
        first = f"{type(error).__name__}: {first}".rstrip(": ")  # a bare message may not say it
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


# What the lowered program says ----------------------------------------------------------------------------

_CALLED = re.compile(r"stablehlo\.custom_call @([\w.$]+)")
_NOT_CODE = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint",
             "annotate_device_placement"}  # fmt: skip


def calls(text: str) -> list[str]:
    """The code that a StableHLO text calls by name: libraries, and kernels that were compiled on the way."""
    return [name for name in dict.fromkeys(_CALLED.findall(text)) if name not in _NOT_CODE]


def _note(text: str) -> str:
    called = calls(text)
    return f"calls {', '.join(called)}" if called else ""
