"""How much memory one call needs, read from the process and not from a plan.

The compiler's own plan (`compiled.memory_analysis()`) leaves out what a library allocates for itself, and
an operator-by-operator run has no plan at all. The operating system knows both: it keeps a high-water mark
of the pages that are really in memory. On Linux that mark can be set back to "now" by writing 5 to
/proc/self/clear_refs (see proc(5)), which makes it a stopwatch for memory; elsewhere a second thread looks
often.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's names for its switches, see mallopt(3)
PR_SET_THP_DISABLE, PR_GET_THP_DISABLE = 41, 42  # Linux's, see prctl(2)


def peak_bytes(call: Callable[[], Any], times: int = 3) -> tuple[int, str]:
    """Bytes by which this process grows at most during `call()`, and how that was read.

    The median of `times` calls, after one more that only drives out blocks that malloc had kept before. The
    result of the call counts too, since it has to lie somewhere. Linux counts pages per core and adds up now
    and then, so a call that needs less than some hundred KiB may read as zero.
    """
    with _freed_blocks_go_back():
        call()
        peaks, how = zip(*(_peak_of_one(call) for _ in range(times)), strict=True)
    return int(statistics.median(peaks)), how[0]


def _peak_of_one(call: Callable[[], Any]) -> tuple[int, str]:
    settle()
    before = _resident_bytes()
    try:
        with open("/proc/self/clear_refs", "w") as high_water_mark:
            high_water_mark.write("5")
    except OSError:
        return max(0, _sampled_peak(call) - before), "resident memory, sampled"
    call()
    with open("/proc/self/status") as status:
        peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return max(0, peak_kib * 1024 - before), "high-water mark"


@contextmanager
def _freed_blocks_go_back() -> Iterator[None]:
    """malloc keeps freed blocks of up to 32 MiB, and a call that lives in them would seem to need nothing.

    While we look, every block above 64 KiB comes from the system and goes back to it at once, in small pages:
    one touch of a huge page would count as 2 MiB. Afterwards the thresholds stand where glibc moves them by
    itself in a process that has freed a large array.
    """
    _switch(M_MMAP_THRESHOLD, 64 * 1024)
    _switch(M_TRIM_THRESHOLD, 64 * 1024)
    small_already = _prctl(PR_GET_THP_DISABLE)
    _prctl(PR_SET_THP_DISABLE, 1)
    try:
        yield
    finally:
        _prctl(PR_SET_THP_DISABLE, small_already or 0)
        _switch(M_MMAP_THRESHOLD, 32 * 1024**2)
        _switch(M_TRIM_THRESHOLD, 64 * 1024**2)


def _switch(name: int, value: int) -> None:
    with suppress(AttributeError, OSError, TypeError):  # other C libraries have no such switch
        ctypes.CDLL(None).mallopt(name, value)


def _prctl(name: int, value: int = 0) -> int | None:
    with suppress(AttributeError, OSError, TypeError):  # other systems have none
        return ctypes.CDLL(None).prctl(name, value, 0, 0, 0)
    return None


def settle() -> None:
    """Wait for XLA, which frees a result on another thread, some time after Python has let go of it; and have
    malloc give back what it keeps.
    """
    seen: list[int] = []
    while len(seen) < 3 or (seen[-1] < seen[-3] and len(seen) < 100):  # until it stands still for two looks
        time.sleep(0.02)
        with suppress(AttributeError, OSError, TypeError):
            ctypes.CDLL(None).malloc_trim(0)
        seen.append(_resident_bytes())


def _resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def _sampled_peak(call: Callable[[], Any]) -> int:
    """Largest resident size seen every half millisecond from a second thread: may miss a short peak."""
    done, seen = threading.Event(), [_resident_bytes()]

    def watch() -> None:
        while not done.wait(0.0005):
            seen.append(_resident_bytes())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        result = call()  # kept alive until memory has been read once more
        seen.append(_resident_bytes())
        del result
    finally:
        done.set()
        watcher.join()
    return max(seen)
