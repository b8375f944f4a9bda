"""The seam: every private or moving JAX name that oplab uses stands here, and nowhere else.

Each function says what it borrows and which versions differ; JAX 0.10.2 (Python 3.11) to 0.12.x are
supported. When a new JAX moves one of these names, this is the only file to mend.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax._src import compilation_cache, config, core, dispatch, source_info_util, xla_bridge
from jax._src.interpreters import mlir as mlir_internals
from jax._src.lib import xla_client
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo  # the StableHLO ops, one Python function each
from jax.interpreters import ad, batching, mlir  # the registries of rules: half public, and their names move

__all__ = ["ad", "batching", "hlo", "ir", "mlir"]  # for oplab/ops, whose rules stand in plain sight there

OLDEST, NEWEST = (0, 10, 2), (0, 13)  # supported: OLDEST <= version < NEWEST


class Frame(NamedTuple):
    """One line of Python on the way to an equation. Lines count from 1, columns from 0."""

    file: str
    function: str
    line: int
    column: int
    end_line: int


# Open and closed jaxprs alike: 0.12 has one class for both, 0.10 has `Jaxpr` and `ClosedJaxpr`.
_JAXPRS = tuple({core.Jaxpr, getattr(core, "ClosedJaxpr", core.Jaxpr)})
_CONTAINERS = (tuple, list, dict)


def is_jaxpr(value: Any) -> bool:
    return isinstance(value, _JAXPRS)


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr without its constants: `ClosedJaxpr.jaxpr` in 0.10, itself in 0.12."""
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def sub_jaxprs(params: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every jaxpr in an equation's params, with its path: ("jaxpr", j), ("branches.0", j), ...

    Libraries hide jaxprs in tuples, lists, dicts and named tuples (`custom_linear_solve` has one), so all are
    searched.
    """
    for key, value in params.items():
        if isinstance(value, _JAXPRS):
            yield str(key), value
        elif isinstance(value, _CONTAINERS):  # most parameters are neither, and this is asked often
            yield from _jaxprs_in(value, str(key))


def _jaxprs_in(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if is_jaxpr(value):
        yield path, value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field, item in zip(value._fields, value, strict=True):
            yield from _jaxprs_in(item, f"{path}.{field}")
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _jaxprs_in(item, f"{path}.{i}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _jaxprs_in(item, f"{path}.{key}")


def map_jaxprs(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with each jaxpr inside replaced by `change(jaxpr)`; the very same object when there is none."""
    if is_jaxpr(value):
        return change(value)
    if not isinstance(value, _CONTAINERS):
        return value
    if isinstance(value, (tuple, list)):
        items = [map_jaxprs(item, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        items = {key: map_jaxprs(item, change) for key, item in value.items()}
        return value if all(items[k] is value[k] for k in value) else type(value)(items)
    return value


def with_equations(jaxpr: Any, equations: list[Any]) -> Any:
    """The same jaxpr, constants and all, with other equations."""
    inner = open_jaxpr(jaxpr)
    new = inner.replace(eqns=equations)
    return new if inner is jaxpr else jaxpr.replace(jaxpr=new)


def with_scope(equation: Any, scope: str, params: dict[str, Any]) -> Any:
    """The same equation, with `scope` before its own name stack and with `params`.

    The scope goes in front: a transformation mark such as `jvp()` wraps the scope after it, and must go on
    doing so.
    """
    info = equation.source_info
    stack = source_info_util.NameStack().extend(scope) + info.name_stack
    return equation.replace(params=params, source_info=info.replace(name_stack=stack))


def name_stack(equation: Any) -> str:
    return str(equation.source_info.name_stack)


def frames(equation: Any) -> list[Frame]:
    """The Python frames that led to an equation, innermost first, without JAX's own and the standard
    library's.
    """
    return [
        Frame(f.file_name, f.function_name, f.start_line, f.start_column, f.end_line)
        for f in source_info_util.user_frames(equation.source_info.traceback)
    ]


def hide_frames(file: str) -> None:
    """Leave a file out of what JAX takes for the user's frames, as it does with its own files."""
    source_info_util.register_exclusion(file)


def with_jaxpr(traced: Any, jaxpr: Any) -> Any:
    """`jax.stages.Traced` with another jaxpr: arguments, donation, shardings and static values stay as they
    were.
    """
    new = copy.copy(traced)
    new._params = {**traced._params, "jaxpr": jaxpr}
    new._lojax = None  # the low-level form is made again, from the new jaxpr
    return new


_no_cache_lock = threading.RLock()


@contextlib.contextmanager
def no_persistent_cache() -> Iterator[None]:
    """Compile for real: neither read the persistent compilation cache nor write to it.

    A warm cache suppresses XLA's dumps, and its key ignores metadata: a tagged program would be answered with
    an untagged one, or be stored in its place. The public switch is looked at only once per process, hence
    the module's own flags.
    """
    with _no_cache_lock:
        saved = compilation_cache._cache_checked, compilation_cache._cache_used
        compilation_cache._cache_checked, compilation_cache._cache_used = True, False
        try:
            yield
        finally:
            compilation_cache._cache_checked, compilation_cache._cache_used = saved


def stablehlo_text(lowered: Any) -> str:
    """The StableHLO module with its locations; MLIR itself elides constants of more than 16 elements."""
    operation = lowered.compiler_ir("stablehlo").operation
    return operation.get_asm(enable_debug_info=True, large_elements_limit=16)


def stablehlo_bytes(lowered: Any) -> bytes:
    """The StableHLO module in MLIR's bytecode, constants whole: what another process needs to compile it."""
    import io

    file = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(file)
    return file.getvalue()


def compile_bytes(module: bytes, options: dict[str, str]) -> None:
    """Compile StableHLO bytecode for one CPU device, for the sake of the files that `options` ask for."""
    from jax._src import compiler

    backend = jax.local_devices(backend="cpu")[0].client
    compile_options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, env_options_overrides=options
    )
    with mlir.make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        devices = xla_client.DeviceList((jax.local_devices(backend="cpu")[0],))
        compiler.backend_compile_and_load(backend, parsed, devices, compile_options, [])


def version() -> tuple[int, ...]:
    return jax.version.__version_info__


# What an operator needs to become a primitive ---------------------------------------------------------------


def eager(primitive: Any) -> Callable:
    """The rule for plain Python calls: compile the primitive alone, keep what was compiled, run it."""
    return functools.partial(dispatch.apply_primitive, primitive)


def same_axes(*arrays: Any) -> tuple[Any, ...]:
    """Inside `shard_map`: arrays that are the same on every shard are marked as varying, where one varies.

    JAX's own operators do so before they bind (the name was `standard_insert_pvary` before 0.10).
    """
    return tuple(core.auto_insert_reshard(*arrays))


def derived(aval: Any, shape: tuple[int, ...], dtype: Any, dims: tuple[int | None, ...]) -> Any:
    """An aval of another shape, whose dimension i is sharded as dimension `dims[i]` of `aval` (None: not)."""
    spec = (*aval.sharding.spec, *[None] * aval.ndim)
    spec = jax.sharding.PartitionSpec(*(None if d is None else spec[d] for d in dims))
    return aval.update(shape=shape, dtype=dtype, weak_type=False, sharding=aval.sharding.update(spec=spec))


def is_zero(tangent: Any) -> bool:
    """A tangent or cotangent known to be zero, which JAX never makes into an array."""
    return type(tangent) is ad.Zero


def zero_like(primal: Any) -> Any:
    """The symbolic zero among the tangents of `primal`; for integers its dtype is float0."""
    return ad.Zero.from_primal_value(primal)


def instantiated(tangent: Any) -> Any:
    """A tangent as an array, zeros and all."""
    return ad.instantiate_zeros(tangent)


def in_front(operands: Any, dims: Any) -> list[Any]:
    """Operands of a batching rule with the mapped axis first; one that is not mapped (None) is repeated."""
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    return [batching.bdim_at_front(x, d, size) for x, d in zip(operands, dims, strict=True)]


@contextlib.contextmanager
def lowering_scope(ctx: Any, name: str) -> Iterator[Any]:
    """Every op lowered inside is named after `name` and the primitive: "jit(f)/pallas/softmax/exp".

    `mlir.lower_fun` alone loses the primitive's name. Manual axes and shardings are taken off the operands'
    avals, and not asked for, because the kernel is written for the shard that it is given.
    """
    stack = ctx.name_stack.extend(name).extend(ctx.primitive.name)
    avals = [core.ShapedArray(a.shape, a.dtype, weak_type=a.weak_type) for a in ctx.avals_in]
    location = mlir_internals.source_info_to_location(ctx.module_context, None, stack, ctx.traceback)
    no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    with location, config._check_vma(False), no_mesh:
        yield ctx.replace(name_stack=stack, avals_in=avals)


def partitioned(ctx: Any) -> bool:
    """Will XLA cut this program over several devices? It cannot cut a call of code that it does not know."""
    context = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):  # inside shard_map: every axis that is not manual is XLA's
        return set(context.mesh.axis_names) != set(context.manual_axes)
    return (getattr(context, "num_devices", None) or 1) > 1


def exported(ctx: Any) -> bool:
    """Is this lowering for jax.export, to be run by another process, perhaps another machine?"""
    return ctx.module_context.lowering_parameters.for_export


def with_sharding(ctx: Any, values: Any) -> list[Any]:
    """Results of a lowering, constrained to the sharding in their avals (a mesh with explicit axes)."""
    values = [getattr(value, "result", value) for value in values]
    constrain = mlir_internals.lower_with_sharding_in_types
    return [constrain(ctx, value, aval) for value, aval in zip(values, ctx.avals_out, strict=True)]


def full(ctx: Any, value: float, aval: Any) -> Any:
    """A StableHLO constant of an aval's shape and dtype, symbolic dimensions included."""
    return mlir_internals.full_like_aval(ctx, value, aval)


def broadcast(ctx: Any, value: Any, aval: Any, dims: tuple[int, ...]) -> Any:
    """StableHLO's broadcast_in_dim to an aval's shape: dimension i of `value` becomes `dims[i]`."""
    return mlir_internals.broadcast_in_dim(ctx, value, aval, broadcast_dimensions=dims)


def convert(ctx: Any, value: Any, aval: Any, dtype: Any) -> tuple[Any, Any]:
    """StableHLO's convert, and the aval of what it gives; nothing when the dtype is right already."""
    if aval.dtype == dtype:
        return value, aval
    aval = aval.update(dtype=dtype, weak_type=False)
    return hlo.convert(mlir.aval_to_ir_type(ctx.module_context, aval), value), aval


def has_backend(platform: str) -> bool:
    """Does this JAX know a backend of that name, present or not? Lowering itself accepts any string."""
    return xla_bridge.is_known_platform(platform)
