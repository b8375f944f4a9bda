"""The command `oplab`: what is typed is understood, or refused in one sentence with exit code 2."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
cli = importlib.import_module("oplab.cli")

MODEL = """
import jax.numpy as jnp

def forward(x, w, *, scale=1.0, causal=False):
    return jnp.maximum(x @ w, 0) * (scale if causal else 1)

class Net:
    def __call__(self, x):
        return x + 1

net = Net()
constant = 3
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "tiny_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("tiny_model", None)


class FakeWalk:
    """Stands for a walk, and remembers what it was made of."""

    def __init__(self):
        self.repeats = 0

    def __call__(self, f, *args, **kwargs):
        self.f, self.args, self.kwargs = f, args, kwargs
        return self

    def execute(self, repeats):
        self.repeats = repeats

    def summary(self):
        return pd.DataFrame({"instruction": ["fusion.1"], "median_us": [1.5]})

    def save(self, path):
        return path


@pytest.fixture
def walk(monkeypatch):
    fake = FakeWalk()
    monkeypatch.setattr(importlib.import_module("oplab.walk"), "walk", fake)
    return fake


def refused(capsys, *words):
    """The one sentence that a command ends with."""
    assert cli.main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("oplab: ") and said.err.count("\n") == 1, said
    return said.err


def test_an_array_is_the_same_on_every_run():
    name, value = cli.parse_argument("f32[2, 3]")
    assert name is None and value.shape == (2, 3) and value.dtype == "float32"
    assert np.array_equal(value, cli.parse_argument("f32[2,3]")[1])
    assert len(np.unique(value)) == 6


@pytest.mark.parametrize("text, dtype, shape", [
    ("bf16[4]", "bfloat16", (4,)), ("i32[]", "int32", ()), ("pred[2]", "bool", (2,)),
    ("c64[2,2]", "complex64", (2, 2)), ("float16[0,3]", "float16", (0, 3)), ("u8[7]", "uint8", (7,)),
])
def test_element_types(text, dtype, shape):
    _, value = cli.parse_argument(text)
    assert value.dtype.name == dtype and value.shape == shape


@pytest.mark.parametrize("text, name, value", [
    ("3", None, 3), ("scale=0.5", "scale", 0.5), ("None", None, None), ("mode='same'", "mode", "same"),
    ("(1, 2)", None, (1, 2)), ("-1", None, -1),
])
def test_literals(text, name, value):
    assert cli.parse_argument(text) == (name, value)


@pytest.mark.parametrize("text", ["f32[64", "f32[a]", "x", "f32[-1]", "__import__('os')", ""])
def test_what_is_no_argument(text, model, capsys):
    assert "f32[64,128]" in refused(capsys, "walk", "tiny_model:forward", "--arg", text)


def test_types_that_jax_does_not_have(model, capsys):
    assert "bf16" in refused(capsys, "walk", "tiny_model:forward", "--arg", "f33[2]")
    assert "JAX_ENABLE_X64=1" in refused(capsys, "walk", "tiny_model:forward", "--arg", "f64[2]")


def test_walk_gets_what_was_typed(model, walk, capsys):
    arrays = ["-a", "f32[2,3]", "-a", "f32[3,4]"]
    others = ["-a", "scale=2.5", "-s", "causal=True", "--execute", "7", "-o", "page.html"]
    assert cli.main(["walk", "tiny_model:forward", *arrays, *others]) == 0
    assert walk.f.__name__ == "forward" and [arg.shape for arg in walk.args] == [(2, 3), (3, 4)]
    assert walk.kwargs == {"scale": 2.5, "causal": True, "static_argnames": ("causal",)} and walk.repeats == 7
    said = capsys.readouterr().out
    assert "fusion.1" in said and "saved page.html" in said


def test_a_function_is_found_in_a_module_a_file_or_an_object(model):
    assert cli.load_function("tiny_model:forward").__name__ == "forward"
    assert cli.load_function("tiny_model.py:forward").__name__ == "forward"
    assert cli.load_function("tiny_model:net.__call__")(1) == 2
    assert cli.load_function("os.path:join") is os.path.join


@pytest.mark.parametrize("text, hint", [
    ("forward", "module:function"), ("tiny_model:", "module:function"), (":forward", "module:function"),
    ("no_such_module:f", "cannot be imported"), ("no_such_file.py:f", "cannot be imported"),
    ("tiny_model:backward", "it has forward"), ("broken.py:f", "division by zero"),
])
def test_a_function_that_is_not_there(text, hint, model, capsys):
    (model / "broken.py").write_text("1 / 0")
    assert hint in refused(capsys, "walk", text)


def test_a_walk_that_fails_is_one_sentence(model, walk, capsys, monkeypatch):
    def summary():
        raise ValueError("the walk expects rain\nand a long explanation")

    walk.summary = summary
    assert "tiny_model:forward: the walk expects rain" in refused(capsys, "walk", "tiny_model:forward")
    monkeypatch.setenv("OPLAB_DEBUG", "1")
    with pytest.raises(ValueError):
        cli.main(["walk", "tiny_model:forward"])


def test_what_is_not_callable_is_said(model, capsys):
    assert "expects a function" in refused(capsys, "walk", "tiny_model:constant")


@pytest.mark.parametrize("typed", ["", "dance", "walk", "lab --port x", "walk os.path:join --static c"])
def test_typing_mistakes(typed, capsys):
    refused(capsys, *typed.split())


def test_lab_starts_jupyterlab_of_this_python_and_asks_no_network(model, monkeypatch, capsys):
    assert "no folder elsewhere here" in refused(capsys, "lab", "elsewhere")
    (model / "notebooks").mkdir()
    calls = []
    monkeypatch.setattr(os, "execve", lambda python, command, env: calls.append((python, command, env)))
    cli.main(["lab", "--no-browser", "--port", "9999"])
    (python, command, env), = calls
    assert python == sys.executable
    assert command[:4] == [python, "-m", "jupyterlab", str(model / "notebooks")]
    assert {"--no-browser", "--ServerApp.port=9999", "--LabApp.news_url=None"} <= set(command)
    assert env["JUPYTER_PREFER_ENV_PATH"] == "1"


def test_doctor_ends_with_1_when_something_is_bad(monkeypatch, capsys):
    doctor = importlib.import_module("oplab.doctor")
    for status, code in (("ok", 0), ("warn", 0), ("bad", 1)):
        report = doctor.Report((doctor.Check("disk", status, "is full"),))
        monkeypatch.setattr(doctor, "doctor", lambda report=report: report)
        assert cli.main(["doctor"]) == code and "is full" in capsys.readouterr().out


def test_a_real_walk_from_the_command_line(model):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    typed = "walk tiny_model:forward --arg f32[8,16] --arg f32[16,4] --execute 3 -o w.html"
    command = [sys.executable, "-m", "oplab", *typed.split()]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "instruction" in done.stdout and "<html" in (model / "w.html").read_text().lower()
