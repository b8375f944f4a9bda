"""The one kind of picture that oplab draws: a matplotlib Figure that also says in words what it shows.

Colours never carry a meaning alone: a hatch, a marker or a dash says the same. Sizes are meant for the back
of a room. No pyplot: a picture belongs to whoever holds it, and nothing is drawn twice in a notebook.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from oplab.display import stable

# Okabe and Ito's colours (jfly.uni-koeln.de/color), which colour-blind readers can tell apart.
# One operator, one colour, in every plot, page and notebook.
COLOURS = {"matmul": "#0072B2", "softmax": "#D55E00", "relu": "#E69F00", "bias_add": "#56B4E9",
           "layer_norm": "#CC79A7", "conv2d": "#009E73", "attention": "#F0E442", "other": "#BBBBBB"}
HATCHES = {"matmul": "", "softmax": "//", "relu": "..", "bias_add": "--",
           "layer_norm": "\\\\", "conv2d": "xx", "attention": "oo", "other": ""}
# Variants of one operator are not operators: black, then Paul Tol's muted colours, in the order they come in.
STYLES = [("#000000", "o", "-"), ("#CC6677", "s", "--"), ("#332288", "^", "-."), ("#117733", "D", ":"),
          ("#999933", "v", "-"), ("#AA4499", "P", "--"), ("#882255", "X", "-."), ("#777777", "*", ":")]
LOOK = {"font.size": 13, "axes.titlesize": 15, "axes.titleweight": "bold", "axes.titlelocation": "left",
        "axes.labelsize": 14, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "axes.axisbelow": True, "grid.color": "#E4E4E4", "lines.linewidth": 2.2, "lines.markersize": 8,
        "hatch.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 13, "errorbar.capsize": 4}
WIDTH, ROW = 10.0, 0.3  # inches: width of every picture, height of one row of its legend


class Picture(Figure):
    """A matplotlib Figure with `alt`, its description in words, which notebooks give to screen readers."""

    def __init__(self, alt: str, height: float) -> None:
        super().__init__(figsize=(WIDTH, height), dpi=100, layout="constrained")
        self.alt = alt

    def __repr__(self) -> str:
        return self.alt

    def png(self) -> bytes:
        """The picture as a PNG file that carries its description."""
        drawn, file, description = io.BytesIO(), io.BytesIO(), PngInfo()
        self.savefig(drawn, format="png")
        description.add_itxt("Description", self.alt)
        # A plot has few colours: a palette makes the file, and the notebook around it, three times smaller.
        few_colours = Image.open(drawn).convert("RGB").quantize(128)
        few_colours.save(file, format="png", pnginfo=description, optimize=True)
        return file.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict, dict]:
        # JupyterLab and nbconvert show the HTML. The PNG, and its `alt`, are for readers that take no HTML.
        data = base64.b64encode(self.png()).decode()
        bundle = {"image/png": data, "text/html": image(data, self.alt), "text/plain": self.alt}
        return bundle, {"image/png": {"alt": self.alt}}

    def frame(self, title: str, handles: list, foot: Iterable[str]) -> None:
        """Title above, legend under it, small print below: each in a strip of its own, so none overlap."""
        height, lines = self.get_figheight(), [line for line in foot if line]
        widest = max((len(h.get_label()) for h in handles), default=0)
        columns = max(1, min(len(handles), int(WIDTH / (0.85 + 0.105 * widest))))
        above = 0.5 + ROW * -(-len(handles) // columns)
        below = 0.12 + 0.2 * len(lines)
        self.get_layout_engine().set(rect=(0, below / height, 1, 1 - (above + below) / height))
        self.text(0.01, 1 - 0.1 / height, plain(title, 70), fontsize=18, va="top")
        self.text(0.01, 0.08 / height, "\n".join(lines), fontsize=11, va="bottom", color="#444444")
        if handles:
            self.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 1 - 0.42 / height),
                        ncols=columns, columnspacing=1.5, borderaxespad=0.2, handlelength=2.6)


def image(png: str, alt: str) -> str:
    """A PNG in base64, as HTML with its description in words."""
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{png}" style="max-width: 100%">'


def ran_on(sources: Iterable[Any]) -> str:
    """JAX's version and the number of threads, to which every measured number belongs.

    They come from the `attrs` of the tables; a table without them was made in this very process. Nothing
    in the stable mode.
    """
    if stable():
        return ""
    known: dict[str, Any] = {}
    for source in sources:
        known |= source.attrs
    affinity = getattr(os, "sched_getaffinity", None)
    threads = known.get("threads") or (len(affinity(0)) if affinity else os.cpu_count())
    jax = known.get("jax") or metadata.version("jax")
    return f"JAX {jax}, {threads} threads, {known.get('device', 'cpu')}"


def plain(text: Any, width: int = 34) -> str:
    """Text from a program as a label: its `$` starts no formula, no control characters, not too long."""
    text = "".join(c if c.isprintable() else " " for c in str(text))
    if len(text) > width:
        text = f"{text[: width // 2]}…{text[-(width // 2 - 1):]}"
    return text.replace("$", r"\$")


def listed(names: Iterable[Any]) -> str:
    """'a', 'b' and 'c', as a sentence lists them."""
    quoted = [f"'{name}'" for name in names]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]])) or "nothing"
