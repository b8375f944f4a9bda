"""The difference of two walks, from the script down to the assembly.

    d = w.diff(other)               live or loaded walks, in any mix: other functions, options, JAX versions
    d.summary  d.table  d.times     in words; what differs for certain; what was measured
    d.text("hlo")  d.code(kernel)   what differs line by line, renamed things left out
    d.save("diff.html")             one static file

Names count for nothing: see `renamed` for lines and `pairing` for kernels. Measured times never make a
difference by themselves (`bool(d)` is about what is certain), and where their spreads overlap they are called
noise.
"""

from __future__ import annotations

import difflib
import os
from functools import cached_property
from typing import Any

import pandas as pd

from ..views.static import write
from . import changes, renamed, wording
from .pairing import Part, pairs, parts, same_code

STAGES = ("script", "jaxpr", "stablehlo", "passes", "hlo", "kernels")
FORMS = ("mlir", "llvm", "asm")
_CONTEXT = 3


class Difference:
    """Two walks and what differs between them, from `walk.diff(other)`. False where nothing does."""

    def __init__(self, left: Any, right: Any) -> None:
        for side in (left, right):
            if not hasattr(side, "to_json"):
                raise TypeError(
                    f"diff expects two walks, got {type(side).__name__}: give what oplab.walk or "
                    "oplab.load_walk returned."
                )
        self.left, self.right = left.to_json(), right.to_json()

    @cached_property
    def pairs(self) -> list[tuple[Part | None, Part | None]]:
        """Each kernel of the left with its partner on the right; None where it has none."""
        return pairs(parts(self.left), parts(self.right))

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per difference, all of them certain: stage, what, left, right, change. Empty if none is.

        stage: jaxpr, stablehlo, passes, hlo, kernels, code, fates, cost or memory.
        left, right: a count, a name, a number of bytes or FLOPs of one call. change: from left to right, with
            the factor where it is large; of lines, how many went and came (names aside).
        """
        return changes.certain(self.left, self.right, self.pairs)

    @cached_property
    def times(self) -> pd.DataFrame:
        """What was measured, if both were executed: what, left_us, left_spread_us, right_us, right_spread_us,
        verdict.

        The median and interquartile range per call, in microseconds, of all kernels and of each pair. The
        verdict is "within noise" wherever the two ranges overlap.
        """
        return changes.measured(self.left, self.right, self.pairs)

    @cached_property
    def summary(self) -> str:
        """The difference in one paragraph."""
        return wording.paragraph(self.left, self.right, self.pairs, self.table, self.times)

    @property
    def heads(self) -> tuple[str, str]:
        """Whose walks these are: function, target, versions and options of the left and the right."""
        return wording.head(self.left), wording.head(self.right)

    def text(self, stage: str) -> str:
        """The unified diff of a stage's text, renamed things left out; empty where nothing else differs.

        stage: "script", "jaxpr", "stablehlo", "passes", "hlo" or "kernels".
        """
        if stage not in STAGES:
            raise ValueError(f"text expects a stage, one of {', '.join(STAGES)}, got {stage!r}.")
        return _unified(*self._texts(stage), *self.heads)

    def code(self, kernel: str, form: str = "asm") -> str:
        """The unified diff of a kernel's code, addresses, labels and symbols left out; empty if all is the
        same.

        kernel: its name on the left, or else on the right. form: "asm", "llvm" or "mlir".
        """
        if form not in FORMS:
            raise ValueError(f"code expects a form, one of {', '.join(FORMS)}, got {form!r}.")
        a, b = self._pair(kernel)
        heads = [f"{part.name} ({part.kind})" if part else "no such kernel" for part in (a, b)]
        return _unified(*_code(a, b, form), *heads)

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the difference as one static HTML file, without scripts. Returns the path."""
        from ..views.difference import page

        path = os.fspath(path)
        if not path.endswith((".html", ".htm")):
            raise ValueError(f"save expects a path ending in .html, got {path!r}.")
        return write(path, page(self._shown()))

    def __bool__(self) -> bool:
        return not self.table.empty

    def __repr__(self) -> str:
        parts = [f"left   {self.heads[0]}", f"right  {self.heads[1]}", "", self.summary]
        if self:
            parts += ["", self.table.to_string(index=False, max_colwidth=60)]
        if not self.times.empty:
            parts += ["", self.times._shown().to_string(index=False, float_format="{:.2f}".format)]
        return "\n".join(parts)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..views.difference import fragment

        return {"text/plain": repr(self), "text/html": fragment(self._shown())}

    def _shown(self) -> dict[str, Any]:
        """What a view needs, in plain lists: lines that correspond have the same names already."""
        blocks = [(stage, *self._texts(stage)) for stage in ("script", "jaxpr", "stablehlo", "hlo")]
        for a, b in self.pairs:
            if a and b and a.code.get("asm") and b.code.get("asm") and not same_code(a, b):
                name = a.name if a.name == b.name else f"{a.name} → {b.name}"
                blocks.append((f"assembly of {name}", *_code(a, b, "asm")))
        times = self.times._shown()
        return {
            "heads": self.heads,
            "summary": self.summary,
            "table": (list(self.table.columns), self.table.to_numpy().tolist()),
            "times": (list(times.columns), times.to_numpy().tolist()),
            "blocks": [(name, left, right) for name, left, right in blocks if left != right],
        }

    def _texts(self, stage: str) -> tuple[list[str], list[str]]:
        texts = [document["stages"][stage]["text"] for document in (self.left, self.right)]
        return _alike(*texts, renamed.language(stage))

    def _pair(self, kernel: str) -> tuple[Part | None, Part | None]:
        for side in (0, 1):
            for pair in self.pairs:
                if pair[side] is not None and pair[side].name == kernel:
                    return pair
        known = ", ".join(part.name for pair in self.pairs for part in pair[:1] if part) or "no kernels"
        raise ValueError(f"code expects the name of a kernel, got {kernel!r}: the left walk has {known}.")


def _code(a: Part | None, b: Part | None, form: str) -> tuple[list[str], list[str]]:
    return _alike(*(part.code.get(form, "") if part else "" for part in (a, b)), form)


def _alike(left: str, right: str, language: str) -> tuple[list[str], list[str]]:
    """Both texts in clean lines, the right's with the names of the left's."""
    one, other = (renamed.cleaned(text, language) if text else [] for text in (left, right))
    return one, renamed.same_names(one, other, language)


def _unified(left: list[str], right: list[str], left_head: str, right_head: str) -> str:
    if left == right:
        return ""
    return "\n".join(difflib.unified_diff(left, right, left_head, right_head, lineterm="", n=_CONTEXT))
