"""One exercise: a sentence, a starter with a hole, a check that names the fault, three hints, an answer.

    from oplab.exercises import no_table
    no_table                      what to do, and the starter to copy into a cell of yours
    no_table.check(attention)     the first fault that your function has, with a hint; or that it has none
    no_table.answer()             one way to do it, folded away

Every exercise stands in a file of its own: `faults` is a generator whose `yield`s are its demands, in order.
A check runs what you wrote, here and now, and what it says is certain: it never grades a time.
"""

from __future__ import annotations

import dataclasses
import html
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from . import record

LEVELS = {1: "read", 2: "write an operator", 3: "work with the compiler", 4: "write a kernel"}


@dataclasses.dataclass(frozen=True)
class Exercise:
    """`faults(solution)` yields one sentence for each demand that a solution does not meet.

    size: how much there is to write. hints: from where to look, over the idea, to nearly the line itself.
    notice: what to take along, shown when it is solved. solution: the name that the starter defines.
    """

    name: str
    level: int
    task: str
    starter: str
    size: str
    hints: tuple[str, str, str]
    notice: str
    solution: str
    code: str
    faults: Callable[[Any], Iterator[str]]

    def check(self, solution: Any) -> Outcome:
        """Try a solution. The outcome is true when it has no fault, and says what to do when it has one."""
        fault = first_fault(self, solution)
        tries = record.tried(self.name, fault is None)
        hint = self.hints[min(tries, len(self.hints)) - 1] if fault else ""
        return Outcome(self.name, fault or "", hint, min(tries, len(self.hints)), self.notice)

    def answer(self) -> Folded:
        """One solution, folded away until you want it."""
        return Folded(self.name, self.code)

    def __str__(self) -> str:
        return (f"{self.name} (level {self.level}, {LEVELS[self.level]})\n{self.task}\n"
                f"To write: {self.size}\n\n{self.starter}\n\n{self.call}")

    @property
    def call(self) -> str:
        """What to run once the hole is filled."""
        return f"exercises.{self.name}.check({self.solution})"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        code = html.escape(f"{self.starter}\n\n{self.call}")
        return (f"<p><strong>{self.name}</strong> · level {self.level}, {LEVELS[self.level]}</p>"
                f"<p>{_prose(self.task)}</p><p>To write: {_prose(self.size)}</p>"
                f"{_code(code)}")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check found: `fault` is empty when the exercise is solved."""

    name: str
    fault: str
    hint: str
    rung: int
    notice: str

    def __bool__(self) -> bool:
        return not self.fault

    def __str__(self) -> str:
        if not self.fault:
            return f"✓ {self.name}: solved. {self.notice}"
        return f"✗ {self.name}: {self.fault}\n  Hint {self.rung} of 3: {self.hint}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        said = f"<strong>{'✗' if self.fault else '✓'} {self.name}</strong>"
        if not self.fault:
            return f"<p>{said}: solved. {_prose(self.notice)}</p>"
        return (f"<p>{said}: {_prose(self.fault)}</p>"
                f"<p>Hint {self.rung} of 3: {_prose(self.hint)}</p>")


@dataclasses.dataclass(frozen=True)
class Folded:
    """Code that is shown only to those who unfold it."""

    name: str
    code: str

    def __str__(self) -> str:
        return self.code

    def __repr__(self) -> str:
        return f"The answer to {self.name}: print it to read it."

    def _repr_html_(self) -> str:
        return (f"<details><summary>An answer to {self.name}</summary>"
                f"{_code(html.escape(self.code))}</details>")


def _code(escaped: str) -> str:
    return f'<pre style="text-align:left;font-family:monospace">{escaped}</pre>'


def _prose(text: str) -> str:
    """Text for a page; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def first_fault(exercise: Exercise, solution: Any) -> str | None:
    """The first demand that is not met, or what the solution raised; None when it meets them all."""
    if not callable(solution):
        return (f"check expects your function, got {type(solution).__name__}: "
                f"write {exercise.call}, without calling it.")
    try:
        return next(iter(exercise.faults(solution)), None)
    except Exception as error:
        said = (str(error).strip() or "no more words").splitlines()[0][:200]
        return f"it raises {type(error).__name__}{_where(error, solution)}: {said}"


def _where(error: Exception, solution: Any) -> str:
    """The line of the learner's own function in which it happened, if it is known."""
    code = getattr(getattr(solution, "__wrapped__", solution), "__code__", None)
    lines = [f.line for f in traceback.extract_tb(error.__traceback__)
             if code and f.filename == code.co_filename and f.line]
    return f" at `{lines[-1].strip()}`" if lines else ""
