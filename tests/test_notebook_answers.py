"""The answers that notebooks fold away are run: an answer that does not work teaches nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_answers_run(file):
    stable = os.environ | {"OPLAB_STABLE": "1", "CI": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, ROOT / "tests" / "answers.py", file], env=stable, text=True,
                          capture_output=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] != "0 answers run", "its exercises have no answer in Python"
