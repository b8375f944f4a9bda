"""oplab, the operator laboratory: see what the machine really does with a line of JAX."""

from .bench import bench
from .doctor import doctor
from .document import SavedWalk, load_walk
from .stages.stage import Stage
from .walk import Walk, WalkError, walk

__all__ = ["SavedWalk", "Stage", "Walk", "WalkError", "bench", "doctor", "load_walk", "walk"]
