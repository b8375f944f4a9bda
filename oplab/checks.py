"""What `oplab doctor` looks at: one small function for each thing that can be wrong, in the report's order.

Each takes what JAX said of itself (see `machine.ask_jax`) and yields lines of the report, none where it does
not apply. A fault comes with the one command that cures it.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import machine

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
OLDEST_JAX, TOO_NEW_JAX = (0, 10, 2), (0, 13)  # pyproject.toml says the same, and a test compares them
JAX_RANGE = "jax>=0.10.2,<0.13"
RUNTIME = (
    "absl-py",
    "capstone",
    "filelock",
    "jax",
    "jaxlib",
    "jupyterlab",
    "lief",
    "matplotlib",
    "numpy",
    "pandas",
    "pillow",
    "platformdirs",
    "psutil",
    "pygments",
    "pygraphviz",
    "tqdm",
)
EXTRAS = {
    "libtpu": "TPU programs",
    "jax-cuda13-plugin": "NVIDIA programs",
    "iree-base-compiler": "IREE programs",
    "pytest": "oplab's own tests",
}
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """One line of the report. Status: "ok", "warn" (the lab works but for this) or "bad" (it does not)."""

    name: str
    status: str
    found: str
    cure: str = ""


def _why(seen: dict, otherwise: str) -> str:
    words = (seen.get("error") or seen.get("died") or otherwise).strip()
    return words.splitlines()[0][:200]


def check_python(seen) -> Iterator[Check]:
    found = f"{platform.python_version()}, {64 if sys.maxsize > 2**32 else 32} bit, {platform.system()}"
    if not OLDEST_PYTHON <= sys.version_info[:2] <= NEWEST_PYTHON:
        yield Check("Python", "bad", f"{found}; oplab needs 3.11 to 3.13", "make lab PYTHON=python3.12")
    elif (platform.system(), platform.machine()) == ("Darwin", "x86_64"):
        yield Check(
            "Python",
            "bad",
            f"{found}, for Intel; JAX is built for Apple's own processors only",
            "arch -arm64 make lab",
        )
    else:
        yield Check("Python", "ok", found)


def check_local_files(seen) -> Iterator[Check]:
    """A file named jax.py in the folder, or an old copy on PYTHONPATH, is imported before the real one."""
    named = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    for package, origin in seen.get("origins", {}).items():
        if origin is None:  # a folder without __init__.py, which wins only where the real package is missing
            continue
        path = Path(origin).parent if Path(origin).name == "__init__.py" else Path(origin)
        if path.parent == Path(seen["folder"]):
            yield Check(
                "local files",
                "bad",
                f"{path.name} in this folder hides the real {package}",
                f"mv {path.name} my_{path.name}",
            )
        elif str(path.parent) in named:
            yield Check(
                "local files",
                "warn" if "jax" in seen else "bad",
                f"PYTHONPATH brings {package} from outside this environment",
                "unset PYTHONPATH",
            )


def check_jax(seen) -> Iterator[Check]:
    install = f'python -m pip install --upgrade "{JAX_RANGE}"'
    if "jax" not in seen:
        yield Check("JAX", "bad", f"does not import: {_why(seen, 'no answer')}", install)
        return
    found, version = f"{seen['jax']}, jaxlib {seen['jaxlib']}", _numbers(seen["jax"])
    if not OLDEST_JAX <= version < TOO_NEW_JAX:
        yield Check("JAX", "bad", f"{found}; oplab supports {JAX_RANGE}", install)
    elif _numbers(seen["jaxlib"])[:2] != version[:2]:
        yield Check(
            "JAX",
            "bad",
            f"{found}: these two do not belong together",
            f"python -m pip install jax=={seen['jax']} jaxlib=={seen['jax']}",
        )
    else:
        yield Check("JAX", "ok", found)


def check_plugins(seen) -> Iterator[Check]:
    """A plugin of another version than jaxlib is ignored by JAX, or crashes it; jax-metal is abandoned."""
    jaxlib = seen.get("jaxlib")
    for name, version in sorted(machine.installed().items()):
        if name == "jax-metal":
            yield Check(
                "plugins",
                "bad",
                f"jax-metal {version} is no longer kept up and breaks this JAX",
                "python -m pip uninstall -y jax-metal",
            )
        elif re.fullmatch(r"jax-(cuda|rocm)\d*-(plugin|pjrt)", name):
            if jaxlib and _numbers(version)[:3] != _numbers(jaxlib)[:3]:
                yield Check(
                    "plugins",
                    "bad",
                    f"{name} {version} does not belong to jaxlib {jaxlib}",
                    f"python -m pip install {name}=={jaxlib}",
                )
            else:
                yield Check("plugins", "ok", f"{name} {version}")


def check_settings(seen) -> Iterator[Check]:
    """Environment variables that change what JAX does, or that end the process."""
    flags, platforms = os.environ.get("XLA_FLAGS", ""), os.environ.get("JAX_PLATFORMS", "")
    if flags and "Unknown flag" in seen.get("died", ""):
        yield Check("XLA_FLAGS", "bad", f"XLA ends the process: {seen['died']}", "unset XLA_FLAGS")
    elif "xla_dump_to" in flags:
        yield Check("XLA_FLAGS", "warn", "xla_dump_to makes every compile write files", "unset XLA_FLAGS")
    elif flags:
        yield Check("XLA_FLAGS", "ok", flags)
    if platforms and "jax" in seen and "devices" not in seen:
        why = _why(seen, "no answer")
        yield Check(
            "JAX_PLATFORMS",
            "bad",
            f"asks for {platforms}, which does not start here: {why}",
            "unset JAX_PLATFORMS",
        )
    elif platforms:
        yield Check("JAX_PLATFORMS", "ok", platforms)
    if os.environ.get("JAX_DISABLE_JIT", "").lower() not in ("", "0", "false"):
        yield Check(
            "JAX_DISABLE_JIT",
            "bad",
            "is set: nothing is compiled, so there is nothing to walk",
            "unset JAX_DISABLE_JIT",
        )


def check_devices(seen) -> Iterator[Check]:
    if "devices" not in seen:
        blamed = os.environ.get("JAX_PLATFORMS") or "Unknown flag" in seen.get("died", "")
        if "jax" in seen and not blamed:  # otherwise an earlier line says it
            why = _why(seen, "no answer")
            yield Check("devices", "bad", f"JAX starts none: {why}", "export JAX_PLATFORMS=cpu")
        return
    kinds = [name if name == kind else f"{name} ({kind})" for name, kind in seen["devices"]]
    found = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    if shutil.which("nvidia-smi") and "gpu" not in [name for name, _ in seen["devices"]]:
        yield Check(
            "devices",
            "warn",
            f"{found}; there is an NVIDIA driver, but JAX does not use it",
            'python -m pip install "jax[cuda13]"',
        )
    else:
        yield Check("devices", "ok", found)


def check_threads(seen) -> Iterator[Check]:
    there, allowed, quota = machine.cores()
    found = f"{allowed} of {there} cores" + (f", time for {quota:.3g}" if quota else "")
    if quota and quota < allowed:
        yield Check(
            "threads",
            "warn",
            f"{found}: XLA's {allowed} threads take turns, so times jump",
            f"taskset -c 0-{max(int(quota), 1) - 1} oplab lab",
        )
    else:
        yield Check("threads", "ok", found)


def check_memory(seen) -> Iterator[Check]:
    total, limit, free = machine.memory()
    found = f"{limit / GIB:.1f} GiB" + (" (the limit of a container)" if limit < total else "")
    found += f", {min(free, limit) / GIB:.1f} GiB free"
    if min(free, limit) < 2 * GIB:
        status = "bad" if min(free, limit) < 0.7 * GIB else "warn"
        yield Check(
            "memory",
            status,
            f"{found}; a notebook may need 1 GiB",
            "close other notebooks (Kernel > Shut Down All Kernels)",
        )
    else:
        yield Check("memory", "ok", found)


def check_folders(seen) -> Iterator[Check]:
    """Dumps and profiles go to the temporary folder; Jupyter and matplotlib complain without the others."""
    home, here = Path(os.path.expanduser("~")), "mkdir -p tmp && export TMPDIR=$PWD/tmp"
    usual = {
        "TMPDIR": tempfile.gettempdir(),
        "XDG_CACHE_HOME": home / ".cache",
        "MPLCONFIGDIR": Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "matplotlib",
        "JUPYTER_DATA_DIR": home / ".local/share/jupyter",
        "IPYTHONDIR": home / ".ipython",
    }
    folders = {name: Path(os.environ.get(name) or folder) for name, folder in usual.items()}
    closed = [name for name, folder in folders.items() if not machine.writable(folder)]
    for name in closed:
        status, cure = ("bad", here) if name == "TMPDIR" else ("warn", f"export {name}=$(mktemp -d)")
        yield Check("folders", status, f"{folders[name]} cannot be written to ({name})", cure)
    if not closed:
        yield Check("folders", "ok", "temporary, cache, matplotlib and Jupyter folders are writable")
    space = shutil.disk_usage(folders["TMPDIR"]).free
    if space < GIB:
        yield Check(
            "disk",
            "bad" if space < GIB / 20 else "warn",
            f"{space / GIB:.2f} GiB left for temporary files; one walk may write 0.1 GiB",
            here,
        )


def check_profiler(seen) -> Iterator[Check]:
    if seen.get("events"):
        yield Check("profiler", "ok", "a tiny program was profiled and its trace read back")
    elif "devices" in seen:  # otherwise JAX did not get that far, and an earlier line says why
        why = _why(seen, "the trace has no events")
        yield Check(
            "profiler",
            "bad",
            f"cannot time a program from inside: {why}",
            f'python -m pip install --force-reinstall "{JAX_RANGE}"',
        )


def check_native(seen) -> Iterator[Check]:
    """Attention in C++ is built on first use, never by the doctor. All else works without it: a warning."""
    if "jax" not in seen or not {"filelock", "platformdirs"} <= machine.installed().keys():
        return  # it needs these, and another line says what is missing
    from .native import UNWRITABLE_CURE, status  # by its full name: it must do where oplab itself is broken

    name, found = "native attention", status()
    if found["state"] == "built":
        yield Check(name, "ok", f"built for {found['instruction_set']} with {found['compiler']}")
    elif found["state"] == "unavailable":
        yield Check(name, "warn", f"{found['reason']}; attention falls back to XLA", found["cure"])
    elif not machine.writable(found["path"].parent):
        why = f"its cache folder {found['path'].parent} cannot be written"
        yield Check(name, "warn", f"{why}; attention falls back to XLA", UNWRITABLE_CURE)
    else:
        yield Check(name, "ok", f"will be built on first use with {found['compiler']}")


def check_packages(seen) -> Iterator[Check]:
    installed = machine.installed()
    missing = " ".join(name for name in RUNTIME if name not in installed)
    if missing:
        yield Check("packages", "bad", f"not installed: {missing}", f"python -m pip install {missing}")
    else:
        yield Check("packages", "ok", "all that oplab imports is installed")
    extras = [f"{name} {installed[name]} ({use})" for name, use in EXTRAS.items() if name in installed]
    yield Check("extras", "ok", ", ".join(extras) or "none; they are for other hardware and for tests only")


def check_jupyterlab(seen) -> Iterator[Check]:
    version = machine.installed().get("jupyterlab")
    if version is None or _numbers(version) < (4, 2):
        yield Check(
            "JupyterLab",
            "bad",
            f"{version or 'not installed'}; 4.2 or newer is needed",
            'python -m pip install "jupyterlab>=4.2,<5"',
        )
        return
    yield Check("JupyterLab", "ok", version)
    from jupyter_client.kernelspec import KernelSpecManager

    command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    if command in ("python", "python3") or os.path.abspath(command) == os.path.abspath(sys.executable):
        yield Check("kernel", "ok", "notebooks run in this Python")
    else:
        yield Check(
            "kernel",
            "warn",
            "the kernel named python3 is another Python than this one",
            "python -m ipykernel install --sys-prefix",
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)


CHECKS = (
    check_python,
    check_local_files,
    check_jax,
    check_plugins,
    check_settings,
    check_devices,
    check_threads,
    check_memory,
    check_folders,
    check_profiler,
    check_native,
    check_packages,
    check_jupyterlab,
)
