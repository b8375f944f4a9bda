"""The stepper: a kernel's grid as one static HTML file with a slider, in a frame, as a picture, and in words.

Like the linked page the file needs nothing but itself, and allows only the one style sheet and the one script
that were put in here. Its data travel deflated, and every text in them is shown as text.

Parts: `stepper.html` is the frame, `stepper.css` the look; of the script, `walk.js` knows what happens at a
step, `draw.js`, `stack.js` and `values.js` draw it with `pen.js`, `stepper.js` answers the person. `still.py`
is the picture for where no script runs.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from string import Template
from typing import Any

from oplab.views.page.pack import deflated
from oplab.views.static import frame, json_block, part, policy, script, visible
from oplab.views.stepper.still import strip

__all__ = ["embed", "render", "strip", "words"]

SCRIPTS = ("walk.js", "pen.js", "stack.js", "values.js", "draw.js", "stepper.js")
HEIGHT = 640  # pixels of the frame in a notebook
ROWS, WIDTH = 12, 60  # operands that the short text lists, and characters of an index map there


def render(document: Mapping[str, Any]) -> str:
    """The stepper of a document as one string of HTML.

    document: `function`, its name, and `kernels`, one dictionary each, as `oplab.pallas.show` makes them.
    """
    style, run = "\n" + part(__package__, "stepper.css"), script(__package__, SCRIPTS)
    title = html.escape(_title(document))
    return Template(part(__package__, "stepper.html")).substitute(
        policy=policy([style], run), style=style, script=run, title=f"{title} · oplab", heading=title,
        fallback=html.escape(words(document)), data=deflated(json_block(_shown(document))))


def embed(document: Mapping[str, Any], height: int = HEIGHT) -> str:
    """The stepper in a sandboxed frame, for a notebook's cell; its text is for where frames are cut."""
    return frame(render(document), f"Stepper of {_title(document)}: its grid, step by step", height,
                 "No page above? Frames show once this cell has been run. Here it is in short.",
                 f"\n<pre>{html.escape(words(document))}</pre>")


def words(document: Mapping[str, Any]) -> str:
    """The kernels in short: grid, operands, findings."""
    return visible("\n".join(line for kernel in document["kernels"] for line in _lines(kernel)))


def _lines(kernel: Mapping[str, Any]) -> list[str]:
    grid = " x ".join(map(str, kernel["grid"])) or "no grid"
    lines = [f"{kernel['id']} {kernel['name']}: grid {grid}, {kernel['steps']:,} steps".replace("\n", " ")]
    if kernel.get("note"):
        lines.append(f"  {kernel['note']}")
    operands = kernel.get("operands", ())
    for operand in operands[:ROWS]:
        blocks = f" in blocks of {tuple(operand['block_shape'])}" if operand["block_shape"] else ""
        end = operand["map"] if len(operand["map"]) <= WIDTH else f"{operand['map'][:WIDTH]} …"
        lines.append(f"  {operand['role']:8} {operand['name']}  {operand['array']}{blocks}  {end}".rstrip())
    if len(operands) > ROWS:
        lines.append(f"  … and {len(operands) - ROWS} more operands")
    lines += [f"  {found['finding']}: {found['detail']}" for found in kernel.get("findings", ())]
    return lines


def _title(document: Mapping[str, Any]) -> str:
    return visible(document["function"])[:80]


def _shown(value: Any) -> Any:
    """The document with the hidden characters of every text spelt out; keys are our own."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return value if value and isinstance(value[0], (int, float)) else [_shown(item) for item in value]
    return value
