"""The one error of this package: there is no native attention here, and why."""


class Unavailable(RuntimeError):
    """There is no native library. The text is one sentence; `cure` is the command that helps, if one does."""

    def __init__(self, why: str, cure: str = ""):
        super().__init__(why)
        self.cure = cure


class SwitchedOff(Unavailable):
    """Somebody asked for no native library, and knows."""
