"""`oplab doctor`: what stands between a learner and a working lab, each fault with the command that cures it.

It is the first thing that somebody in trouble runs, so it trusts nothing: it needs only the standard library,
asks JAX in a child process, and turns a check that fails into one more line of the report. No host name, user
name or home folder is ever printed.

The checks stand in `checks.py`, the questions that they ask of the machine in `machine.py`.
"""

from __future__ import annotations

import html
import os
import platform
import re
from dataclasses import dataclass

from . import machine
from .checks import CHECKS, Check


@dataclass(frozen=True)
class Report:
    """What `doctor()` found. Prints as a list, shows as a table in a notebook; `table` is a DataFrame."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        return not any(check.status == "bad" for check in self.checks)

    @property
    def table(self):
        """One row a check: name, status, found, cure."""
        import pandas as pd

        rows = [vars(check) for check in self.checks]
        return pd.DataFrame(rows, columns=["name", "status", "found", "cure"])

    @property
    def verdict(self) -> str:
        bad, warn = (sum(check.status == status for check in self.checks) for status in ("bad", "warn"))
        if bad == warn == 0:
            return "All is well: the lab is ready."
        return f"{bad} to cure before the lab works, {warn} worth a look."

    def __repr__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            lines.append(f"{check.status:4}  {check.name:{width}}  {_shown(check)}")
            if check.cure:
                lines.append(f"{'':4}  {'':{width}}  try: {check.cure}")
        return "\n".join([*lines, "", self.verdict])

    def _repr_html_(self) -> str:
        rows = [(check.status, check.name, _shown(check), check.cure) for check in self.checks]
        cells = ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in rows]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        head = "".join(f"<th>{title}</th>" for title in ("status", "check", "found", "try"))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{self.verdict}</p>"


def _shown(check: Check) -> str:
    """What a healthy machine has differs from the next one, so a notebook under test shows none of it."""
    stable = os.environ.get("OPLAB_STABLE", "") not in ("", "0")
    return "-" if stable and check.status == "ok" else check.found


def doctor() -> Report:
    """Checks Python, JAX, devices, memory, folders, the profiler, native code and JupyterLab. Never raises.

    Takes a few seconds, since JAX is started once in a child process. Leaves no file behind.
    """
    seen = machine.ask_jax()
    checks: list[Check] = []
    for check in CHECKS:
        try:
            checks += check(seen)
        except Exception as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            checks.append(Check(name, "warn", f"this check itself failed: {type(error).__name__}: {error}"))
    return Report(tuple(Check(c.name, c.status, _anonymous(c.found), _anonymous(c.cure)) for c in checks))


def _anonymous(text: str) -> str:
    """Without this person's folders: the home becomes ~, and so does whatever looks like anybody's home."""
    home, host = os.path.expanduser("~"), platform.node()
    if len(home) > 1:
        text = text.replace(home, "~")
    text = re.sub(r"(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s'\":]+", "~", text)
    return re.sub(rf"\b{re.escape(host)}\b", "<host>", text) if len(host) > 2 else text
