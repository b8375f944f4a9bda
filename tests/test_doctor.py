"""`oplab doctor`: every fault is faked once and must be named with its cure; the doctor never falls ill."""

import importlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
doctor = importlib.import_module("oplab.doctor")  # `oplab.doctor` itself is the function
checks = importlib.import_module("oplab.checks")
machine = importlib.import_module("oplab.machine")

HEALTHY = {"origins": {"jax": "/env/site-packages/jax/__init__.py"}, "folder": "/class", "jax": "0.12.0.1",
           "jaxlib": "0.12.0.1", "devices": [["cpu", "cpu"]], "events": 9}


def lines(check, seen=HEALTHY, **changed):
    return list(check({**seen, **changed}))


def only(check, seen=HEALTHY, **changed):
    found, = lines(check, seen, **changed)
    return found


def without(*names):
    return {name: value for name, value in HEALTHY.items() if name not in names}


# The whole


def test_this_machine_is_healthy_and_the_report_reads_well():
    report = doctor.doctor()
    assert report.healthy, report
    names = {"Python", "JAX", "devices", "threads", "memory", "profiler", "JupyterLab"}
    assert names <= set(report.table["name"])
    assert repr(report).splitlines()[-1] == report.verdict
    assert "<table>" in report._repr_html_() and "script" not in report._repr_html_()
    private = [platform.node(), os.path.expanduser("~") + "/"]
    assert not [word for word in private if len(word) > 2 and word in repr(report)]


def test_a_check_that_fails_becomes_a_line(monkeypatch):
    def check_the_weather(seen):
        raise OSError("no barometer")

    monkeypatch.setattr(doctor, "CHECKS", (check_the_weather,))
    monkeypatch.setattr(machine, "ask_jax", dict)
    found, = doctor.doctor().checks
    assert (found.name, found.status) == ("the weather", "warn") and "no barometer" in found.found


def test_nothing_known_of_jax_is_no_reason_to_raise():
    for check in checks.CHECKS:
        list(check({}))


def test_homes_and_hosts_are_not_printed(monkeypatch):
    monkeypatch.setenv("HOME", "/secret/ada")
    monkeypatch.setattr(platform, "node", lambda: "babbage")
    text = doctor._anonymous("/secret/ada/x /home/lovelace/y /Users/ada/z C:\\Users\\ada\\z on babbage")
    assert text == "~/x ~/y ~/z ~\\z on <host>"


def test_what_varies_is_not_shown_in_a_notebook_under_test(monkeypatch):
    found = checks.Check("JAX", "ok", "0.12"), checks.Check("disk", "bad", "full", "tidy up")
    report = doctor.Report(found)
    assert "0.12" in repr(report) and "0.12" in report._repr_html_()
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert "0.12" not in repr(report) + report._repr_html_() and "full" in repr(report)


def test_html_is_escaped():
    assert "<b>" not in doctor.Report((checks.Check("<b>", "ok", "<b>", "<b>"),))._repr_html_()


def test_an_empty_report_prints():
    assert "ready" in repr(doctor.Report(()))


# The child process


