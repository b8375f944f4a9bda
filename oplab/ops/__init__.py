"""The operators, each in a file of its own. Start with relu.py: it shows a whole one."""

from importlib import import_module

from .operator import Operator, Unsupported

__all__ = ["CATALOGUE", "Operator", "Unsupported"]
CATALOGUE: dict[str, Operator] = {}
for _name in ("relu", "matmul", "bias_add", "softmax", "layer_norm", "conv2d", "attention"):
    try:
        CATALOGUE[_name] = import_module(f"{__name__}.{_name}").OPERATOR
    except ModuleNotFoundError:
        continue
    globals()[_name] = CATALOGUE[_name].function
