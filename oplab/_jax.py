"""The seam: every private or moving JAX name that oplab uses stands here, and nowhere else.

Each function says what it borrows and which versions differ; JAX 0.10.2 (Python 3.11) to 0.12.x are
supported. When a new JAX moves one of these names, this is the only file to mend.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax._src import compilation_cache, core, source_info_util
from jax._src.lib import xla_client

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
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

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
