"""What this machine grants to this process: memory, time on its cores, folders, packages, a JAX that runs.

A container or a hub sets limits that `os.cpu_count()` and the total memory do not show; they stand in cgroup
files (versions 1 and 2). Needs only the standard library; what cannot be read is left out.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CGROUPS, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
PATIENCE_S = 120  # for JAX to start, be profiled once and answer


def memory() -> tuple[float, float, float]:
    """(total, limit, free) in bytes: the machine's, what a cgroup grants of it, and what nobody uses now."""
    try:
        import psutil

        now = psutil.virtual_memory()
        total, free = now.total, now.available
    except ImportError:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    granted = _cgroup_files("memory", "memory.max", "memory.limit_in_bytes")
    limits = [int(text) for text in granted if text.isdigit()]  # not "max"; version 1 has a huge number
    return total, min([total, *limits]), free


def cores() -> tuple[int, int, float | None]:
    """(there, allowed, quota): the machine's cores, those this process may use, and the time granted on them.

    The quota counts cores: 1.5 lets two cores work three quarters of the time. None where there is no quota.
    """
    there = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    pairs = [tuple(text.split()) for text in _cgroup_files("cpu", "cpu.max")]  # version 2: "150000 100000"
    amounts = _cgroup_files("cpu", None, "cpu.cfs_quota_us")  # version 1: two files
    pairs += zip(amounts, _cgroup_files("cpu", None, "cpu.cfs_period_us"), strict=False)
    granted = [int(amount) / int(period) for amount, period in pairs if amount.isdigit()]  # not "max" or -1
    return there, allowed, min(granted, default=None)


def _cgroup_files(controller: str, version2: str | None, version1: str | None = None) -> Iterator[str]:
    """The text of a limit's file in this process's cgroup and in each one above it."""
    lines = OWN_CGROUP.read_text().splitlines() if OWN_CGROUP.exists() else []
    for line in lines:  # "4:memory:/folder" in version 1, "0::/folder" in version 2
        _, controllers, path = line.split(":", 2)
        root, name = (CGROUPS, version2) if controllers == "" else (CGROUPS / controllers, version1)
        if name is None or (controllers and controller not in controllers.split(",")):
            continue
        here = Path(path.lstrip("/"))
        for level in (here, *here.parents):
            file = root / level / name
            if file.is_file():
                yield file.read_text().strip()


def writable(folder: Path) -> bool:
    """Really writes, since root and network drives make permissions lie. A missing folder asks its parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"oplab")
        return True
    except OSError:
        return False


def installed() -> dict[str, str]:
    """{name: version} of every installed distribution, names in lower case with dashes."""
    found: dict[str, str] = {}
    for item in importlib.metadata.distributions():
        name = item.metadata["Name"]
        if name:  # a half removed package has no name; the first one found is the one that is imported
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), item.version)
    return found


# JAX, asked in a child process: a broken plugin or an unknown XLA flag would end this one

PROBE = r"""
import glob, importlib.util, json, os, tempfile
def tell(**facts):
    print("oplab " + json.dumps(facts), flush=True)
found = {name: importlib.util.find_spec(name) for name in ("jax", "jaxlib", "numpy")}
tell(origins={name: spec.origin for name, spec in found.items() if spec}, folder=os.getcwd())
stage = "import"
try:
    import jax, jaxlib.version
    tell(jax=jax.__version__, jaxlib=jaxlib.version.__version__)
    stage = "devices"
    tell(devices=[[device.platform, device.device_kind] for device in jax.devices()])
    stage = "profile"
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))).block_until_ready()
        file, = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        planes = jax.profiler.ProfileData.from_file(file).planes
        tell(events=sum(1 for plane in planes for line in plane.lines for event in line.events))
except BaseException as error:
    tell(failed=stage, error=type(error).__name__ + ": " + str(error))
"""


def ask_jax(probe: str = PROBE) -> dict:
    """What JAX says of itself in a fresh process, started in this folder as a notebook would be.

    Keys, as far as it got: origins, folder, jax, jaxlib, devices, events; `failed` and `error` where Python
    stopped it; `died`, the last words of a child that something else ended.
    """
    calm = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # leave the GPU's memory to the notebook
    try:
        child = subprocess.run(
            [sys.executable, "-c", probe],
            env=calm,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return {"died": f"JAX did not answer within {PATIENCE_S} seconds"}
    except OSError as error:
        return {"died": f"Python could not be started: {error}"}
    seen: dict = {}
    for line in child.stdout.splitlines():
        if line.startswith("oplab {"):
            seen.update(json.loads(line.removeprefix("oplab ")))
    if child.returncode != 0:
        seen["died"] = _last_words(child.stderr) or f"the process ended with code {child.returncode}"
    return seen


def _last_words(text: str) -> str:
    """The line of a crash that says why: XLA's fatal line without its time stamp, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if "Unknown flag" in line or re.match(r"F\d{4} ", line)]
    return re.sub(r"^F\d{4} [^\]]*\] ", "", (fatal or lines or [""])[-1])[:300]
