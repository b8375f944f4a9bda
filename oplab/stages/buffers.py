"""The buffers: which bytes the program holds at each step, as XLA itself laid them out.

Two of XLA's own dumps say it. The *buffer assignment* gives every value a place: an allocation, an offset in
it, a size. The *live ranges* say from which step of the schedule to which a value must be kept, both ends
included; a loop's body stands once in the schedule, in the place of the loop. Lines look like these (newer
versions add `page 0`):

    allocation 12: size 32984, page 0, preallocated-temp:
     value: <22 copy.4 @0> (size=4,offset=32768): s32[]
     value: <48 arg_tuple.3{0} (phi) @0> (size=4,offset=32896): s32[]
        while.6{1}:26-30

Values may share their bytes at the same time: an operation that works in place, a loop's state. Such bytes
are counted once here, whereas the peak that the live ranges print counts every value by itself. A library's
own scratch memory is in neither.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import NamedTuple

import pandas as pd

from .stage import frame

COLUMNS = ["buffer", "instruction", "bytes", "kind", "first", "last", "shares_with", "at_peak",
           "in_use_bytes", "allocation", "offset", "allocation_bytes"]
KINDS = ("argument", "constant", "output", "temporary")
_ALLOCATION = re.compile(r"^allocation (\d+): size (\d+), (.*):$")
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\)")
_RANGE = re.compile(r"^    (\S+?)(\{[\d,]*\}):(\d+)-(\d+)$")


class Buffer(NamedTuple):
    """One value in its place, for as long as it is needed."""

    instruction: str
    index: str  # which part of a tuple: "{1}", or "{}" for the whole value
    bytes: int
    kind: str
    first: int
    last: int
    allocation: int
    offset: int
    allocation_bytes: int

    @property
    def name(self) -> str:
        return self.instruction + (self.index if self.index != "{}" else "")


def table(assignment: str, live_ranges: str) -> pd.DataFrame:
    """One row per buffer, in the order of the schedule; no rows where a text is missing.

    buffer, instruction: `while.6{1}` is the second part of what `while.6` gives. bytes, kind: "argument",
    "constant", "output" (what is handed back, also when a loop works in it before) or "temporary". first,
    last: steps of the schedule, counted from 0, between which it is kept. shares_with: the buffers that lie
    in its bytes while it lives, because an operation works in place. at_peak: whether it lives at the first
    step at which most bytes are in use. in_use_bytes: all bytes in use at its first step, shared ones once.
    allocation, offset, allocation_bytes: the block of memory that it lies in, where in it, and the block's
    size.
    """
    found = _buffers(assignment, live_ranges)
    in_use = in_use_bytes(found)
    peak = max(in_use, key=lambda step: (in_use[step], -step), default=0)
    shared = _shared(found)
    rows = [(b.name, b.instruction, b.bytes, b.kind, b.first, b.last, tuple(shared[b]),
             b.first <= peak <= b.last, in_use[b.first], b.allocation, b.offset, b.allocation_bytes)
            for b in found]
    return frame(rows, COLUMNS)


def _buffers(assignment: str, live_ranges: str) -> list[Buffer]:
    """The values that have a place and a live range; the scratch of a reduction's region has only a place."""
    lives = {(m[1], m[2]): (int(m[3]), int(m[4])) for m in map(_RANGE.match, live_ranges.split("\n")) if m}
    found, block = [], None
    for line in assignment.split("\n"):
        if match := _ALLOCATION.match(line):
            block = (int(match[1]), int(match[2]), _kind(match[3]))
        elif block and (match := _VALUE.match(line)):
            name, index = match[1], match[2] or "{}"
            if (name, index) in lives:
                number, size, kind = block
                found.append(Buffer(name, index, int(match[3]), kind, *lives[name, index], number,
                                    int(match[4]), size))
    return sorted(found, key=lambda b: (b.first, b.allocation, b.offset, b.name))


def _kind(words: str) -> str:
    """An argument that is donated is handed back as well; it stays an argument here."""
    if re.search(r"\bparameter \d", words):
        return "argument"
    if re.search(r"\bconstant\b", words):
        return "constant"
    return "output" if "maybe-live-out" in words else "temporary"


def _places(buffers: list[Buffer]) -> list[list[Buffer]]:
    """The buffers by where they begin: only those that begin at the same byte ever share their bytes."""
    places = defaultdict(list)
    for buffer in buffers:
        places[buffer.allocation, buffer.offset].append(buffer)
    return list(places.values())


def in_use_bytes(buffers: list[Buffer]) -> dict[int, int]:
    """Step -> bytes in use from it on, for every step at which that changes; shared bytes count once."""
    changes: Counter[int] = Counter()
    for place in _places(buffers):
        events = defaultdict(list)
        for buffer in place:
            events[buffer.first].append(buffer.bytes)
            events[buffer.last + 1].append(-buffer.bytes)
        live: Counter[int] = Counter()  # size -> how many of that size are kept here now
        held = 0
        for step in sorted(events):
            for size in events[step]:
                live[abs(size)] += 1 if size > 0 else -1
            now = max((size for size, many in live.items() if many > 0), default=0)
            changes[step] += now - held
            held = now
    total, found = 0, {}
    for step in sorted(changes):
        total += changes[step]
        found[step] = total
    return found


def _shared(buffers: list[Buffer]) -> dict[Buffer, list[str]]:
    shared: dict[Buffer, list[str]] = {buffer: [] for buffer in buffers}
    for place in _places(buffers):
        live: list[Buffer] = []
        for buffer in place:  # they come in the order of their first steps
            live = [other for other in live if other.last >= buffer.first]
            for other in live:
                shared[buffer].append(other.name)
                shared[other].append(buffer.name)
            live.append(buffer)
    return shared
