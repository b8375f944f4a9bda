"""What is only a name: two texts brought to the same names, so that what still differs is real.

A compiler numbers what it makes (`%add.7`, `%12`, address 1a4), so one line more changes the names of all
that follow. Here lines are matched by what they do, with every name left out, and each match says which name
on the right is which on the left. What means nothing (metadata, module ids, comments) is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher

_METADATA = re.compile(r', (?:metadata|origin)=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')
_HLO_HEADER = re.compile(r"^((?:ENTRY )?%?[\w.\-]+) \(.*\) -> .*\{$")
_LLVM_NOISE = re.compile(r"^(?:; |source_filename|![\w.]+ = |declare void @llvm\.experimental)")
_LLVM_COMMENT = re.compile(r"\s+; preds = .*$|, !(?:alias\.scope|noalias|noundef|tbaa) ![\w.]+")
_ADDRESS = re.compile(r"^ *([0-9a-f]+):  ")
_JUMP = re.compile(r"^(j\w+|call|loop\w*|b|bl|b\.\w+|cbn?z|tbn?z)(\s+(?:.*, )?)#?0x([0-9a-f]+)$")
_VARIABLE = re.compile(r"(?<![\w.=])([a-z]{1,4})(?=:(?:bool|key<|token|Ref|MemRef|bf16|float|[fiuc]\d)\S*)")
_NAMES = {
    "hlo": re.compile(r"%[\w.\-]+"),
    "mlir": re.compile(r"[%^@][\w.$\-]+"),
    "llvm": re.compile(r'[%@](?!llvm\.)(?:"[^"]*"|[\w.$\-]+)|(?:#|!)\d+'),
    "asm": re.compile(r"[@.][A-Za-z_][\w.$]*"),
}
_FUNCTION = {"llvm": "define ", "mlir": "func.func ", "asm": "@"}  # where names such as %1 begin anew
# What two lines of one operation may differ in: types, shapes, numbers, what LLVM knows about an operand.
_LOOSE = re.compile(
    r"\b(?:pred|bf16|[fsuic]\d+|float|double|half|bfloat)\b|\[[^\]]*\]|<[^<>]*>|\{[\d,]*\}|-?\d[\w.]*|\s+"
    r"|\b(?:ROOT|inbounds|nuw|nsw|nneg|disjoint|exact|contract|reassoc|nnan|ninf|nsz|arcp|afn|fast|tail"
    r"|nofree|noundef|nonnull|readonly|readnone|writeonly|noalias|captures\(none\)|samesign)\b"
)


def language(stage: str) -> str:
    """The language of a stage's text or of a form of a kernel's code."""
    return {"stablehlo": "mlir", "passes": "hlo", "kernels": "llvm", "script": "python"}.get(stage, stage)


def cleaned(text: str, language: str) -> list[str]:
    """The lines that say something. Jumps get labels for addresses; HLO's long first line is broken up."""
    clean = _CLEAN.get(language)
    return list(clean(text)) if clean else text.split("\n")


def same_names(left: list[str], right: list[str], language: str) -> list[str]:
    """The cleaned lines `right`, with the names of `left` wherever the two correspond.

    A name on the right that corresponds to none, but is spelt like one on the left, gets a prime.
    """
    names = _names(language, left, right)
    if names is None:
        return right
    partner = _partners([names.sub("•", x) for x in left], [names.sub("•", x) for x in right])
    known = _Names(names, {name for line in left for name in names.findall(line)})
    renamed = []
    for number, line in enumerate(right):
        if language in _FUNCTION and line.lstrip().startswith(_FUNCTION[language]):
            known.leave_function()
        exact, other = partner.get(number, (False, None))
        known.learn(line, None if other is None else left[other], exact)
        renamed.append(names.sub(lambda found: known.new(found[0]), line))
    return renamed


class _Names:
    """Which name on the right is which on the left, learnt from one pair of lines after the other."""

    def __init__(self, names: re.Pattern[str], taken: set[str]) -> None:
        self.names, self.taken = names, taken
        self.theirs: dict[str, str] = {}
        self.mine: dict[str, str] = {}

    def learn(self, line: str, other: str | None, exact: bool) -> None:
        """A match is sure about the names that it defines; about those it uses, if nothing was known."""
        defined = self._defined(line)
        if other is None:
            for name in defined:
                self._bind(name, self._fresh(name))
            return
        for mine, theirs in zip(defined, self._defined(other), strict=False):
            self._bind(mine, theirs)
        if exact:
            for mine, theirs in zip(self.names.findall(line), self.names.findall(other), strict=True):
                if mine not in self.theirs and theirs not in self.mine:
                    self._bind(mine, theirs)

    def new(self, name: str) -> str:
        return self.theirs.get(name) or self._fresh(name)

    def _fresh(self, name: str) -> str:
        """Its own name, with a prime if the left has another of that name. A symbol (@f) is no number."""
        return f"{name}′" if name in self.taken and name[0] != "@" else name

    def leave_function(self) -> None:
        """What a function named for itself (%1) means something else in the next."""
        self.theirs = {mine: theirs for mine, theirs in self.theirs.items() if mine[0] not in "%."}
        self.mine = {theirs: mine for mine, theirs in self.theirs.items()}

    def _bind(self, mine: str, theirs: str) -> None:
        self.theirs.pop(self.mine.pop(theirs, mine), None)
        self.mine.pop(self.theirs.pop(mine, ""), None)
        self.theirs[mine], self.mine[theirs] = theirs, mine

    def _defined(self, line: str) -> list[str]:
        """The names that a line defines: the first in it, or the parameters of a function."""
        names, head = self.names.findall(line), line.strip()
        if head.startswith(("define ", "func.func ")):
            return names
        if variables := [name for name in _VARIABLE.findall(line) if name in names]:
            return variables
        head = head.removeprefix("ROOT ").removeprefix("ENTRY ")
        return names[:1] if names and head.startswith(names[0]) else []


