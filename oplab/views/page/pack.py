"""Long data made small enough to travel inside a page: lines as templates and steps, then deflated.

Compiler text repeats itself in everything but its numbers: `%add.7 = f32[8] add(%x.3, %y.4)` comes a
thousand times, each time with other numbers, most of them a fixed step further than last time. Deflate finds
repeats only within 32 KiB, and only when they are equal to the letter. So each line is taken apart first: its
template, with a placeholder for each number, is kept once, and its numbers are kept as the steps from the
last line of the same template (the idea of CLP, Rodrigues and others, OSDI 2021, with differences).
`pack.js` puts the lines together again.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable
from typing import Any

# Placeholders; JSON escapes control characters, so none of these stands in a line by itself.
DECIMAL, HEX, ADDRESS = "\x00", "\x01", "\x02"
# Only what can be spelt again from its value: no leading zeros, and below 2**31. An address is the first word
# of a line of assembly, right-aligned in six columns; its step is taken from the line before.
_NUMBER = re.compile(r"((?:^|(?<=^\"))(?=[ 0-9a-f]{6}:  ) *(?:0|[1-9a-f][0-9a-f]*)(?=:)"
                     r"|0x(?:0|[1-9a-f][0-9a-f]{0,6})(?![0-9a-fA-F])"
                     r"|(?<!\d)(?:0|[1-9]\d{0,7})(?!\d))")


def pack(value: Any) -> str:
    """Any JSON value as base64 text; where it holds lists, each item becomes a line that finds its like."""
    lines = json.dumps(value, separators=(",\n", ":")).split("\n")
    return deflated(json.dumps(_apart(lines), separators=(",", ":")))


def deflated(text: str) -> str:
    """Deflated, in base64: what every browser takes apart by itself."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _apart(lines: Iterable[str]) -> tuple[str, list[int], list[int]]:
    """(the templates, the template of each line, the steps of all numbers in their order)."""
    number: dict[str, int] = {}
    last: list[list[int]] = []  # template -> the numbers of the last line that had it
    order, steps, address = [], [], 0
    for line in lines:
        parts = _NUMBER.split(line)
        values = []
        for at in range(1, len(parts), 2):
            parts[at], value = _read(*parts[at - 1:at + 2])
            if parts[at] == ADDRESS:
                address, value = value, value - address
            values.append(value)
        template = "".join(parts)
        which = number.setdefault(template, len(number))
        if which == len(last):
            last.append([0] * len(values))
        steps += [new - old for new, old in zip(values, last[which], strict=True)]
        last[which] = values
        order.append(which)
    return "\n".join(number), order, steps


def _read(before: str, digits: str, after: str) -> tuple[str, int]:
    """The placeholder of a number, and its value."""
    if digits.startswith("0x"):
        return HEX, int(digits, 16)
    if len(digits) == 6 and before in ("", '"') and after.startswith(":  "):
        return ADDRESS, int(digits, 16)
    return DECIMAL, int(digits)
