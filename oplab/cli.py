"""The command `oplab`, for those who are not in a notebook.

    oplab doctor                                              is this machine ready? exit code 1 if it is not
    oplab lab                                                 JupyterLab on the notebooks
    oplab walk model.py:forward --arg f32[64,128] --arg x=3   a function, walked and saved as a page
    oplab diff a.json b.json                                  two saved walks: what differs

A mistake in what was typed, or a function that cannot be walked, is one sentence and exit code 2.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "pred": "bool",
    "bool": "bool",
}  # XLA's names, as HLO text spells them; NumPy's own are taken too
ARRAY = re.compile(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]")


class Mistake(Exception):
    """What a person typed cannot be done; the message is the whole answer."""


class Parser(argparse.ArgumentParser):
    def error(self, message):  # argparse would print the usage too, which hides the sentence
        raise Mistake(f"{message} (see {self.prog} --help)")


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0, 1 for a sick machine, 2 for a mistake."""
    try:
        options = parser().parse_args(argv)
        return options.command(options)
    except Mistake as mistake:
        print(f"oplab: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parser() -> Parser:
    top = Parser(prog="oplab", description="See what JAX and XLA really do with a function.")
    commands = top.add_subparsers(title="commands", metavar="doctor | lab | walk | diff", required=True)

    doctor = commands.add_parser("doctor", help="check this machine, and say how to cure what is wrong")
    doctor.set_defaults(command=run_doctor)

    lab = commands.add_parser("lab", help="open JupyterLab on the notebooks")
    lab.add_argument("folder", nargs="?", help="the folder to open (default: notebooks)")
    lab.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    lab.add_argument("--port", type=int, default=8888, help="or the next free one (default: %(default)s)")
    lab.set_defaults(command=run_lab)

    walk = commands.add_parser("walk", help="walk a function through the compiler and save the page")
    walk.add_argument("function", help="module:function or file.py:function")
    walk.add_argument(
        "--arg",
        "-a",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        dest="arguments",
        help="an argument, in order: an array such as f32[64,128], filled from a fixed seed, "
        "or a Python literal; with NAME= in front it goes in by keyword",
    )
    walk.add_argument(
        "--static",
        "-s",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a keyword argument that stays a Python value, as jit's static_argnames",
    )
    walk.add_argument(
        "--execute",
        type=int,
        nargs="?",
        const=20,
        default=0,
        metavar="REPEATS",
        help="run it too, and measure (20 times unless given)",
    )
    walk.add_argument("--output", "-o", default="walk.html", help="the page (default: %(default)s)")
    walk.add_argument(
        "--export",
        "-e",
        action="append",
        default=[],
        metavar="TOOL=FILE.json",
        help="write it for another tool too: model_explorer, or perfetto (with --execute)",
    )
    walk.set_defaults(command=run_walk)

    diff = commands.add_parser("diff", help="say what differs between two saved walks")
    diff.add_argument("left", help="a walk that was saved as .json")
    diff.add_argument("right", help="another")
    diff.add_argument("--output", "-o", help="save the difference as a page, too (.html)")
    diff.set_defaults(command=run_diff)
    return top


# The four commands


def run_doctor(options) -> int:
    from oplab.doctor import doctor

    report = doctor()
    print(report)
    return 0 if report.healthy else 1


def run_lab(options) -> int:
    folder = notebooks_folder(options.folder)
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        str(folder),
        f"--ServerApp.port={options.port}",
        "--LabApp.news_url=None",  # JupyterLab would ask the network for news, updates and extensions
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    command += ["--no-browser"] if options.no_browser else []
    command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # in a container
    if importlib.util.find_spec("jupyterlab") is None:
        raise Mistake("JupyterLab is not installed here; install it with: python -m pip install jupyterlab")
    print(f"oplab: JupyterLab opens on {folder.name}/ in your browser; Ctrl-C twice ends it", flush=True)
    env = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1"}  # the kernel of this Python, not of the user's home
    if os.name == "nt":
        return subprocess.call(command, env=env)
    os.execve(sys.executable, command, env)  # becomes JupyterLab, so that whoever ends this ends it


def run_walk(options) -> int:
    f = load_function(options.function)
    args, kwargs = [], {}
    for text in options.arguments:
        name, value = parse_argument(text)
        if name is None:
            args.append(value)
        else:
            kwargs[name] = value
    static = dict(map(parse_static, options.static))
    try:
        from oplab.walk import walk

        walked = walk(f, *args, static_argnames=tuple(static), **kwargs, **static)
        if options.execute:
            walked.execute(repeats=options.execute)
        print(walked.summary().to_string(index=False))
        print(f"oplab: saved {walked.save(options.output)}")
        for tool, _, path in (text.partition("=") for text in options.export):
            print(f"oplab: saved {', '.join(walked.export(tool, path))}")
    except Exception as error:
        if os.environ.get("OPLAB_DEBUG"):
            raise
        raise Mistake(f"{options.function}: {_sentence(error)}") from error
    return 0


def run_diff(options) -> int:
    """Exit code 0 whether or not the walks differ: a difference is an answer, not a mistake."""
    try:
        from oplab.document import load_walk

        difference = load_walk(options.left).diff(load_walk(options.right))
        print(difference)
        if options.output:
            print(f"oplab: saved {difference.save(options.output)}")
    except Exception as error:
        if os.environ.get("OPLAB_DEBUG"):
            raise
        raise Mistake(_sentence(error)) from error
    return 0


# Reading what was typed


def notebooks_folder(name: str | None) -> Path:
    """The folder that was named, or `notebooks` here, or beside the package in a checkout."""
    places = [Path(name)] if name else [Path("notebooks"), Path(__file__).parents[1] / "notebooks"]
    for place in places:
        if place.is_dir():
            return place.resolve()
    if name:
        raise Mistake(f"there is no folder {name} here")
    raise Mistake("there is no folder notebooks here; go to oplab's folder, or name one: oplab lab FOLDER")


def load_function(text: str):
    """`module:function` or `file.py:function`, with dots for what lies deeper: `model:Net.forward`."""
    place, colon, path = text.rpartition(":")
    if not (place and colon and path):
        raise Mistake(f"expected module:function or file.py:function, got {text!r}")
    try:
        found = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except Exception as error:
        raise Mistake(f"{place} cannot be imported: {_sentence(error)}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise Mistake(f"{place} has no {path}" + _callables(found))
        found = getattr(found, name)
    return found


def _callables(place) -> str:
    names = [name for name, value in vars(place).items() if callable(value) and not name.startswith("_")]
    return f"; it has {', '.join(names[:8])}" if names else ""


def _load_module(name: str):
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # the command starts without the current folder, python -m has it
    return importlib.import_module(name)


def _load_file(file: Path):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))  # its neighbours, as `python file.py` would have them
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def parse_argument(text: str):
    """("x", value) of "x=f32[8]"; (None, value) of "f32[8]" or "3". Arrays are the same on every run."""
    keyword = re.fullmatch(r"([A-Za-z_]\w*)=(.*)", text)
    name, text = keyword.groups() if keyword else (None, text)
    array = ARRAY.fullmatch(text.replace(" ", ""))
    return name, (_array(*array.groups()) if array else _literal(text))


def parse_static(text: str):
    name, _, value = text.partition("=")
    if not name.isidentifier() or not value:
        raise Mistake(f"--static expects NAME=VALUE such as causal=True, got {text!r}")
    return name, _literal(value)


def _literal(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise Mistake(
            f"expected an array such as f32[64,128] or a Python literal such as 3, 0.5 or True, got {text!r}"
        ) from None


def _array(dtype: str, dims: str):
    import jax
    import jax.numpy as jnp
    import numpy as np

    try:
        dtype = jnp.dtype(DTYPES.get(dtype, dtype))
    except TypeError:
        raise Mistake(f"unknown element type {dtype!r}; expected one of {', '.join(DTYPES)}") from None
    if dtype.itemsize == 8 * (1 + (dtype.kind == "c")) and not jax.config.jax_enable_x64:
        raise Mistake(f"{dtype.name} needs JAX's 64-bit mode: set JAX_ENABLE_X64=1")
    random = np.random.default_rng(0)
    shape = tuple(int(size) for size in dims.split(",") if size)
    if dtype.kind in "iub":
        return jnp.asarray(random.integers(0, 2 if dtype.kind == "b" else 10, shape), dtype)
    return jnp.asarray(random.standard_normal(shape), dtype)


def _sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
