"""The linked page: one walk as one static HTML file, every line linked to its relatives in every stage.

The file needs nothing but itself: style, script and data stand in it, no request leaves it, and its content
security policy allows only the one style sheet and the one script that were put in here. Everything that
comes from the document (source lines, names, compiler text) is untrusted: it travels as JSON and is shown as
text, never as markup.

Parts: `model.py` makes the data, `pack.py` makes it small, `page.html` is the frame, `page.css` and
`views.css` the look. Of the script, `links.js` says which line belongs to which, `list.js` draws long texts a
window at a time; `panes.js`, `tables.js` and `ledger.js` are what stands side by side, `diff.js` what the
passes changed, `plot.js` a drawing above its table (`memory.js`, `timeline.js`, `roofline.js`);
`sentence.js`, `search.js` and `page.js` answer the person.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from oplab.display import stable
from oplab.views.page.model import TEXTS, code, model, records
from oplab.views.page.pack import deflated as _packed  # noqa: F401  (the stepper's page takes it from here)
from oplab.views.page.pack import pack

SCRIPTS = ("pack.js", "links.js", "list.js", "panes.js", "tables.js", "ledger.js", "plot.js",
           "memory.js", "timeline.js", "roofline.js", "diff.js", "sentence.js", "search.js", "page.js")
PLAIN_BYTES = 200_000  # data above this is packed; the page unpacks it
HEIGHT = 600  # pixels of the frame in a notebook
# Characters that a reader cannot see or that move others around; they are shown by their code point instead.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
                    "\ufeff\ufff9-\ufffb\ud800-\udfff]")
_STYLES = re.compile(r"<style>(.*?)</style>", re.DOTALL)  # of a picture, whose names hold no `<`
_FALLBACK_LINES, _FALLBACK_ROWS = 300, 200
_SHOWN = ("instruction", "kind", "lines", "equations", "flops", "bytes", "median_us")


def render(document: Mapping[str, Any], picture: str = "") -> str:
    """The page of a walk's document (`walk.to_json()`), as one string of HTML.

    picture: the program as SVG (`oplab.views.graph`), for readers without scripts; its style is let in by its
    hash, as the page's own is.
    Under OPLAB_STABLE=1 times are a dash, so that the same walk gives the same bytes on every run.
    """
    style, script = _style(), _script()
    shown = model(document)
    data = _json(shown)
    styles = " ".join(f"'{_hash(part)}'" for part in [style, *_STYLES.findall(picture)])
    policy = (f"default-src 'none'; style-src {styles}; script-src '{_hash(script)}'; "
              "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
    name = visible(document.get("function", ""))
    return Template(_file("page.html")).substitute(
        policy=policy, style=style, script=script,
        title=html.escape(f"{name[:80]} · oplab"), function=html.escape(name),
        facts=html.escape(_facts(document)), fallback=_fallback(document), picture=picture,
        data=data if len(data) < PLAIN_BYTES else json.dumps(pack(shown)),
        code=pack(code(document)))


def embed(document: Mapping[str, Any], height: int = HEIGHT) -> str:
    """The page in a sandboxed frame, for a notebook's cell: its script runs, and reaches nothing outside.

    Where a notebook is only looked at (GitHub, a Jupyter that distrusts it) frames are cut out: the table
    below is left.
    """
    # Only what would end the attribute is escaped, since the page is full of double quotes.
    page = render(document).replace("&", "&amp;").replace("'", "&#39;").replace("<", "&lt;")
    name = visible(document.get("function", ""))[:80]
    title = html.escape(f"Walk of {name}: every stage, linked line by line")
    return (f"<iframe srcdoc='{page}' sandbox=\"allow-scripts\" title=\"{title}\" width=\"100%\" "
            f'height="{height}" style="box-sizing:border-box;border:1px solid #8886;border-radius:4px">'
            "</iframe>\n<details><summary>No page above? Frames show once this cell has been run. "
            f"Here are the kernels.</summary>\n{_table(records(document.get('summary')))}</details>")


def visible(text: Any) -> str:
    """Text with its hidden characters spelt out: a right-to-left override becomes [U+202E]."""
    return HIDDEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", str(text))


# ---- the parts of the file -------------------------------------------------------------------------------


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _style() -> str:
    return "\n" + _file("page.css") + _file("views.css")


def _script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(map(_file, SCRIPTS)) + "\n})();\n"


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that can stand in a script element: with no `<` in it, nothing in it can end or begin one."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _facts(document: Mapping[str, Any]) -> str:
    versions = {} if stable() else document.get("versions", {})
    known = [f"{name} {version}" for name, version in versions.items()]
    options = [f"{key}={value!r}" for key, value in document.get("options", {}).items()]
    target = f"on {document.get('target', '?')}"
    return visible(" · ".join([target, ", ".join(known) or "versions masked", *options]))


# ---- what a reader without scripts sees ------------------------------------------------------------------


def _fallback(document: Mapping[str, Any]) -> str:
    parts = []
    for name in TEXTS:
        text = str(document.get("stages", {}).get(name, {}).get("text", ""))
        lines = text.split("\n", _FALLBACK_LINES)
        more = lines[_FALLBACK_LINES:] and ["…"]
        shown = "\n".join([*(line[:400] for line in lines[:_FALLBACK_LINES]), *more])
        parts.append(f"<h2>{name}</h2>\n<pre>\n{html.escape(visible(shown))}</pre>")
    return "\n".join([_table(records(document.get("summary"))), *parts])


def _table(rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _SHOWN)
    body = "\n".join("<tr>" + "".join(f"<td>{_cell(name, row.get(name))}</td>" for name in _SHOWN) + "</tr>"
                     for row in rows[:_FALLBACK_ROWS])
    return f"<table><caption>Kernels</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _cell(name: str, value: Any) -> str:
    if name == "median_us":
        return "–" if stable() or not isinstance(value, (int, float)) else f"{value:.1f}"
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value[:12])) + (" …" if len(value) > 12 else "")
    return html.escape(visible("" if value is None else value)[:200])
