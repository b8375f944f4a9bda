"""What is stored in an output: never, twice, by two cores at once, or on top of what nobody put there.

The rules are those of the TPU's pipeline ("Software Pipelining", "Writing TPU kernels with Pallas"): a block
of an output stays in fast memory while consecutive steps use it, and may then be read and added to; once it
is left it is written back, and never fetched again; and fresh memory holds anything at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .case import Case, Finding, count


def never_stored(case: Case) -> Iterator[Finding]:
    """An output to which the kernel never stores, or not at any step of some block."""
    name, grid, walked = case.operand.name, case.kernel.grid, case.blocks
    stores = [access.possible for access in case.body if access.kind != "read"]
    if not stores:
        reads = "reads it and never" if case.body else "never"
        yield Finding(
            "never written",
            name,
            None,
            f"All of {name} is undefined, for the kernel {reads} stores to it: write {name}[...] = ...",
        )
        return
    stored = np.bincount(walked.key, np.any(stores, axis=0)) > 0
    if not stored.all() and case.operand.moves:
        step = int((~stored)[walked.key].argmax())
        yield Finding(
            "never written",
            name,
            step,
            f"Nothing is stored in {count((~stored).sum(), len(stored), 'visited block')} of {name}, the "
            f"first is {case.block(step)} at step {step}: the condition around the store is false at each of "
            f"their steps; compare it with the grid {grid}.",
        )


def left_and_returned_to(case: Case) -> Iterator[Finding]:
    """An output block that is visited, left, and visited again."""
    name, walked = case.operand.name, case.blocks
    entered = np.flatnonzero(walked.entered)
    again = np.ones(len(entered), bool)
    again[np.unique(walked.key[entered], return_index=True)[1]] = False
    if case.operand.revisits or not again.any():
        return
    step = int(entered[again][0])
    before = int(np.flatnonzero(walked.key == walked.key[step])[0])
    yield Finding(
        "written twice",
        name,
        step,
        f"Block {case.block(step)} of {name} is visited at step {before}, left, and visited again at step "
        f"{step}, when a TPU has written it back and does not fetch it again: put the axes of the grid on "
        "which the block does not depend last.",
    )


def overwritten(case: Case) -> Iterator[Finding]:
    """Two steps of one visit, of which the second stores over the first what was not made from it."""
    name = case.operand.name
    if any(access.kind == "read" for access in case.body):
        return  # the earlier value may live on elsewhere
    stores, over = np.zeros(len(case.places), bool), np.zeros(len(case.places), bool)
    for access in case.body:
        stores |= access.certain
        if access.kind == "write" and access.whole:
            over |= access.certain
    steps = np.arange(len(case.places))
    latest = np.maximum.accumulate(np.where(stores, steps, -1))
    before = np.concatenate([[-1], latest[:-1]])[: len(steps)]
    visit = np.cumsum(case.blocks.entered)
    pairs = np.flatnonzero(over & (before >= 0) & (visit[before] == visit))
    pairs = pairs[_made_from_other_things(case, before[pairs], pairs)]
    if len(pairs):
        step, earlier = int(pairs[0]), int(before[pairs[0]])
        yield Finding(
            "written twice",
            name,
            step,
            f"Step {step} overwrites what step {earlier} stored in block {case.block(step)} of {name}, and "
            "nothing has read it: store zeros at the first step of each block only and then add, "
            f"{name}[...] += ..., or store at the last step only.",
        )


def _made_from_other_things(case: Case, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Do the later steps store something made from other blocks, or places, than the earlier ones?

    If not it is the same value. And where it may come through scratch or another output, these may have
    carried the earlier value along: then nothing is certain.
    """
    differs = np.zeros(len(after), bool)
    for source in frozenset().union(*(access.sources for access in case.body)) - {case.operand.position}:
        if isinstance(source, tuple):  # ("program", axis)
            place = case.places[:, case.kernel.own_axes[source[1]]]
            differs |= place[before] != place[after]
        elif source in case.walk and case.kernel.operands[source].role == "in":
            differs |= case.walk[source].key[before] != case.walk[source].key[after]
        elif isinstance(source, str) or case.kernel.operands[source].role in ("out", "scratch"):
            return np.zeros(len(after), bool)
    return differs


def races(case: Case) -> Iterator[Finding]:
    """Steps with the same block that differ on an axis declared parallel, so that two cores may run them."""
    name, key = case.operand.name, case.blocks.key
    some = np.zeros(key.max(initial=-1) + 1, np.int64)
    some[key] = np.arange(len(key))
    other = some[key]  # for each step, one with the same block
    for axis, word in enumerate(case.kernel.semantics):
        wrong = case.places[:, axis] != case.places[other, axis]
        if not word.endswith("parallel") or not wrong.any():
            continue
        step = int(wrong.argmax())
        yield Finding(
            "race",
            name,
            step,
            f"Programs {case.program(step)} and {case.program(int(other[step]))} share block "
            f'{case.block(step)} of {name} and differ on axis {axis}, declared "parallel", so that '
            'two cores may write it at once: declare it "arbitrary", or give each program its own block.',
        )


def read_before_written(case: Case) -> Iterator[Finding]:
    """An accumulation in fresh memory: scratch at the first step, an output at the first visit of a block."""
    name, scratch = case.operand.name, case.operand.role == "scratch"
    fresh = np.zeros(len(case.places), bool)
    if scratch:
        fresh[:1] = True
    else:
        fresh[np.unique(case.blocks.key, return_index=True)[1]] = True
    stored = np.zeros(len(case.places), bool)
    for access in case.body:
        wrong = access.certain & fresh & ~stored
        if access.kind == "add" and wrong.any():
            step = int(wrong.argmax())
            block = "" if scratch else f", in block {case.block(step)},"
            yield Finding(
                "read before written",
                name,
                step,
                f"Step {step}, program {case.program(step)}, adds to {name}{block} before anything was "
                "stored there, and fresh memory holds anything: store zeros first, under @pl.when(...) "
                f"at the first step that uses {'it' if scratch else 'the block'}.",
            )
            return
        if access.kind != "read":
            stored |= access.possible
