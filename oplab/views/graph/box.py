"""One box of a picture, and the words that stand in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..static import visible


@dataclass
class Box:
    """A node of the picture. x, y: its corner in the box around it, later in the picture; in pixels."""

    node: dict[str, Any]
    holds: int = 0
    inside: list[Box] = field(default_factory=list)
    from_: dict[str, str] = field(default_factory=dict)  # far node -> what comes from it
    to: dict[str, str] = field(default_factory=dict)
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0


def name_of(box: Box) -> str:
    if box.node.get("run"):
        return f"{short(box.node['node'])} and {box.holds} more"
    text = f"{short(box.node['node'])}  {clipped(box.node['label'], 26)}"
    return f"{text}  ({box.holds} inside)" if box.holds else text


def detail_of(box: Box) -> str:
    return clipped(box.node["shape"], 28)


def stubs_of(box: Box) -> list[str]:
    """The words at a box's top and foot that stand for the lines which were cut."""
    found = []
    for word, far in (("from", box.from_), ("to", box.to)):
        if far:
            names = ", ".join(short(name) + size for name, size in list(far.items())[:3])
            found.append(f"{word} {names}" + (f" +{len(far) - 3}" if len(far) > 3 else ""))
    return found


def short(name: str) -> str:
    """A node's id where there is little room: of a nested equation the last part."""
    parts = name.split(".")
    nested = len(parts) > 2 and parts[0][:1] == "e" and parts[-1][:1] == "e"
    return clipped("…" + parts[-1] if nested else name, 34)


def readable(count: int) -> str:
    """`2.0 KiB`"""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"


def clipped(text: Any, most: int) -> str:
    """Text from a program as one short label, its hidden characters spelt out."""
    text = visible(str(text)[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"