def _partners(left: list[str], right: list[str]) -> dict[int, tuple[bool, int]]:
    """Line of the right -> (do they say the same but for names?, line of the left)."""
    found = {}
    for tag, i1, i2, j1, j2 in opcodes(left, right):
        if tag == "equal":
            found.update({j: (True, i) for i, j in zip(range(i1, i2), range(j1, j2), strict=True)})
        elif tag == "replace":  # the same operation on another shape, or with another constant
            loose = [[_LOOSE.sub("", line) for line in part] for part in (left[i1:i2], right[j1:j2])]
            for kind, a1, a2, b1, b2 in opcodes(*loose):
                if kind == "equal":
                    pairs = zip(range(i1 + a1, i1 + a2), range(j1 + b1, j1 + b2), strict=True)
                    found.update({j: (False, i) for i, j in pairs})
    return found


def opcodes(left: list[str], right: list[str]) -> list[tuple[str, int, int, int, int]]:
    """As difflib's, but quick where most lines are equal: what both begin and end with is set aside first."""
    shorter = min(len(left), len(right))
    start = next((n for n in range(shorter) if left[n] != right[n]), shorter)
    rest = shorter - start
    end = next((n for n in range(rest) if left[-1 - n] != right[-1 - n]), rest)
    a, b = left[start : len(left) - end], right[start : len(right) - end]
    found = [("equal", 0, start, 0, start)] if start else []
    long = len(a) + len(b) > 3000  # then lines that stand everywhere are no help, and cost much
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=long).get_opcodes():
        found.append((tag, i1 + start, i2 + start, j1 + start, j2 + start))
    if end:
        found.append(("equal", len(left) - end, len(left), len(right) - end, len(right)))
    return found


def _names(language: str, left: list[str], right: list[str]) -> re.Pattern[str] | None:
    if language != "jaxpr":
        return _NAMES.get(language)
    found = {name for line in (*left, *right) for name in _VARIABLE.findall(line)}
    words = "|".join(sorted(found, key=lambda name: (-len(name), name)))
    return re.compile(rf"(?<![\w.=\-])(?:{words})(?![\w=\[(.\-])") if words else None


# ---- what each language says that means nothing ----------------------------------------------------------


def _clean_hlo(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        line = _METADATA.sub("", line)
        if line.startswith("HloModule "):
            head = re.sub(r"^HloModule [^\s,]+", "HloModule", line)
            first, *rest = re.split(r", (?=\w+=)", head)
            yield from (first, *(f"    {part}" for part in rest))
        elif header := _HLO_HEADER.match(line):  # its parameters have lines of their own
            yield f"{header[1]} {{"
        else:
            yield line


def _clean_llvm(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if _LLVM_NOISE.match(line):
            continue
        label = re.match(r"^([\w.$\-]+):", line)  # a block is `name:` here, and `%name` where it is used
        yield f"%{label[1]}:" if label else _LLVM_COMMENT.sub("", line)


def _clean_asm(text: str) -> Iterator[str]:
    for block in re.split(r"\n\n(?=\S)", text):
        symbol, _, body = block.partition("\n")
        lines = [(m[1], line[m.end() :]) for line in body.split("\n") if (m := _ADDRESS.match(line))]
        jumps = [(at, line, _JUMP.match(line)) for at, line in lines]
        targets = sorted({int(jump[3], 16) for _, _, jump in jumps if jump})
        inside = {int(at, 16) for at, _ in lines}
        labels = {at: f".L{n}" for n, at in enumerate((t for t in targets if t in inside), 1)}
        yield f"@{symbol}"
        for at, line, jump in jumps:
            if int(at, 16) in labels:
                yield f"{labels[int(at, 16)]}:"
            label = labels.get(int(jump[3], 16)) if jump else None
            yield f"    {jump[1]}{jump[2]}{label}" if label else f"    {line}"
        yield ""


def _clean_script(text: str) -> Iterator[str]:
    """Without the numbers of the lines: one line more above moves them all."""
    for line in text.split("\n"):
        yield re.sub(r"^ *\d+  ", "", line)


def _clean_mlir(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        yield re.sub(r'jax\.result_info = "[^"]*"|\bloc\([^)]*\)', "", line).rstrip()


_CLEAN: dict[str, Callable[[str], Iterator[str]]] = {
    "hlo": _clean_hlo,
    "llvm": _clean_llvm,
    "asm": _clean_asm,
    "mlir": _clean_mlir,
    "python": _clean_script,
}
