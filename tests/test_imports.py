"""The floors of the house: which part of oplab may import which, and that importing it does nothing else."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "oplab"

# From the roof down. A part may import what stands on its own floor or a lower one, without a circle; a part
# that stands nowhere is refused, so that a new file is given its place on purpose.
FLOORS = [
    {"tools", "__main__"},
    {"cli", "exercises", "__init__"},
    {"walk", "tracing", "document", "graphs", "join", "bench", "roofline", "doctor", "support", "ran",
     "alone", "lowerable", "diff", "compare", "export"},
    {"checks", "stages", "provenance", "attribution", "dataflow", "flow", "islands", "fates", "vanished",
     "cost", "memory", "timing", "targets", "pallas", "ops"},
    {"trips", "flops"},  # the parts of cost, and under them what both count in
    {"linear_algebra", "operator_flops", "quantities"},
    {"views"},
    {"_jax", "machine", "display", "native"},
]
# Parts that may import fewer than their floor would allow.
ONLY = {"ops": {"ops", "native", "_jax"}, "views": {"views", "display"}, "native": {"native"},
        "machine": {"machine"}, "display": {"display"}}
NEVER = {"stages": {"ops"}}

FILES = sorted(PACKAGE.rglob("*.py"))


def part(file):
    """stages/hlo.py belongs to `stages`, walk.py is `walk`, the door is `__init__`."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(source):
    """Every (module, name) that a text imports, inside functions too; a relative import keeps its dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (("." * node.level + (node.module or ""), alias.name) for alias in node.names)


def imported_files(file):
    """The files of oplab that a file imports."""
    for name, attribute in imports(file.read_text()):
        dots = len(name) - len(name.lstrip("."))
        if not dots and name.split(".")[0] != "oplab":
            continue
        base = file.parents[dots - 1] if dots else PACKAGE.parent
        place = base.joinpath(*name.lstrip(".").split(".")) if name.strip(".") else base
        choices = [place.with_suffix(".py"), place / "__init__.py"]
        if attribute:  # `from a import b`: b may be a file, or a name in a
            choices = [place / f"{attribute}.py", place / attribute / "__init__.py", *choices]
        yield from [choice for choice in choices if choice.is_file()][:1]


def floor(name):
    return next((number for number, names in enumerate(FLOORS) if name in names), None)


def forbidden(importer, imported):
    """Why `importer` may not import `imported`, or None."""
    if floor(importer) is None or floor(imported) is None:
        return "it has no floor: give it one in tests/test_imports.py"
    if floor(imported) < floor(importer):
        return "it stands on a higher floor"
    if importer in ONLY and imported not in ONLY[importer] or imported in NEVER.get(importer, ()):
        return "these two are kept apart"
    return None


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_imports_its_own_floor_or_a_lower_one(file):
    found = {part(other) for other in imported_files(file)} - {part(file)}
    wrong = {other: forbidden(part(file), other) for other in found if forbidden(part(file), other)}
    assert not wrong and floor(part(file)) is not None, f"{file.name} imports {wrong}"


def test_the_rules_refuse_what_they_should():
    assert forbidden("stages", "walk") and forbidden("_jax", "cost") and forbidden("walk", "cli")
    assert forbidden("stages", "ops") and forbidden("ops", "stages") and forbidden("views", "stages")
    assert forbidden("walk", "brand_new")
    assert not forbidden("walk", "stages") and not forbidden("ops", "native")


def circle(graph):
    """One circle in {node: nodes}, as a list, or None."""
    done = set()

    def follow(node, path):
        if node in path:
            return [*path[path.index(node):], node]
        if node in done:
            return None
        done.add(node)
        return next(filter(None, (follow(after, [*path, node]) for after in graph.get(node, ()))), None)

    return next(filter(None, (follow(node, []) for node in graph)), None)


def test_there_is_no_circle():
    assert circle({1: [2], 2: [3], 3: [2]}) == [2, 3, 2] and circle({1: [2, 3], 2: [3]}) is None
    found = circle({file: sorted(set(imported_files(file)) - {file}) for file in FILES})
    assert found is None, " -> ".join(str(file.relative_to(PACKAGE)) for file in found)


def private_jax(source):
    """The private names of JAX that a text imports or reaches for."""
    for name, attribute in imports(source):
        words = [*name.split("."), *([attribute] if attribute else [])]
        moving = words[0] == "jaxlib" and words[1:2] not in ([], ["version"])
        if words[0] == "jax":
            moving = words[1:2] == ["interpreters"] or any(map(hidden, words))
        if moving:
            yield ".".join(words)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "jax" and hidden(node.attr):
                yield f"jax.{node.attr}"


def hidden(word):
    return word.startswith("_") and not word.endswith("__")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_only_the_seam_touches_private_jax(file):
    found = list(private_jax(file.read_text()))
    assert not found or file.name == "_jax.py", f"{file.name} uses {found}; that belongs in oplab/_jax.py"


def test_private_jax_is_recognised():
    private = ["from jax._src import core", "import jax._src.core", "from jax import _src", "x = jax._src",
               "from jaxlib import xla_client", "from jax.interpreters import mlir", "import jaxlib.mlir.ir"]
    assert all(list(private_jax(source)) for source in private)
    assert not list(private_jax("import jax, jaxlib\nfrom jax import lax\njax.__version__"))


def test_views_know_tables_and_not_jax():
    for file in PACKAGE.glob("views/**/*.py"):
        roots = {name.split(".")[0] for name, _ in imports(file.read_text())}
        assert not roots & {"jax", "jaxlib"}, file.name


WATCH = """
import sys
writes = []
def watch(event, args):
    if event == "open" and (set(str(args[1] or "")) & set("wax+") or (args[2] or 0) & 3):
        writes.append(f"opens {args[0]} for writing")
    elif event in ("os.mkdir", "os.rename", "socket.bind", "socket.connect", "subprocess.Popen"):
        writes.append(f"{event} {args}")
import jax, numpy, pandas  # what these do at import is not ours
sys.addaudithook(watch)
import oplab
print(*writes, sep="\\n")
jax.config.update("jax_num_cpu_devices", 3)  # JAX refuses this once a backend is up
print("devices", len(jax.devices()))
"""


def test_importing_oplab_writes_nothing_opens_no_port_and_starts_no_device(tmp_path):
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    env = {**os.environ, **home, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(PACKAGE.parent)}
    for name in ("MPLCONFIGDIR", "XLA_FLAGS"):
        env.pop(name, None)
    command = [sys.executable, "-c", WATCH]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n") == ["", "devices 3", ""], done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
