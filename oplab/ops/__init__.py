"""The operators, each in a file of its own. Start with relu.py: it shows a whole one.

    ops.softmax(x, axis=-1, implementation="pallas")     each is a function of this package
    ops.catalogue()                                      all of them, with what runs them where
"""

import pandas as pd

from . import attention, bias_add, conv2d, layer_norm, matmul, relu, softmax
from .operator import MAP, Operator, Unsupported

CATALOGUE: dict[str, Operator] = {
    file.OPERATOR.name: file.OPERATOR
    for file in (relu, matmul, bias_add, softmax, layer_norm, conv2d, attention)
}

# From here on these names are the functions; what else is in their files is imported from there.
relu, matmul, bias_add = relu.relu, matmul.matmul, bias_add.bias_add
softmax, layer_norm, conv2d = softmax.softmax, layer_norm.layer_norm, conv2d.conv2d
attention = attention.attention

__all__ = [
    "CATALOGUE",
    "Operator",
    "Unsupported",
    "attention",
    "bias_add",
    "catalogue",
    "conv2d",
    "layer_norm",
    "matmul",
    "relu",
    "softmax",
]


class Catalogue(pd.DataFrame):
    """The table that `catalogue` returns: it shows no row numbers, for its rows have names. A part of it is a
    plain DataFrame."""

    @property
    def _constructor(self) -> type:
        return pd.DataFrame

    def __repr__(self) -> str:
        return self.to_string(index=False)

    def _repr_html_(self) -> str:
        return self.to_html(index=False)


def catalogue() -> Catalogue:
    """One row for each operator: its name, its formula, its operands, the axes of the first of them, and for
    each implementation the platforms that it has an entry for ("any": whatever compiles StableHLO).

    An entry may still refuse a dtype or a shape: `oplab.support()` asks by lowering.
    """
    rows = []
    for name, operator in CATALOGUE.items():
        axes = ", ".join(next(iter(operator.example.values())))
        entries = {implementation: ", ".join(rules) for implementation, rules in MAP[name].items()}
        rows.append((name, operator.formula, ", ".join(operator.example), axes, entries))
    table = pd.DataFrame(rows, columns=["operator", "formula", "operands", "axes", "entries"])
    return Catalogue(table.join(pd.DataFrame(list(table.pop("entries")))).fillna(""))
