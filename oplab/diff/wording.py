"""A difference in words: one paragraph, from the script down to the code and the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from ..display import stable
from .changes import asm_counts
from .pairing import Part, same_code, same_hlo

_ROAD = (("jaxpr", "jaxpr"), ("stablehlo", "StableHLO"), ("hlo", "HLO"))
_SHOWN = 3  # kernels that the paragraph names; the table has them all


def head(document: dict[str, Any]) -> str:
    """Whose walk it is: the function, the hardware, the versions, the options."""
    versions = {} if stable() else document["versions"]
    known = ", ".join(f"{name} {version}" for name, version in versions.items()) or "versions masked"
    options = ", ".join(f"{key}={value!r}" for key, value in document["options"].items())
    return f"{document['function']} on {document['target']} · {known} · {options or 'no options'}"


def paragraph(
    left: dict[str, Any],
    right: dict[str, Any],
    pairs: list[tuple[Part | None, Part | None]],
    table: pd.DataFrame,
    times: pd.DataFrame,
) -> str:
    """The whole difference in a few sentences."""
    sentences = [_stages(table, pairs), *_kernels(pairs), *_costs(table), _cause(left, right, table)]
    sentences.append(_time(times))
    return " ".join(filter(None, sentences))


def _stages(table: pd.DataFrame, pairs: list[tuple[Part | None, Part | None]]) -> str:
    """How far the two go the same way."""
    differ = set(table["stage"])
    same = [name for key, name in _ROAD if key not in differ]
    other = [name for key, name in _ROAD if key in differ]
    code = all(a and b and same_code(a, b) for a, b in pairs)
    if table.empty:
        return "Nothing differs: the same jaxpr, StableHLO, HLO, kernels and code."
    if not other and code:
        what = "the LLVM IR that it was made from is not" if "code" in differ else "only the way there is not"
        return f"Same HLO and same machine code; {what}."
    if not other:
        return "Same HLO, other machine code."
    went = f"The {_listed(other)} differ{'s' * (len(other) == 1)}"
    went += f"; the {_listed(same)} {'is' if len(same) == 1 else 'are'} the same" if same else ""
    return f"{went}. {_operators(table)}".rstrip()


def _operators(table: pd.DataFrame) -> str:
    """What the jaxprs say: other arguments, other operators, or the same ones joined otherwise."""
    rows = table[table["stage"] == "jaxpr"]
    for row in rows[rows["what"] == "arguments"].itertuples():
        return f"The left takes {row.left or 'nothing'}, the right {row.right or 'nothing'}."
    counts = rows[rows["what"].str.startswith("primitive ")]
    if len(counts):
        changes = [f"{r.what.split(' ', 1)[1]} {r.left} → {r.right}" for r in counts.itertuples()]
        return f"Of primitives: {_some(changes)}."
    same = "The jaxprs have the same primitives, with other parameters or joined otherwise."
    return same if len(rows) else ""


def _kernels(pairs: list[tuple[Part | None, Part | None]]) -> list[str]:
    gone = [a.name for a, b in pairs if a and not b]
    new = [b.name for a, b in pairs if b and not a]
    both = [(a, b) for a, b in pairs if a and b]
    sentences = []
    if gone or new:
        count = [sum(pair[side] is not None for pair in pairs) for side in (0, 1)]
        only = [f"only {side}: {_some(names)}" for side, names in (("left", gone), ("right", new)) if names]
        sentences.append(f"{count[0]} kernels against {count[1]} ({'; '.join(only)}).")
    moved = [f"{a.name} was {_hands(a)} and is {_hands(b)}" for a, b in both if a.kind != b.kind]
    if moved:
        sentences.append(f"{_some(moved, '; ')}.")
    code = [_code(a, b) for a, b in both if a.kind == b.kind and same_hlo(a, b) and not same_code(a, b)]
    if code:
        sentences.append(f"{_some(code, '; ')}.")
    changed = [_became(a, b) for a, b in both if a.kind == b.kind and not same_hlo(a, b)]
    if changed:
        sentences.append(f"{_some(changed, '; ')}.")
    return sentences


def _became(a: Part, b: Part) -> str:
    """A kernel whose HLO is another, with the size of its code where there is some."""
    name = f"Kernel {a.name} has other members" if a.name == b.name else f"Kernel {a.name} became {b.name}"
    one, other = (asm_counts(part.code.get("asm", ""))["instructions"] for part in (a, b))
    return f"{name} ({one:,} instructions against {other:,})" if one and other else name


def _hands(part: Part) -> str:
    return "XLA's own code" if part.kind == "compiled" else f"{part.kind}'s"


def _code(a: Part, b: Part) -> str:
    """What differs in the code of a kernel whose HLO is the same."""
    one, other = (asm_counts(part.code.get("asm", "")) for part in (a, b))
    if one == other:
        return f"Kernel {a.name} has as many instructions, but not the same ones"
    all_of, vector, bits = "instructions", "vector instructions", "widest vector, bits"
    return (
        f"Kernel {a.name}, of the same HLO, has {one[all_of]:,} instructions against "
        f"{other[all_of]:,}, of which {one[vector]:,} against {other[vector]:,} work on vectors "
        f"(up to {one[bits]} bits wide against {other[bits]})"
    )


def _costs(table: pd.DataFrame) -> list[str]:
    rows = table[table["stage"].isin(["cost", "memory"])]
    return [f"{r.what[0].upper()}{r.what[1:]}: {r.left:,} against {r.right:,}." for r in rows.itertuples()]


def _cause(left: dict[str, Any], right: dict[str, Any], table: pd.DataFrame) -> str:
    """What stands before the difference, if it is one thing alone."""
    before = []
    options = [d["options"] for d in (left, right)]
    if options[0] != options[1]:
        keys = [k for k in dict(**options[0], **{k: 0 for k in options[1] if k not in options[0]})
                if options[0].get(k) != options[1].get(k)]  # fmt: skip
        shown = [f"{k}: {_value(options[0], k)} against {_value(options[1], k)}" for k in keys]
        before.append(f"the options ({'; '.join(shown)})")
    versions = [d["versions"].get("jax") for d in (left, right)]
    if versions[0] != versions[1] and not stable():
        before.append(f"JAX ({versions[0] or 'unknown'} against {versions[1] or 'unknown'})")
    if left["target"] != right["target"]:
        before.append(f"the target ({left['target']} against {right['target']})")
    if not before:
        return ""
    if table.empty:
        return f"So {_listed(before)} made no difference here."
    if len(before) == 1 and "stablehlo" not in set(table["stage"]):
        return f"All that differs before is {before[0]}."
    return f"The walks differ in {_listed(before)} too."


def _value(options: dict[str, Any], key: str) -> str:
    return repr(options[key]) if key in options else "not set"


def _time(times: pd.DataFrame) -> str:
    if times.empty:
        return ""
    if stable():
        return "Both were measured."
    whole = times.iloc[0]
    numbers = [f"{whole[s + '_us']:.1f} ± {whole[s + '_spread_us'] / 2:.1f} us" for s in ("left", "right")]
    return f"Measured, a call: {numbers[0]} against {numbers[1]}, {whole['verdict']}."


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _some(names: list[str], between: str = ", ") -> str:
    more = len(names) - _SHOWN
    return between.join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
