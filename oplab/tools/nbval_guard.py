"""A pytest plugin that closes the traps of nbval 0.11.0; `make test-notebooks` loads it with `-p`.

1. nbval waits out the whole time limit of a cell whose kernel has died; here that is noticed within a second.
2. nbval compares nothing in a notebook whose outputs were stripped, and passes it; here such a cell fails.
3. xdist hands the cells of one notebook to several workers, and names go missing; here it keeps files whole.
4. nbval runs cells outside the history, where IPython does not honour a `;` at the end; here it does.
5. The kernel would read this person's startup files and print what varies; here it gets clean settings, and
   OPLAB_STABLE=1.
6. Two kernels that start at once may be given the same port, and one dies before its first cell; here another
   is started.
"""

import os
import sys
import tempfile
from queue import Empty

import nbval.kernel
import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell

LOOK_EVERY_S = 1.0
STARTS = 3


def pytest_configure(config):
    workers, spread = getattr(config.option, "numprocesses", None), getattr(config.option, "dist", "no")
    if workers and spread != "loadfile":
        raise pytest.UsageError("notebooks need --dist loadfile beside -n: a cell needs the cells before it")
    if config.option.color == "auto" and not sys.stdout.isatty():
        config.option.color = "no"  # nbval paints its messages in log files too
    os.environ.setdefault("OPLAB_STABLE", "1")
    settings = tempfile.TemporaryDirectory(prefix="oplab-ipython-")
    os.environ["IPYTHONDIR"] = settings.name
    config.add_cleanup(settings.cleanup)
    nbval.kernel.start_new_kernel = start_again
    RunningKernel.get_message = get_message_while_alive
    RunningKernel.execute_cell_input = execute_in_history


start_new_kernel = nbval.kernel.start_new_kernel


def start_again(*args, **kwargs):
    """nbval's own `start_new_kernel`, again where the kernel died before it said a word."""
    for _ in range(STARTS - 1):
        try:
            return start_new_kernel(*args, **kwargs)
        except RuntimeError as error:
            if "died" not in str(error):  # a kernel that is slow will be slow again
                raise
    return start_new_kernel(*args, **kwargs)


get_message = RunningKernel.get_message


def get_message_while_alive(kernel, stream, timeout=None):
    """nbval's own `get_message`, a second at a time, with a look at the kernel in between."""
    waited = 0.0
    while True:
        slice_s = LOOK_EVERY_S if timeout is None else min(LOOK_EVERY_S, timeout - waited)
        try:
            return get_message(kernel, stream, timeout=slice_s)
        except Empty:
            waited += slice_s
            if not kernel.is_alive():
                raise RuntimeError("the kernel died in this cell (out of memory, or killed)") from None
            if timeout is not None and waited >= timeout:
                raise


def execute_in_history(kernel, cell_input, allow_stdin=None):
    return kernel.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)


def pytest_runtest_setup(item):
    if isinstance(item, IPyNbCell) and item.cell.execution_count is None and not item.options["skip"]:
        pytest.fail("this cell was stored without a run to compare with: make outputs", pytrace=False)
