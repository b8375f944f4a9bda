"""Two walks side by side: what differs in words, in a table, and line by line.

No script: what unfolds are the browser's own `details`. Every text is escaped, and what went and came is said
by − and + as well as by colour.
"""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterator
from typing import Any

from oplab.views.static import part, policy, visible

CONTEXT = 3  # equal lines around a difference
LONGEST, MOST = 400, 400  # characters of a line and lines of a block that are shown
HEADINGS = {"left_us": "left", "left_spread_us": "spread", "right_us": "right", "right_spread_us": "spread"}
_COLUMNS = "<colgroup>" + 2 * '<col class="nr"><col class="sign"><col>' + "</colgroup>"


def page(shown: dict[str, Any]) -> str:
    """The difference as a file of its own. shown: heads, summary, table, times, blocks."""
    style = part(__package__, "difference.css")
    names = " against ".join(visible(head).split(" on ", 1)[0][:60] for head in shown["heads"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([style])}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(names)} · oplab</title>\n<style>{style}</style></head>\n"
        f'<body class="oplab-page"><main class="oplab-difference">\n'
        f"<h1>{html.escape(names)}</h1>\n{_body(shown)}</main></body></html>\n"
    )


def fragment(shown: dict[str, Any]) -> str:
    """The difference for a notebook's cell: the same, to stand among other things."""
    style = part(__package__, "difference.css")
    return f'<style>{style}</style>\n<div class="oplab-difference">\n{_body(shown)}</div>'


def _body(shown: dict[str, Any]) -> str:
    heads = "".join(f"<div><dt>{side}</dt><dd>{_text(head)}</dd></div>"
                    for side, head in zip(("left", "right"), shown["heads"], strict=True))  # fmt: skip
    parts = [f"<dl>{heads}</dl>", f'<p class="words">{_text(shown["summary"])}</p>']
    if shown["table"][1]:
        parts.append(_table("What differs", *shown["table"]))
    if shown["times"][1]:
        parts.append(_table("Measured: microseconds a call, median and interquartile range", *shown["times"]))
    first = next((n for n, block in enumerate(shown["blocks"]) if block[0] != "script"), 0)
    parts += [_block(n == first, *block) for n, block in enumerate(shown["blocks"])]
    return "\n".join(parts) + "\n"


def _table(caption: str, columns: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(HEADINGS.get(c, c))}</th>' for c in columns)
    body = "\n".join("<tr>" + "".join(_entry(c, v) for c, v in zip(columns, row, strict=True)) + "</tr>"
                     for row in rows)  # fmt: skip
    return (f'<div class="scroll"><table class="rows"><caption>{caption}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>")  # fmt: skip


def _entry(column: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{_text(value)}</td>"
    text = f"{value:,.2f}" if column in HEADINGS else f"{value:,}"
    return f'<td class="number">{text}</td>'


def _block(unfolded: bool, name: str, left: list[str], right: list[str]) -> str:
    """One text on both sides."""
    rows = list(_rows(left, right))
    gone, new = (sum(row[side][0] == mark for row in rows) for side, mark in ((0, "−"), (1, "+")))
    shown, more = rows[:MOST], len(rows) - MOST
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
    rest = f'<p class="more">{more:,} more lines differ or stand near; diff.text and diff.code have them.</p>'
    return (
        f"<details{' open' if unfolded else ''}><summary>{_text(name)} "
        f"<span>−{gone} +{new} lines</span></summary>\n"
        f'<div class="scroll"><table class="sides">{_COLUMNS}<thead><tr><th scope="col" colspan="3">left</th>'
        f'<th scope="col" colspan="3">right</th></tr></thead><tbody>\n{body}\n</tbody></table></div>'
        f"{rest if more > 0 else ''}</details>"
    )


def _rows(left: list[str], right: list[str]) -> Iterator[tuple[tuple, tuple]]:
    """Lines side by side: two of (mark, number, text, what differs in it from .. to)."""
    long = len(left) + len(right) > 3000
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=long)
    for count, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if count:
            yield ("…", "", "", 0, 0), ("…", "", "", 0, 0)
        for tag, i1, i2, j1, j2 in group:
            for n in range(max(i2 - i1, j2 - j1)):
                one = left[i1 + n] if i1 + n < i2 else None
                other = right[j1 + n] if j1 + n < j2 else None
                yield _side(one, other, i1 + n, "−", tag), _side(other, one, j1 + n, "+", tag)


def _side(line: str | None, other: str | None, number: int, mark: str, tag: str) -> tuple:
    if line is None:
        return "", "", "", 0, 0
    if tag == "equal":
        return " ", number + 1, line, 0, 0
    return mark, number + 1, line, *_differing(line, other)


def _differing(line: str, other: str | None) -> tuple[int, int]:
    """From where to where a line differs from its partner; nothing is marked where nearly all of it does."""
    if other is None:
        return 0, 0
    shorter = min(len(line), len(other))
    start = next((n for n in range(shorter) if line[n] != other[n]), shorter)
    end = next((n for n in range(shorter - start) if line[-1 - n] != other[-1 - n]), shorter - start)
    return (start, len(line) - end) if start + end > len(line) * 0.3 else (0, 0)


def _cell(side: tuple) -> str:
    mark, number, line, start, end = side
    kind = {"−": "gone", "+": "new", "…": "gap", "": "none"}.get(mark, "same")
    cut = line[:LONGEST] + (f" … {len(line) - LONGEST:,} more" if len(line) > LONGEST else "")
    start, end = min(start, LONGEST), min(end, LONGEST)
    text = _text(cut)
    if end > start:
        text = f"{_text(cut[:start])}<mark>{_text(cut[start:end])}</mark>{_text(cut[end:])}"
    return (f'<td class="nr {kind}">{number}</td><td class="sign {kind}">{mark}</td>'
            f'<td class="line {kind}">{text}</td>')  # fmt: skip


def _text(value: Any) -> str:
    return html.escape(visible("" if value is None else value))
