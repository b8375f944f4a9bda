"""A walk as a document: JSON with a versioned schema, the page made from it, and the way back.

The document holds everything that people are shown and nothing of the machine it was made on.
`oplab/walk.schema.json` says what stands in it; the page is made from the document alone, so a saved walk
shows just what a live one does.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import jax
import pandas as pd

from .display import Measured, stable
from .stages.stage import Stage, read
from .views.static import write

SCHEMA = "oplab.walk/1"
PICTURE_EQUATIONS, PICTURE_BYTES = 400, 200_000  # a page's picture is left out above either
MAX_BYTES = 256 * 2**20  # a larger file is not a walk of ours
CERTAIN = ("script", "jaxpr", "stablehlo", "passes", "hlo", "kernels")


def from_walk(walk: Any) -> dict[str, Any]:
    """The document of a live walk."""
    stages = {name: getattr(walk, name) for name in CERTAIN}
    if walk._measured is not None:
        stages["execution"] = walk.execution
    document = {
        "schema": SCHEMA,
        "function": walk.name,
        "target": walk.target,
        "versions": versions(),
        "options": {key: str(value) for key, value in walk.options.items()},
        "stages": {
            name: {"text": stage.text, "table": _table(stage.table)} for name, stage in stages.items()
        },
        "links": _table(walk.links),
        "fates": _table(walk.fates),
        "summary": _table(walk.summary()),
        "buffers": _table(walk.buffers),
        "pass_lines": _table(walk.pass_lines),
        "code": {name: walk.code(name) for name in walk.kernels.table["instruction"]},
    }
    if walk._peaks is not None:
        document["peaks"] = {key: _plain(value) for key, value in walk._peaks.items()}
    return document


def versions() -> dict[str, str]:
    """What made the document; empty where versions are masked (OPLAB_STABLE=1)."""
    if stable():
        return {}
    import jaxlib

    return {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "oplab": "0.1.0"}


def _table(table: pd.DataFrame) -> dict[str, Any]:
    return {
        "columns": list(table.columns),
        "rows": [[_plain(v) for v in row] for row in table.itertuples(index=False, name=None)],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    if hasattr(value, "item"):
        return value.item()
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def checked(path: str | os.PathLike[str]) -> str:
    """The path as text, if its ending says what to write; ValueError otherwise."""
    path = os.fspath(path)
    if not path.endswith((".json", ".html", ".htm")):
        raise ValueError(
            f"save expects a path ending in .html (the linked page) or .json (to load again), got {path!r}."
        )
    return path


def save(document: dict[str, Any], path: str) -> str:
    """Write the page or the document, by the file's ending."""
    if path.endswith(".json"):
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    else:
        from .views.page import render

        text = render(document, picture(document))
    return write(path, text)


def picture(document: dict[str, Any]) -> str:
    """The jaxpr as SVG, which a page shows where no scripts run; empty for a program too large to be read."""
    if len(document["stages"]["jaxpr"]["table"]["rows"]) > PICTURE_EQUATIONS:
        return ""
    from .graphs import graph

    drawn: str = graph(SavedWalk(document)).svg
    return drawn + "\n" if len(drawn) <= PICTURE_BYTES else ""


def load_walk(path: str | os.PathLike[str]) -> SavedWalk:
    """Load a walk that `walk.save("walk.json")` wrote. Nothing in the file is run; it is read as JSON and
    checked.

    Raises ValueError, in one sentence, for a file that is not such a document.
    """
    path = os.fspath(path)
    if os.path.getsize(path) > MAX_BYTES:
        raise ValueError(
            f"load_walk expects at most {MAX_BYTES >> 20} MiB, and {os.path.basename(path)} is larger."
        )
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"load_walk expects a document that walk.save wrote, and {os.path.basename(path)} is not JSON."
        ) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise ValueError(
            f"load_walk expects the schema {SCHEMA}, got {found!r}: save the walk again with this oplab."
        )
    try:
        return SavedWalk(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"load_walk found parts missing in {os.path.basename(path)} ({error}): save the walk again."
        ) from error


class Shown:
    """The linked page in a notebook: the page in a frame of its own, the jaxpr as a picture for viewers that
    take no HTML, and a table in words for those that take text alone.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from .views.page import embed

        bundle = {"text/plain": repr(self), "text/html": embed(self.document)}
        drawn = picture(self.document)
        return bundle | {"image/svg+xml": drawn} if drawn else bundle

    def __repr__(self) -> str:
        table = read(self.document["summary"])
        return f"{self.document['function']} on {self.document['target']}\n" + table[
            ["instruction", "kind", "equations", "lines"]
        ].to_string(index=False)


class Documented:
    """Whatever has a document, a live walk or a loaded one, and what can be made of that."""

    name: str

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the walk to a file: the linked page (`.html`), or the document to load again (`.json`).

        Returns the path.
        """
        path = checked(path)  # before the work
        return save(self.to_json(), path)

    def show(self) -> Shown:
        """The linked page, for a notebook cell to display."""
        return Shown(self.to_json())

    def graph(self, stage: str = "jaxpr") -> Any:
        """The program as a picture, as "jaxpr", "stablehlo" or "hlo": see `oplab.views.graph.Graph`."""
        from .graphs import graph

        return graph(self, stage)

    def diff(self, other: Any) -> Any:
        """What differs between this walk (the left) and another, live or loaded: see `oplab.diff`."""
        from .diff import Difference

        return Difference(self, other)

    def export(self, kind: str, path: str | os.PathLike[str]) -> list[str]:
        """Write files for another tool, "model_explorer" or "perfetto"; returns their paths: see
        `oplab.export`.
        """
        from .export import export

        return export(self.to_json(), kind, path)


class SavedWalk(Documented):
    """A walk read back from a file: the same stages, tables and page, without the program."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.name, self.target, self.options = document["function"], document["target"], document["options"]
        self._stages = {
            name: Stage.read(name, part)
            for name, part in document["stages"].items()
        }
        for name in CERTAIN:
            setattr(self, name, self._stages[name])
        self.links, self.fates, self._summary = (
            read(document[key]) for key in ("links", "fates", "summary")
        )

    @property
    def execution(self) -> Stage:
        if "execution" not in self._stages:
            raise ValueError(
                "This walk was saved before it was run: call execute() on the live walk, then save it."
            )
        return self._stages["execution"]

    @property
    def buffers(self) -> pd.DataFrame:
        return self._later("buffers")

    @property
    def pass_lines(self) -> pd.DataFrame:
        return self._later("pass_lines")

    def _later(self, key: str) -> pd.DataFrame:
        """A table that documents have not always held."""
        if key not in self.document:
            raise ValueError(f"This walk was saved before oplab kept its {key}: walk and save it again.")
        return read(self.document[key])

    def summary(self) -> pd.DataFrame:
        return Measured(self._summary)

    def code(self, instruction: str) -> dict[str, str]:
        return dict(self.document["code"][instruction])

    def to_json(self) -> dict[str, Any]:
        return self.document

    def __repr__(self) -> str:
        return f"<saved walk of {self.name} for {self.target}>"
