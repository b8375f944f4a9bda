"""The difference of two walks: what differs, in words, as a table and line by line, down to the assembly.

`difference.py` is the object that people hold; `renamed.py` compares lines with their names left out,
`pairing.py` says which kernel is which, `changes.py` makes the table, `wording.py` the paragraph.
"""

from .difference import STAGES, Difference

__all__ = ["STAGES", "Difference"]
