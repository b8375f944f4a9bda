"""Tracing whatever `jax.jit` takes, with errors that a person can read.

JAX's own errors are right and long; a learner needs the first sentence, their own line, and what to do. The
whole error stays as the cause.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax

from . import _jax
from .display import reason
from .stages import script

_jax.hide_frames(__file__)  # whoever traces is the lab, not the experiment


class WalkError(ValueError):
    """A function that cannot be walked, or a walk asked for what it cannot give. JAX's error is its cause."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence, and the reader's own line if it is to blame."""
        where = script.blamed(self.__cause__)
        line = [f"    {where.file}, line {where.line}:  {where.text.strip()}"] if where else []
        return [f"WalkError: {self}", *line]


def jitted(f: Callable, given: dict[str, Any]) -> Any:
    """`f` under `jax.jit` with the options given, or itself when it is jitted already."""
    if hasattr(f, "trace") and hasattr(f, "lower"):
        if given:
            raise WalkError(
                f"{readable_name(f)} is jitted already, so {', '.join(given)} cannot be added: give them to "
                "its own jax.jit, or walk the function inside."
            )
        return f
    try:
        hash(f)
    except TypeError:  # a callable object that compares by value
        inner = f
        f = functools.wraps(inner)(lambda *args, **kwargs: inner(*args, **kwargs))
    return jax.jit(f, **given)


def trace(jitted: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """`jax.stages.Traced` of a jitted function; WalkError where JAX cannot trace it."""
    try:
        return jitted.trace(*args, **kwargs)
    except RecursionError as error:
        raise WalkError(
            f"{name} is nested too deeply for Python's recursion limit; raise it with sys.setrecursionlimit, "
            "or nest fewer jitted functions."
        ) from error
    except Exception as error:
        hint = ""
        if not args and not kwargs:
            hint = f" It was given no arguments: write oplab.walk({name}, x, ...) with example arrays."
        raise WalkError(
            f"{name} could not be traced, {type(error).__name__}: {reason(error)[:600]}{hint}"
        ) from error


@contextlib.contextmanager
def plain_errors(name: str, verb: str):
    """What goes wrong below is said in one sentence, with the compiler's own error as its cause."""
    try:
        yield
    except WalkError:
        raise
    except RecursionError as error:
        raise WalkError(
            f"{name} is nested too deeply to be {verb} within Python's recursion limit; raise it with "
            "sys.setrecursionlimit, or nest fewer jitted functions."
        ) from error
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        if "No such compile option" in first:
            option = first.rsplit(":", 1)[-1].strip().strip("'\"")
            raise WalkError(
                f"XLA does not know the compile option {option}: check its spelling in options={{...}}."
            ) from error
        raise WalkError(f"{name} could not be {verb}, {type(error).__name__}: {first[:400]}") from error


@contextlib.contextmanager
def on(target: str):
    """Trace and lower for the target's first device, also where another backend is the default one."""
    if target == jax.default_backend():
        yield
    else:
        with jax.default_device(jax.local_devices(backend=target)[0]):
            yield


def readable_name(f: Callable) -> str:
    """A readable name: of the function inside a partial, of the class of a callable object."""
    while isinstance(f, functools.partial):
        f = f.func
    if inspect.ismethod(f):
        return (
            f"{type(f.__self__).__name__}.{f.__name__}" if not inspect.isclass(f.__self__) else f.__qualname__
        )
    return getattr(f, "__name__", None) or type(f).__name__


def kind(value: Any) -> str:
    """What somebody gave, in words."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of {value.dtype}{list(value.shape)}"
    return f"{type(value).__name__} {value!r:.60}"
