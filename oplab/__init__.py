"""oplab, the operator laboratory: see what the machine really does with a line of JAX."""

from .doctor import doctor

__all__ = [
    "SavedWalk",
    "Stage",
    "Walk",
    "WalkError",
    "bench",
    "compare",
    "doctor",
    "exercises",
    "load_walk",
    "ops",
    "pallas",
    "ran",
    "roofline",
    "support",
    "walk",
]

try:
    from . import exercises, ops, pallas
    from .bench import bench
    from .compare import compare
    from .document import SavedWalk, load_walk
    from .ran import ran
    from .roofline import roofline
    from .stages.stage import Stage
    from .support import support
    from .tracing import WalkError
    from .walk import Walk, walk
except Exception as error:  # a broken JAX: the doctor must still be able to say so
    _broken = error

    def __getattr__(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        reason = f"{type(_broken).__name__}: {_broken}".splitlines()[0]
        raise ImportError(f"oplab.{name} could not be imported ({reason}): run `oplab doctor`.") from _broken