def run_doctor(folder, **env):
    """The command in a fresh process, with oplab found through PYTHONPATH if it is not installed."""
    path = os.pathsep.join(filter(None, [env.pop("PYTHONPATH", ""), str(ROOT)]))
    env = {**os.environ, "PYTHONPATH": path, **env}
    command = [sys.executable, "-m", "oplab", "doctor"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_an_unknown_xla_flag_is_survived_and_named(tmp_path):
    done = run_doctor(tmp_path, XLA_FLAGS="--xla_no_such_flag=1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "--xla_no_such_flag=1" in done.stdout and "unset XLA_FLAGS" in done.stdout


def test_hardware_that_is_not_here_is_named(tmp_path):
    done = run_doctor(tmp_path, JAX_PLATFORMS="no_such_hardware")
    assert done.returncode == 1 and "asks for no_such_hardware" in done.stdout
    assert "unset JAX_PLATFORMS" in done.stdout and "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("content", ["", "raise ImportError('half an install')", "import os; os._exit(9)"])
def test_a_broken_or_shadowed_jax_is_survived(tmp_path, content):
    (tmp_path / "jax.py").write_text(content)
    seen = in_folder(tmp_path, machine.ask_jax)
    assert "jax" not in seen
    assert only(checks.check_jax, seen).status == "bad"
    assert only(checks.check_local_files, seen).cure == "mv jax.py my_jax.py"


def in_folder(folder, f):
    before = os.getcwd()
    os.chdir(folder)
    try:
        return f()
    finally:
        os.chdir(before)


def test_the_command_runs_though_jax_is_broken(tmp_path):
    (tmp_path / "jax.py").write_text("raise ImportError('half an install')")
    done = run_doctor(tmp_path)
    assert done.returncode == 1, done.stderr
    assert "half an install" in done.stdout and "mv jax.py my_jax.py" in done.stdout


def test_a_jax_that_hangs_or_cannot_start(monkeypatch):
    monkeypatch.setattr(machine, "PATIENCE_S", 0.2)
    assert "did not answer" in machine.ask_jax("import time; time.sleep(60)")["died"]
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert "could not be started" in machine.ask_jax()["died"]


def test_last_words_of_a_crash():
    log = "W: calm\nF1201 04:06:01.123456  123 parse_flags.cc:12] Unknown flag in XLA_FLAGS: --x\n*** stack"
    assert machine._last_words(log) == "Unknown flag in XLA_FLAGS: --x"
    assert machine._last_words("a\nb\n") == "b" and machine._last_words("") == ""


# One fault a test


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 14, 0)])
def test_python_of_another_time(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", version)
    found = only(checks.check_python)
    assert found.status == "bad" and "3.11 to 3.13" in found.found and "PYTHON=" in found.cure


def test_an_intel_mac(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert only(checks.check_python).status == "bad"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert only(checks.check_python).status == "ok"


@pytest.mark.parametrize("jax, jaxlib, status", [
    ("0.12.0.1", "0.12.0.1", "ok"), ("0.10.2", "0.10.2", "ok"), ("0.12.1.dev3", "0.12.0", "ok"),
    ("0.10.1", "0.10.1", "bad"), ("0.13.0", "0.13.0", "bad"), ("0.12.0", "0.11.0", "bad"),
])
def test_versions_of_jax(jax, jaxlib, status):
    found = only(checks.check_jax, jax=jax, jaxlib=jaxlib)
    assert found.status == status and bool(found.cure) == (status == "bad")


def test_no_jax():
    found = only(checks.check_jax, {"error": "ModuleNotFoundError: No module named 'jax'"})
    assert found.status == "bad" and "No module" in found.found and "pip install" in found.cure
    assert not lines(checks.check_devices, {}) and not lines(checks.check_profiler, {})  # said once is enough


def test_plugins_that_do_not_belong(monkeypatch):
    there = {"jax-cuda13-plugin": "0.11.0", "jax-cuda13-pjrt": "0.12.0.1", "jax-metal": "0.1.1"}
    monkeypatch.setattr(machine, "installed", lambda: {**there, "jaxtyping": "1.0"})
    pjrt, plugin, metal = lines(checks.check_plugins)
    assert pjrt.status == "ok"
    assert plugin.status == "bad" and plugin.cure == "python -m pip install jax-cuda13-plugin==0.12.0.1"
    assert metal.status == "bad" and "uninstall" in metal.cure


def test_a_copy_on_the_python_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/old/copies"]))
    origins = {"jax": "/old/copies/jax/__init__.py", "jaxlib": None, "numpy": "/env/numpy/__init__.py"}
    assert only(checks.check_local_files, origins=origins).status == "warn"
    found = only(checks.check_local_files, without("jax"), origins=origins)
    assert (found.status, found.cure) == ("bad", "unset PYTHONPATH")


def test_settings(monkeypatch):
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.delenv(name, raising=False)
    assert not lines(checks.check_settings)
    monkeypatch.setenv("JAX_DISABLE_JIT", "1")
    assert only(checks.check_settings).cure == "unset JAX_DISABLE_JIT"
    monkeypatch.setenv("JAX_DISABLE_JIT", "0")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x")
    assert only(checks.check_settings).status == "warn"
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    assert only(checks.check_settings).status == "ok"


def test_devices(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(checks.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    assert "jax[cuda13]" in only(checks.check_devices).cure
    assert only(checks.check_devices, devices=[["gpu", "H100"], ["gpu", "H100"]]).found == "2 gpu (H100)"
    found = only(checks.check_devices, without("devices"), error="RuntimeError: no backend\nmore")
    assert found.status == "bad" and found.found.endswith("RuntimeError: no backend")


def cgroup(monkeypatch, folder, own, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    (folder / "own").write_text(own)
    monkeypatch.setattr(machine, "CGROUPS", folder)
    monkeypatch.setattr(machine, "OWN_CGROUP", folder / "own")


QUOTA, PERIOD = "cpu,cpuacct/box/cpu.cfs_quota_us", "cpu,cpuacct/box/cpu.cfs_period_us"
VERSION1 = "4:memory:/box\n3:cpu,cpuacct:/box\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize("own, files, cores", [
    ("0::/box/inner\n", {"box/inner/cpu.max": "max 100000", "box/cpu.max": "50000 100000"}, 0.5),
    ("0::/box\n", {"box/cpu.max": "150000 100000"}, 1.5),
    ("0::/\n", {"cpu.max": "max 100000"}, None),
    (VERSION1, {QUOTA: "50000", PERIOD: "100000"}, 0.5),
    (VERSION1, {QUOTA: "-1", PERIOD: "100000"}, None),
])
def test_a_quota_on_cores(monkeypatch, tmp_path, own, files, cores):
    cgroup(monkeypatch, tmp_path, own, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert machine.cores()[1:] == (4, cores)
    found = only(checks.check_threads)
    assert found.status == ("warn" if cores else "ok")
    assert not cores or found.cure == "taskset -c 0-0 oplab lab"


@pytest.mark.parametrize("own, files, gib, status", [
    ("0::/box\n", {"box/memory.max": str(2**29)}, 0.5, "bad"),
    ("0::/box\n", {"box/memory.max": str(3 * 2**29)}, 1.5, "warn"),
    ("0::/box\n", {"box/memory.max": "max"}, 16, "ok"),
    (VERSION1, {"memory/box/memory.limit_in_bytes": str(2**29)}, 0.5, "bad"),
    (VERSION1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, 16, "ok"),
])
def test_a_limit_on_memory(monkeypatch, tmp_path, own, files, gib, status):
    cgroup(monkeypatch, tmp_path, own, files)
    now = SimpleNamespace(total=16 * 2**30, available=15 * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: now)
    found = only(checks.check_memory)
    assert found.status == status and found.found.startswith(f"{gib:.1f} GiB")
    assert ("container" in found.found) == (gib < 16)


def test_folders_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "writable", lambda folder: folder.name not in ("matplotlib", "closed"))
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    assert only(checks.check_folders).cure == "export MPLCONFIGDIR=$(mktemp -d)"
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(checks.tempfile, "tempdir", str(tmp_path / "closed"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "closed"))
    assert {line.status for line in lines(checks.check_folders)} == {"bad", "warn"}


def test_writable_really_writes(tmp_path):
    assert machine.writable(tmp_path) and machine.writable(tmp_path / "not" / "there" / "yet")
    (tmp_path / "file").touch()
    assert not machine.writable(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk(monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**6))
    assert [line.status for line in lines(checks.check_folders) if line.name == "disk"] == ["bad"]


def test_a_profiler_that_writes_nothing():
    found = only(checks.check_profiler, without("events"), failed="profile", error="OSError: disk full")
    assert found.status == "bad" and "disk full" in found.found
    assert only(checks.check_profiler, events=0).status == "bad"


NATIVE = {"state": "built", "compiler": "g++ 12.2", "instruction_set": "AVX2", "path": Path("/cache/x.so"),
          "reason": "", "cure": ""}


@pytest.mark.parametrize("found, status, words, cure", [
    ({}, "ok", "built for AVX2 with g++ 12.2", ""),
    ({"state": "not built"}, "ok", "will be built on first use with g++ 12.2", ""),
    ({"state": "not built", "path": Path("/closed/x.so")}, "warn", "cannot be written", "OPLAB_CACHE"),
    ({"state": "unavailable", "reason": "no g++", "cure": "fetch one"}, "warn", "no g++", "fetch one"),
])
def test_native_attention(monkeypatch, found, status, words, cure):
    native = importlib.import_module("oplab.native")
    monkeypatch.setattr(native, "status", lambda: {**NATIVE, **found})
    monkeypatch.setattr(machine, "writable", lambda folder: folder == Path("/cache"))
    line = only(checks.check_native)
    assert line.status == status and words in line.found
    assert cure in line.cure and bool(cure) == bool(line.cure)


def test_native_attention_is_not_asked_for_where_jax_or_its_packages_are_missing(monkeypatch):
    assert not lines(checks.check_native, without("jax"))
    monkeypatch.setattr(machine, "installed", lambda: {"filelock": "3"})
    assert not lines(checks.check_native)


def test_the_doctor_builds_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("OPLAB_CACHE", str(tmp_path / "cache"))
    assert only(checks.check_native).name == "native attention" and not (tmp_path / "cache").exists()


def test_packages_that_are_missing(monkeypatch):
    there = {**dict.fromkeys(checks.RUNTIME, "1"), "libtpu": "0.9"}
    del there["pandas"], there["tqdm"]
    monkeypatch.setattr(machine, "installed", lambda: there)
    packages, extras = lines(checks.check_packages)
    assert packages.status == "bad" and packages.cure == "python -m pip install pandas tqdm"
    assert "libtpu 0.9" in extras.found


def test_jupyterlab(monkeypatch):
    monkeypatch.setattr(machine, "installed", dict)
    assert only(checks.check_jupyterlab).status == "bad"
    monkeypatch.setattr(machine, "installed", lambda: {"jupyterlab": "3.6.1"})
    assert "4.2 or newer" in only(checks.check_jupyterlab).found


def test_a_kernel_of_another_python(monkeypatch):
    from jupyter_client.kernelspec import KernelSpecManager

    assert lines(checks.check_jupyterlab)[-1].status == "ok"
    other = SimpleNamespace(argv=["/somewhere/else/bin/python"])
    monkeypatch.setattr(KernelSpecManager, "get_kernel_spec", lambda self, name: other)
    assert lines(checks.check_jupyterlab)[-1].status == "warn"
