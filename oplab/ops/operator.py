"""What an operator is: an act with a name, what it means, and a map from the act to the code that does it.

The map has two keys, an *implementation* ("xla", "pallas", "native") and a *platform* ("cpu", "cuda", "rocm",
"tpu"). Its entries are lowering rules: functions that write StableHLO for one equation of a jaxpr. "Operator
not supported" means that the map has no entry.

    lower(relu_p, xla=relu_stablehlo, pallas={"cpu": ..., "tpu": ...})

gives a primitive its entries. Nothing falls back silently: an implementation asked for by name runs or raises
`Unsupported`; only `implementation=None` leaves the choice to oplab. What was chosen stands in the name of
every op that was written ("jit(f)/pallas/softmax/exp"), from StableHLO down to the optimised HLO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend.core import Primitive

from .._jax import exported, lowering_scope, mlir, partitioned, with_sharding

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
IMPLEMENTATIONS = ("xla", "pallas", "native")


class Unsupported(NotImplementedError):
    """The map from act to kernel has no entry here; the sentence says which one would do."""


@dataclass(frozen=True)
class Operator:
    """One line of the catalogue."""

    name: str  # the primitive's name too, as jaxprs print it
    function: Callable  # what users call
    reference: Callable  # the mathematics in jax.numpy; every implementation must agree with it
    primitive: Primitive
    example: Mapping[str, Mapping[str, int]]  # operand -> {axis: size}
    formula: str


# The map ----------------------------------------------------------------------------------------------------

# primitive -> implementation -> platform or "any" -> rule
MAP: dict[str, dict[str, dict[str, Callable]]] = {}


def lower(primitive: Primitive, best: Callable | None = None, **implementations: Any) -> None:
    """Register lowering rules: one for any platform, or a dictionary by platform, for each implementation.

    A rule is `rule(ctx, *values, **params) -> values`, as `mlir.register_lowering` wants it.
    `best(platform, avals, params)` names what `implementation=None` means; without it, and where XLA is to
    cut the program over devices, that is "xla". "native" code stays here, so an exported program has none.
    """
    table = {
        name: rules if isinstance(rules, dict) else {"any": rules} for name, rules in implementations.items()
    }
    MAP[primitive.name] = table
    for platform in PLATFORMS:
        mlir.register_lowering(primitive, partial(_lower, table, best, platform), platform=platform)
    # Plugins bring other platforms. Whoever compiles StableHLO can compile what "xla" writes.
    mlir.register_lowering(primitive, partial(_lower, table, best, "any"))


def _lower(
    table: dict,
    best: Callable | None,
    platform: str,
    ctx: Any,
    *values: Any,
    implementation: str | None,
    **params: Any,
) -> list[Any]:
    name = implementation or _best(best, platform, ctx, params)
    rules = table.get(name, {})
    rule = rules.get(platform) or rules.get("any")
    if rule is None:
        here = "this platform" if platform == "any" else platform
        raise Unsupported(no_entry(ctx.primitive.name, name, here))
    with lowering_scope(ctx, name) as inside:
        written = rule(inside, *values, **params)
    return with_sharding(ctx, written)


def _best(best: Callable | None, platform: str, ctx: Any, params: dict) -> str:
    if best is None or partitioned(ctx):
        return "xla"
    name = best(platform, ctx.avals_in, params)
    return "xla" if name == "native" and exported(ctx) else name


def no_entry(operator: str, implementation: str, platform: str) -> str:
    here = [name for name, rules in MAP[operator].items() if platform in rules or "any" in rules]
    elsewhere = ", ".join(MAP[operator].get(implementation, ()))
    where = f" (it has one on {elsewhere})" if elsewhere else ""
    return (
        f"{operator} has no {implementation!r} implementation on {platform}{where}: "
        f"use implementation={' or '.join(map(repr, here))} there."
    )


TPU_TYPES = {"float32", "bfloat16", "int32", "uint32", "bool"}  # what Mosaic compiles loads of


def by_pallas(launcher: Callable, multiple_results: bool = False, **others: Callable) -> dict[str, Callable]:
    """The entries of a Pallas kernel: compiled by Mosaic on TPU, run by Pallas' interpreter on CPU.

    launcher(*operands, interpret, **params). `others` are launchers for further platforms. An entry keeps its
    launcher, since whoever reads the kernel needs it before it is lowered.
    """

    def on_tpu(*operands: Any, **params: Any) -> Any:
        refused = sorted({str(x.dtype) for x in operands} - TPU_TYPES)
        if refused:
            raise Unsupported(
                f"kernels for TPU take float32, bfloat16 and int32, not {' or '.join(refused)}: "
                "convert the operands, or use implementation='xla'."
            )
        with jax.enable_x64(False):  # a literal 0 in an index map would be an int64, which Mosaic refuses
            return launcher(*operands, interpret=False, **params)

    def entry(f: Callable) -> Callable:
        rule = mlir.lower_fun(f, multiple_results)
        rule.launcher = f
        return rule

    by_platform = {"cpu": partial(launcher, interpret=True), "tpu": on_tpu, **others}
    return {platform: entry(f) for platform, f in by_platform.items()}


# Checks that every operator makes before it binds -----------------------------------------------------------


def check_implementation(operator: str, implementation: str | None) -> None:
    if implementation is not None and implementation not in MAP[operator]:
        known = " or ".join(map(repr, MAP[operator]))
        raise ValueError(
            f"{operator} has no implementation {implementation!r}: give {known}, or None for the best."
        )


def check_floating(operator: str, **arrays: Any) -> None:
    for name, array in arrays.items():
        if array is not None and not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{operator} expects floating-point numbers, but {name} is {array.dtype}{list(array.shape)}: "
                f"convert it first, for instance with {name}.astype(jnp.float32)."
            )


def normal_axes(operator: str, axis: int | tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Axes counted from the front, sorted; refuses one that is not there or stands twice."""
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    wrong = [a for a in axes if not isinstance(a, int) or not -ndim <= a < ndim]
    if wrong or not axes or len({a % ndim for a in axes}) < len(axes):
        raise ValueError(
            f"{operator} expects axes of an array with {ndim} dimensions ({-ndim} to {ndim - 1}, each once), "
            f"got axis={axis}."
        )
    return tuple(sorted(a % ndim for a in axes))
