"""One static file that needs nothing but itself: made, put in a notebook's frame, and written.

Whatever is shown is untrusted: text is escaped, data travel as JSON in which no tag can begin or end, and the
content security policy lets in only the styles and the script whose hashes it names.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

# Characters that a reader cannot see or that move others around; they are shown by their code point instead.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
                    "\ufeff\ufff9-\ufffb\ud800-\udfff]")


def visible(text: Any) -> str:
    """Text with its hidden characters spelt out: a right-to-left override becomes [U+202E]."""
    return HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", str(text))


def part(package: str | None, name: str) -> str:
    """A file of a package, as text."""
    return files(package or "").joinpath(name).read_text("utf-8")


def script(package: str | None, names: Iterable[str]) -> str:
    """Several files of JavaScript as one script, whose names reach nothing outside it."""
    return '"use strict";\n(() => {\n' + "\n".join(part(package, name) for name in names) + "\n})();\n"


def styles(picture: str) -> list[str]:
    """The style sheets that stand in an SVG of ours, in which no name holds a `<`."""
    return re.findall(r"<style>(.*?)</style>", picture, re.DOTALL)


def policy(styles: Iterable[str], script: str = "") -> str:
    """A content security policy (CSP level 3) that lets in these styles and this script, and nothing else."""
    let_in = " ".join(f"'{_hash(style)}'" for style in styles)
    run = f" script-src '{_hash(script)}'; require-trusted-types-for 'script'; trusted-types 'none';"
    return (f"default-src 'none'; style-src {let_in};{run if script else ''} "
            "base-uri 'none'; form-action 'none'")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_block(value: Any) -> str:
    """JSON that can stand in a script element: with no `<` in it, nothing in it can end or begin one."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def frame(page: str, title: str, height: int, summary: str, below: str, scripts: bool = True) -> str:
    """A page in a sandboxed frame, for a notebook's cell: what may run in it reaches nothing outside.

    title, summary: plain text. Where a notebook is only looked at (GitHub, a Jupyter that distrusts it)
    frames are cut out: `below`, which is HTML, is left, folded away under `summary`.
    """
    # Only what would end the attribute is escaped, since a page is full of double quotes.
    inside = page.replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")
    return (f"<iframe srcdoc='{inside}' sandbox=\"{'allow-scripts' if scripts else ''}\" "
            f'title="{html.escape(visible(title))}" width="100%" height="{height}" '
            'style="box-sizing:border-box;border:1px solid #8886;border-radius:4px"></iframe>\n'
            f"<details><summary>{html.escape(summary)}</summary>{below}</details>")


def write(path: str | os.PathLike[str], text: str) -> str:
    """Write a file as a whole or not at all: a full disk must not cost the file that was there. Returns the
    path.
    """
    path = os.fspath(path)
    unfinished = f"{path}.{os.getpid()}.part"
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
    return path
