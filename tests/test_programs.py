"""Programs of real libraries, walked from end to end: files of `tests/programs`, each with `fn` and `args`.

Those that need nothing but JAX are walked in every test run, the others where their package is installed
(`make test-programs` installs them all). OPLAB_PROGRAMS names one more folder of such files.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import oplab

HERE = Path(__file__).parent / "programs"
FOLDERS = [HERE, *map(Path, filter(None, [os.environ.get("OPLAB_PROGRAMS")]))]
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("[!_]*.py"))]


def load(path):
    spec = importlib.util.spec_from_file_location(f"program_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("jax", "numpy", "oplab"):
            raise
        pytest.skip(f"needs {error.name}, which is not installed (make test-programs)")
    return module


def marks(path):
    needs = re.search(r"needs: |pip: (?!jax only)", path.read_text(encoding="utf-8").split("\n", 1)[0])
    return [pytest.mark.programs] if needs else []


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=marks(p)) for p in FILES])
def test_program_walks(path, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv[:1])  # one of these libraries reads the command line's flags
    program = load(path)
    walk = oplab.walk(program.fn, *program.args)

    fates = walk.fates
    assert sorted(fates["equation"]) == sorted(walk.jaxpr.table["equation"])
    for stage in (walk.script, walk.jaxpr, walk.stablehlo, walk.passes, walk.hlo, walk.kernels):
        assert len(stage.table) and stage.text
    assert all(len(owners) for owners in walk.kernels.table["equations"])

    plain = jax.jit(program.fn)(*program.args)
    for got, want in zip(jax.tree.leaves(walk.compiled(*program.args)), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(bits(got), bits(want))


def bits(leaf):
    is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)
