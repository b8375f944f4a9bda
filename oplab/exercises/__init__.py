"""Exercises in four levels, most of them graded on what the compiler did and not on the numbers alone.

    oplab.exercises.names()          all of them, in order
    oplab.exercises.no_table         one of them: what to do, and a starter with a hole (see `exercise.py`)
    oplab.exercises.progress()       where you stand

A check runs offline, in this process, in seconds.
"""

from __future__ import annotations

from ..views.shelf import Shelf
from . import record
from .accumulate import EXERCISE as accumulate
from .batching_rule import EXERCISE as batching_rule
from .bytes_of_fusion import EXERCISE as bytes_of_fusion
from .compiled_once import EXERCISE as compiled_once
from .exercise import LEVELS, Exercise, Folded, Outcome
from .in_place import EXERCISE as in_place
from .layer_flops import EXERCISE as layer_flops
from .merge_softmax import EXERCISE as merge_softmax
from .missing_rule import EXERCISE as missing_rule
from .no_table import EXERCISE as no_table
from .one_kernel import EXERCISE as one_kernel
from .ragged_sum import EXERCISE as ragged_sum
from .record import forget
from .relu_rule import EXERCISE as relu_rule
from .safe_softmax import EXERCISE as safe_softmax
from .tile_traffic import EXERCISE as tile_traffic
from .tile_transpose import EXERCISE as tile_transpose
from .two_become_one import EXERCISE as two_become_one

EXERCISES = (
    layer_flops, two_become_one, bytes_of_fusion,
    relu_rule, safe_softmax, batching_rule, missing_rule,
    one_kernel, no_table, in_place, compiled_once,
    tile_transpose, ragged_sum, accumulate, tile_traffic, merge_softmax,
)

__all__ = ["Exercise", "Folded", "Outcome", "forget", "names", "progress", *(e.name for e in EXERCISES)]


def names() -> list[str]:
    """The exercises, from the first to the last."""
    return [exercise.name for exercise in EXERCISES]


def progress() -> Shelf:
    """One row an exercise: level, exercise, task, state ("solved", "tried", "new"); drawn as shelves."""
    known = record.everything()
    rows = []
    for exercise in EXERCISES:
        entry = known.get(exercise.name, {"tries": 0, "solved": False})
        state = "solved" if entry["solved"] else "tried" if entry["tries"] else "new"
        level = f"{exercise.level} {LEVELS[exercise.level]}"
        rows.append((level, exercise.name, exercise.task, state))
    return Shelf(rows, columns=["level", "exercise", "task", "state"])
