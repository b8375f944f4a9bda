"""tools/venv.sh: which Python it takes, when it makes the environment anew, and what it says when it cannot.

It is tried on a project of its own, which needs no package, so that an environment takes a second or two.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CANDIDATES = ["python3.13", "python3.12", "python3", "python3.11", "python"]
SHIM = "#!/bin/sh\necho 'pyenv: command not found' >&2\nexit 127\n"
NO_VENV = "#!/bin/sh\necho no-venv\n"
TOO_OLD = "#!/bin/sh\necho 'unsupported /usr'\n"

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "nothing"
version = "1"
"""
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name, info = "nothing-1-py3-none-any.whl", "nothing-1.dist-info/"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: nothing\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


@pytest.fixture
def project(tmp_path):
    """A folder with venv.sh, and a `bin` that goes first on the PATH, in which no Python works yet."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "tools/venv.sh", tmp_path / "tools")
    (tmp_path / "requirements.lock").write_text("# nothing==1\n")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "backend.py").write_text(BACKEND)
    for name in CANDIDATES:
        python(tmp_path, name, SHIM)
    return tmp_path


def python(project, name, script=f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n'):
    file = project / "bin" / name
    file.write_text(script)
    file.chmod(0o755)
    return str(file)


def make_venv(project, *words):
    env = {**os.environ, "PATH": f"{project / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"}
    command = ["bash", str(project / "tools/venv.sh"), *words]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=120)


def test_without_a_python_it_says_so_in_one_sentence(project):
    done = make_venv(project)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "no Python 3.11 to 3.13 was found" in done.stderr and "PYTHON=" in done.stderr
    python(project, "python3.12", TOO_OLD)
    python(project, "python3", NO_VENV)
    assert "apt install python3-venv" in make_venv(project).stderr


@pytest.mark.parametrize("script, hint", [
    (SHIM, "does not run"), (NO_VENV, "python3-venv"), (TOO_OLD, "needs Python 3.11 to 3.13"),
])
def test_a_python_that_was_asked_for_and_will_not_do(project, script, hint):
    python(project, "python3")  # is not taken instead
    asked = python(project, "mine", script)
    done = make_venv(project, ".venv", asked)
    assert done.returncode == 1 and hint in done.stderr and not (project / ".venv").exists()


def test_an_environment_is_made_once_and_anew_when_it_is_stale(project):
    python(project, "python3")  # python3.13 and python3.12 are shims that answer "command not found"
    made = make_venv(project)
    assert made.returncode == 0, made.stderr
    assert "(from python3)" in made.stdout and made.stdout.endswith("ready\n")
    assert make_venv(project).stdout == ""  # nothing to do

    (project / ".venv/leftover").touch()
    (project / "requirements.lock").write_text("# nothing==2\n")
    assert "ready" in make_venv(project).stdout and not (project / ".venv/leftover").exists()
    assert make_venv(project).stdout == ""

    (project / ".venv/bin/python").unlink()  # as when the interpreter that it was made with is removed
    (project / ".venv/bin/python").symlink_to("/no/such/python")
    assert "ready" in make_venv(project).stdout


def test_an_install_that_was_cut_short_is_done_again(project):
    python(project, "python3")
    (project / "backend.py").write_text("raise SystemExit('the build broke')")
    done = make_venv(project)
    assert done.returncode == 1 and "the build broke" in done.stderr and "pip failed" in done.stderr
    (project / "backend.py").write_text(BACKEND)
    assert "ready" in make_venv(project).stdout


def test_a_folder_that_is_no_environment_is_left_alone(project):
    python(project, "python3")
    (project / "mine").mkdir()
    (project / "mine/thesis.txt").touch()
    done = make_venv(project, "mine")
    assert done.returncode == 1 and "move it away" in done.stderr and (project / "mine/thesis.txt").exists()


def test_make_alone_prints_help_and_makes_nothing():
    done = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "make lab" in done.stdout and "make test" in done.stdout


@pytest.mark.parametrize("file", ["tools/venv.sh", ".ci/run"])
def test_scripts_are_executable_bash(file):
    assert os.access(ROOT / file, os.X_OK)
    assert subprocess.run(["bash", "-n", str(ROOT / file)], timeout=20).returncode == 0
