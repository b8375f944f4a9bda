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

import html
import json
from collections.abc import Mapping
from string import Template
from typing import Any

from oplab.display import stable
from oplab.views.page.model import TEXTS, code, model
from oplab.views.page.pack import pack
from oplab.views.records import records
from oplab.views.static import frame, json_block, part, policy, script, styles, visible

SCRIPTS = ("pack.js", "links.js", "list.js", "panes.js", "tables.js", "ledger.js", "plot.js",
           "memory.js", "timeline.js", "roofline.js", "diff.js", "sentence.js", "search.js", "page.js")
PLAIN_BYTES = 200_000  # data above this is packed; the page unpacks it
HEIGHT = 600  # pixels of the frame in a notebook
_FALLBACK_LINES, _FALLBACK_ROWS = 300, 200
_SHOWN = ("instruction", "kind", "lines", "equations", "flops", "bytes", "median_us")


def render(document: Mapping[str, Any], picture: str = "") -> str:
    """The page of a walk's document (`walk.to_json()`), as one string of HTML.

    picture: the program as SVG (`oplab.views.graph`), for readers without scripts; its style is let in by its
    hash, as the page's own is.
    Under OPLAB_STABLE=1 times are a dash, so that the same walk gives the same bytes on every run.
    """
    style, run = _style(), script(__package__, SCRIPTS)
    shown = model(document)
    data = json_block(shown)
    name = visible(document.get("function", ""))
    return Template(part(__package__, "page.html")).substitute(
        policy=policy([style, *styles(picture)], run), style=style, script=run,
        title=html.escape(f"{name[:80]} · oplab"), function=html.escape(name),
        facts=html.escape(_facts(document)), fallback=_fallback(document), picture=picture,
        data=data if len(data) < PLAIN_BYTES else json.dumps(pack(shown)),
        code=pack(code(document)))


def embed(document: Mapping[str, Any], height: int = HEIGHT) -> str:
    """The page in a sandboxed frame, for a notebook's cell: its script runs, and reaches nothing outside.

    Where a notebook is only looked at (GitHub, a Jupyter that distrusts it) frames are cut out: the table
    below is left.
    """
    name = visible(document.get("function", ""))[:80]
    return frame(render(document), f"Walk of {name}: every stage, linked line by line", height,
                 "No page above? Frames show once this cell has been run. Here are the kernels.",
                 _table(records(document.get("summary"))))


# ---- the parts of the file -------------------------------------------------------------------------------


def _style() -> str:
    return "\n" + part(__package__, "page.css") + part(__package__, "views.css")


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
