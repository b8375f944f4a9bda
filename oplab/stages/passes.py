"""The passes: what each step of XLA changed, read from a second compile that writes everything down.

XLA dumps the module after every pass that changed it; a file's name says which pass that was. The dumps of
one compile are read into memory and their folder is removed at once. Passes that changed nothing leave no
file, so they do not appear.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import _jax
from .hlo import Line, display
from .pass_words import does
from .stage import Stage, frame

COLUMNS = ["index", "pipeline", "pass", "changed", "instructions", "added", "removed", "text_line", "does"]
NO_FOLDER = (
    "XLA's dumps need a temporary folder, and none could be made ({}): set TMPDIR to one that can be written."
)
NO_DUMPS = (
    "XLA's dumps are missing or incomplete, so the disk is probably full: free some space (or set TMPDIR) "
    "and walk again."
)
_PASS = re.compile(r"\.(\d{4})\.(.+?)\.after_(.+?)(?:\.before_(.+))?\.txt$")
_APPLIED = re.compile(r"to_apply=%?([\w.\-]+)")
# What LLVM notes about pointers, numbered by chance: `, !alias.scope !12`, and the tables of these numbers at
# the end.
_NOTES = re.compile(r", ![a-z][\w.]* !\d+(?=[,\n])|^!\d+ = .*\n", re.M)
# "llvm" asks for LLVM IR. Asking for the emitters' MLIR too (".*") makes XLA print from several threads at
# once, which ends the whole process now and then; that is left to a child process (see `emitter.py`).
OPTIONS = {"xla_dump_hlo_as_text": True, "xla_dump_hlo_pass_re": ".*", "xla_dump_emitter_re": "llvm"}


@dataclass
class Dump:
    """What one compile wrote: modules after each pass that changed something, and the code of the kernels."""

    snapshots: list[tuple[str, str, str]] = field(default_factory=list)  # pipeline, pass, HLO text
    llvm: dict[str, str] = field(default_factory=dict)  # file stem -> optimised LLVM IR
    objects: dict[str, bytes] = field(default_factory=dict)  # file stem -> object file
    emitted: set[str] = field(default_factory=set)  # file stems that an MLIR emitter began, see `emitter.py`
    live_ranges: str = ""
    buffers: str = ""
    known: dict[str, Line | None] = field(default_factory=dict, repr=False)  # lines that were read before

    @cached_property
    def changes(self) -> list[tuple[list[str], list[str], int]]:
        """For each snapshot: the instruction lines that came, those that went, and how many there are.

        Regions that a reduction applies are left out.
        """
        before: dict[str, None] = {}
        found: list[tuple[list[str], list[str], int]] = []
        regions: set[str] = set()
        same = ""
        for _, _, text in self.snapshots:
            if text == same:  # a pipeline begins with a dump of what the last one left
                found.append(([], [], len(before)))
                continue
            same = text
            regions |= _applied(text)
            after: dict[str, None] = {}
            for computation in text.split("\n\n"):
                computation = computation.lstrip("\n")
                if computation[1 : computation.find(" ")] not in regions:
                    after.update(dict.fromkeys(line for line in computation.split("\n") if line[:1] == " "))
            came = [line for line in after if line not in before]
            found.append((came, [line for line in before if line not in after], len(after)))
            before = after
        return found


def _applied(text: str) -> set[str]:
    """The regions that reductions and sorts apply: they come and go with whoever applies them."""
    found = set()
    for match in _APPLIED.finditer(text):
        if " call(" not in text[text.rfind("\n", 0, match.start()) : match.start()]:
            found.add(match[1])
    return found


def compile_with_dumps(lowered: Any, options: dict[str, Any]) -> tuple[Any, Dump, str]:
    """Compile once more with dumps. Returns (compiled, dump, problem): the problem is a sentence when no file
    could be read.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="oplab-", ignore_cleanup_errors=True)
    except OSError as error:
        with _jax.no_persistent_cache():
            compiled = lowered.compile(compiler_options=options or None)
        return compiled, Dump(), NO_FOLDER.format(error.strerror)
    with folder as path, _jax.no_persistent_cache():
        compiled = lowered.compile(compiler_options={**options, **OPTIONS, "xla_dump_to": path})
        dump = read(path)
    return (compiled, dump, "") if dump else (compiled, Dump(), NO_DUMPS)


def read(folder: str) -> Dump | None:
    """Read a dump folder; None when a full disk cut it short: half of it would tell half-truths."""
    dump = Dump()
    first, last, numbered = "", "", []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not os.path.getsize(path):
            return None
        step = _PASS.search(name)
        if step:
            numbered.append((int(step[1]), step[2], step[3], _text(path)))
        elif name.endswith("before_optimizations.txt"):
            first = _text(path)
        elif name.endswith("after_optimizations.txt"):
            last = _text(path)
        elif name.endswith("live-range.txt"):
            dump.live_ranges = _text(path)
        elif name.endswith("buffer-assignment.txt"):
            dump.buffers = _text(path)
        elif name.endswith(".ir-with-opt.ll"):
            stem = _stem(name, ".ir-with-opt.ll")
            dump.llvm[stem] = _NOTES.sub("", _text(path))
            if "_kernel_module." in name and not stem.endswith("_computation"):
                dump.emitted.add(stem)
        elif name.endswith(".o"):
            with open(path, "rb") as file:
                dump.objects[_stem(name, ".o")] = file.read()
    if not first or not last.rstrip().endswith("}"):
        return None
    dump.snapshots.append(("", "(from StableHLO)", first))
    dump.snapshots += [(pipeline, name, text) for _, pipeline, name, text in sorted(numbered)]
    dump.snapshots.append(("", "(scheduled)", last))
    return dump


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _stem(name: str, suffix: str) -> str:
    """`wrapped_copy.2` of `module_0008.jit_f.__compute_module_wrapped_copy.2.ir-with-opt.ll`."""
    stem = re.sub(r"^module_\d+\.[^.]*\.(?:obj-file\.)?", "", name[: -len(suffix)])
    return re.sub(r"^__compute_module_|_kernel_module$", "", stem)


def stage(dump: Dump, problem: str) -> Stage:
    """The passes stage: one row per pass that changed something, and a sentence on what it does; the text
    shows the lines that each took out and put in.
    """
    text, rows = [], []
    for index, ((pipeline, name, _), (added, removed, count)) in enumerate(
        zip(dump.snapshots, dump.changes, strict=True)
    ):
        if index and not added and not removed:
            continue
        text.append(f"=== {index}: {name}" + (f"   [{pipeline}]" if pipeline else ""))
        came = len(added) if index else 0
        rows.append((index, pipeline, name, bool(index), count, came, len(removed), len(text), does(name)))
        if index:
            text += ["-" + line[1:] for line in removed] + ["+" + line[1:] for line in added]
    return Stage("passes", display("\n".join(text)) or problem, frame(rows, COLUMNS))
