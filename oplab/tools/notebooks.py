"""Runs the notebooks from the command line.

    python -m oplab.tools.notebooks run notebooks --to build/notebooks    as a learner does, results elsewhere
    python -m oplab.tools.notebooks store notebooks                       in place, as the tests compare them

Each notebook runs in a kernel of this Python, whatever kernels are registered on this machine. One that
fails, takes too long or loses its kernel does not stop the others, and makes the exit code 1; so does one
that needs more memory than a learner on a shared hub has.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat
import psutil
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from traitlets import default

CELL_LIMIT_S = 300
MEMORY_LIMIT_MIB = 800
LOOK_EVERY_S = 0.05


class ThisPython(KernelSpecManager):
    """Knows one kernel: the Python that runs this file."""

    def get_kernel_spec(self, kernel_name):
        calm = ["--IPKernelApp.log_level=40"]  # errors only
        return self.kernel_spec_class(resource_dir=RESOURCES, **get_kernel_dict(calm))


class KernelOfThisPython(AsyncKernelManager):
    @default("kernel_spec_manager")
    def _default_kernel_spec_manager(self):
        return ThisPython()


def execute(notebook, folder):
    """Runs every cell in `folder`, outputs into the notebook. Returns None, or a line on what went wrong."""
    at = 0

    def on_cell_start(cell, cell_index):
        nonlocal at
        at = cell_index + 1  # counted from 1 over all cells, as a reader does

    client = NotebookClient(
        notebook, kernel_manager_class=KernelOfThisPython, kernel_name="python3", timeout=CELL_LIMIT_S,
        record_timing=False, coalesce_streams=True, on_cell_start=on_cell_start,
        resources={"metadata": {"path": str(folder)}})
    try:
        client.execute()
    except CellExecutionError as error:
        return f"cell {at} raised {error.ename}: {error.evalue}"
    except CellTimeoutError:
        return f"cell {at} took more than {CELL_LIMIT_S} seconds"
    except DeadKernelError:
        return f"the kernel died in cell {at} (out of memory, or killed)"
    return None


class PeakMemory(threading.Thread):
    """While open, notes the most memory that the processes begun by this one held at one moment: `mib`.

    A page that several of them share counts once in all (proportional set size, Linux); elsewhere only what
    each has for itself is known. What came and went between two looks is missed.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.mib, self.over = 0, threading.Event()

    def run(self):
        while not self.over.wait(LOOK_EVERY_S):
            self.mib = max(self.mib, sum(map(held, psutil.Process().children(recursive=True))) >> 20)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *trouble):
        self.over.set()
        self.join()


def held(process):
    """Bytes of memory that are this process's own, with its part of what it shares; 0 once it has ended."""
    try:
        memory = process.memory_full_info()
    except psutil.Error:
        return 0
    return getattr(memory, "pss", memory.uss)


def too_much(mib):
    """A line on a notebook that needs too much memory, or None: where JAX has plugins for accelerators, these
    alone may take more than that.
    """
    if mib > MEMORY_LIMIT_MIB and importlib.util.find_spec("jax_plugins") is None:
        return f"it held {mib} MiB of memory, {MEMORY_LIMIT_MIB} is what a learner on a hub may hold"
    return None


def tidy(notebook):
    """Leaves only what is the same on every machine: little metadata, and of an error its message."""
    notebook.metadata = nbformat.from_dict({
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    })
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in ("tags", "alt")})
        for output in cell.get("outputs", ()):
            if output.output_type == "error":  # the traceback names files of this machine; nbval skips it
                output.traceback = [f"{output.ename}: {output.evalue}"]
    return notebook


def find(places):
    """Notebook files: those named, and those in the folders named, in the order of their names."""
    for place in map(Path, places):
        yield from [place] if place.is_file() else sorted(place.glob("*.ipynb"))


def run_all(files, finish):
    """Runs each notebook and hands those that ran, or failed, to `finish`. Returns how many failed."""
    failed = 0
    for number, file in enumerate(files, 1):
        print(f"[{number}/{len(files)}] {file.name} ...", end=" ", flush=True)
        notebook, started = nbformat.read(file, as_version=4), time.monotonic()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        with PeakMemory() as memory:
            trouble = execute(notebook, file.parent)
        trouble = trouble or too_much(memory.mib)
        said = f"FAILED, {trouble}" if trouble else "ok"
        print(f"{said} ({time.monotonic() - started:.0f} s, at most {memory.mib} MiB)", flush=True)
        failed += trouble is not None
        finish(file, notebook, trouble)
    return failed


def save_results(folder):
    """A `finish` that writes the executed notebook and a page of it into `folder`."""
    from nbconvert import HTMLExporter

    folder.mkdir(parents=True, exist_ok=True)
    export = HTMLExporter(mathjax_url="", require_js_url="", mermaid_js_url="")  # a page that asks no network

    def finish(file, notebook, trouble):
        nbformat.write(notebook, folder / file.name)
        page, _ = export.from_notebook_node(notebook)
        (folder / file.with_suffix(".html").name).write_text(page, encoding="utf-8")

    return finish


def store_outputs(file, notebook, trouble):
    """A `finish` that writes the notebook back where it came from, unless it failed."""
    if trouble is None:
        nbformat.write(tidy(notebook), file)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m oplab.tools.notebooks", description="Run notebooks.")
    parser.add_argument("verb", choices=["run", "store"])
    parser.add_argument("places", nargs="+", type=Path, help="notebooks, or folders of them")
    parser.add_argument("--to", type=Path, default=Path("build/notebooks"), help="where `run` writes")
    options = parser.parse_args(argv)
    files = list(find(options.places))
    if not files:
        sys.exit(f"there is no notebook in {', '.join(map(str, options.places))}")
    with tempfile.TemporaryDirectory(prefix="oplab-jupyter-") as settings:  # not this person's startup files
        os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = settings
        if options.verb == "store":
            os.environ["OPLAB_STABLE"] = "1"
            failed = run_all(files, store_outputs)
        else:
            failed = run_all(files, save_results(options.to))
            print(f"executed notebooks, and a page of each: {options.to}/")
    if failed:
        sys.exit(f"{failed} of {len(files)} notebooks failed")


if __name__ == "__main__":
    main()
