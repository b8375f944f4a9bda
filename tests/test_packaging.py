"""pyproject.toml, requirements.lock and environment.yml say the same, for each supported Python."""

import ast
import fnmatch
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDS = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
TEST_NEEDS = [Requirement(line) for line in PROJECT["project"]["optional-dependencies"]["test"]]
LOCK = (ROOT / "requirements.lock").read_text()
PINS = [Requirement(line) for line in LOCK.splitlines() if line and not line.startswith("#")]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
PYTHONS = ["3.11", "3.12", "3.13"]
WITH_JUPYTERLAB = ("IPython", "ipykernel", "jupyter_client", "nbclient", "nbconvert", "nbformat", "traitlets")
FROM = {"PIL": "pillow", **dict.fromkeys(WITH_JUPYTERLAB, "jupyterlab")}  # which package brings an import


def pinned(python):
    """{name: version} that pip takes from the lock under this Python, on Linux."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    taken = [pin for pin in PINS if pin.marker is None or pin.marker.evaluate(here)]
    names = [canonicalize_name(pin.name) for pin in taken]
    assert len(names) == len(set(names)), f"two pins of one package on Python {python}"
    return {name: str(pin.specifier).removeprefix("==") for name, pin in zip(names, taken, strict=True)}


def conda_needs():
    """{name: range} of environment.yml, what conda installs and what pip adds."""
    lines = [line for line in CONDA["dependencies"] if isinstance(line, str)]
    from_pip, = [entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict)]
    found = [re.fullmatch(r"([\w-]+)(.*)", line).groups() for line in [*lines, *from_pip] if line[0] != "-"]
    return {canonicalize_name(name): limits for name, limits in found}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("need", NEEDS + TEST_NEEDS, ids=lambda need: need.name)
def test_the_lock_pins_what_pyproject_asks_for(need, python):
    version = pinned(python).get(canonicalize_name(need.name))
    assert version is not None, f"the lock has no {need.name} for Python {python}: run tools/lock.py"
    assert need.specifier.contains(version), f"the lock has {need.name} {version}, pyproject asks for {need}"


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.name)
def test_conda_is_asked_for_the_same(need):
    limits = conda_needs().get(canonicalize_name(need.name))
    assert limits is not None, f"{need.name} is missing in environment.yml"
    assert SpecifierSet(limits) == need.specifier


def test_conda_brings_nothing_more_than_a_compiler():
    more = set(conda_needs()) - {canonicalize_name(need.name) for need in NEEDS}
    assert more == {"python", "pip", "cxx-compiler"}  # under pip the machine's own C++ compiler is used


def test_the_pythons_agree():
    supported = SpecifierSet(PROJECT["project"]["requires-python"])
    assert [python for python in ("3.10", *PYTHONS, "3.14") if supported.contains(python)] == PYTHONS
    assert conda_needs()["python"].lstrip("=") in PYTHONS
    classifiers = PROJECT["project"]["classifiers"]
    assert [line.rpartition(" ")[2] for line in classifiers if "Python ::" in line] == PYTHONS
    checks = importlib.import_module("oplab.checks")
    assert [checks.OLDEST_PYTHON, checks.NEWEST_PYTHON] == [(3, 11), (3, 13)]
    script = (ROOT / "tools/venv.sh").read_text()
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in script and "python3.13 python3.12" in script


def test_the_oldest_and_the_newest_jax_are_both_locked():
    jax, = [need for need in NEEDS if need.name == "jax"]
    assert pinned("3.11")["jax"] == "0.10.2" and SpecifierSet(">=0.12,<0.13").contains(pinned("3.13")["jax"])
    assert all(pinned(python)["jax"] == pinned(python)["jaxlib"] for python in PYTHONS)
    checks = importlib.import_module("oplab.checks")
    assert Requirement(checks.JAX_RANGE).specifier == jax.specifier
    assert [".".join(map(str, v)) for v in (checks.OLDEST_JAX, checks.TOO_NEW_JAX)] == ["0.10.2", "0.13"]
    assert set(checks.RUNTIME) == {need.name for need in NEEDS}


def test_this_environment_is_the_locked_one():
    """Another environment may be used on purpose, but then it is not the lock that was tested."""
    from importlib.metadata import version

    locked = pinned(f"{sys.version_info[0]}.{sys.version_info[1]}")
    names = ("jax", "jaxlib", "pandas", "nbval")
    other = {name: version(name) for name in names if version(name) != locked[name]}
    if other:
        pytest.skip(f"this is not the environment that make made: {other}")


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock", "environment.yml", "Makefile"])
def test_no_address_stands_in_any_of_them(name):
    text = (ROOT / name).read_text()
    assert not re.search(r"https?://|git\+|--(extra-)?index-url|--find-links|--hash|file:", text)


def test_every_pin_is_one_exact_version():
    for pin in PINS:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)) and not pin.url and not pin.extras, str(pin)


def imported_packages(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_pyproject_names_every_package_that_oplab_imports():
    """But for oplab/tools, which also uses what the tests need."""
    for file in (ROOT / "oplab").rglob("*.py"):
        names = set(imported_packages(file.read_text())) - set(sys.stdlib_module_names) - {"oplab"}
        allowed = {need.name for need in (NEEDS + TEST_NEEDS if "tools" in file.parts else NEEDS)}
        missing = {name for name in names if FROM.get(name, name) not in allowed}
        assert not missing, f"{file.name} imports {missing}, which pyproject.toml does not ask for"


def test_every_file_of_the_package_is_installed_with_it():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = [file for file in (ROOT / "oplab").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    data = [file.name for file in files if file.suffix != ".py"]
    left_out = [name for name in data if not any(fnmatch.fnmatch(name, p) for p in patterns)]
    assert not left_out, f"package-data in pyproject.toml leaves out {left_out}"
    folders = {file.parent for file in files if file.suffix == ".py"}
    assert not [folder.name for folder in folders if not (folder / "__init__.py").exists()]


def test_licence_and_citation():
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence and "END OF TERMS AND CONDITIONS" in licence
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["project"]["license"] == citation["license"] == "Apache-2.0"
    assert citation["version"] == PROJECT["project"]["version"]
    assert f"## {citation['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_lock_tool_writes_the_fewest_markers():
    lock = _load(ROOT / "tools/lock.py")
    newer = {"a": "1", "b": "2"}
    merged = lock.merge({"3.11": {"a": "1", "b": "1", "c": "1"}, "3.12": newer, "3.13": newer})
    assert [line for line in merged if line[1] == "="] == [
        "a==1",
        'b==1 ; python_version < "3.12"',
        'b==2 ; python_version >= "3.12"',
        'c==1 ; python_version < "3.12"',
    ]
    other_systems = {Requirement(line).name for line in lock.OTHER_SYSTEMS}
    assert other_systems <= {pin.name for pin in PINS}


def _load(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
