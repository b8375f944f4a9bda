"""A walk as a document: it keeps to its schema, says nothing of this machine, and comes back the same."""

import getpass
import json
import socket
from importlib import resources

import jax
import jax.numpy as jnp
import jsonschema
import pandas as pd
import pytest

import oplab
from oplab import document

X = jnp.ones((8, 4))


def f(x):
    return jax.nn.softmax(jax.lax.fori_loop(0, 2, lambda i, y: jnp.tanh(y), x) @ x.T)


@pytest.fixture(scope="module")
def walk():
    return oplab.walk(f, X).execute(2)


def test_the_schema_holds(walk):
    schema = json.loads(resources.files("oplab").joinpath("walk.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(json.dumps(walk.to_json(), allow_nan=False)), schema)


def test_there_and_back(walk, tmp_path):
    path = walk.save(tmp_path / "walk.json")
    saved = oplab.load_walk(path)
    for name in (*document.CERTAIN, "execution"):
        live, kept = getattr(walk, name), getattr(saved, name)
        assert live.text == kept.text
        pd.testing.assert_frame_equal(live.table, kept.table, check_dtype=False)
    pd.testing.assert_frame_equal(walk.links, saved.links, check_dtype=False)
    pd.testing.assert_frame_equal(walk.fates, saved.fates, check_dtype=False)
    kernel = walk.kernels.table["instruction"][0]
    assert walk.code(kernel) == saved.code(kernel)
    assert saved.to_json() == json.loads(json.dumps(walk.to_json()))


def test_a_cell_gets_a_page_a_picture_and_words(walk, monkeypatch):
    shown = walk.show()._repr_mimebundle_()
    assert set(shown) == {"text/plain", "image/svg+xml", "text/html"}
    assert shown["text/html"].startswith("<iframe") and "tanh" in shown["image/svg+xml"]
    assert shown["text/plain"].startswith("f on cpu") and "instruction" in shown["text/plain"]
    monkeypatch.setattr(document, "PICTURE_EQUATIONS", 1)  # a program too large to be read as one picture
    assert set(walk.show()._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_two_walks_give_the_same_document():
    def g(x):  # without a small loop: XLA itself orders the arguments of that kernel by chance
        return jax.nn.softmax(jnp.tanh(x) @ x.T)

    first, second = (json.dumps(oplab.walk(g, X).to_json()) for _ in range(2))
    assert first == second and "0x7f" not in first


def test_nothing_of_this_machine_is_in_it(walk):
    text = json.dumps(walk.to_json())
    names = [n for n in (socket.gethostname(), getpass.getuser()) if len(n) > 4 and n != "localhost"]
    for private in ("/home/", "/root/", "/tmp/", "/Users/", *names):
        assert private not in text


def test_stable_mode_masks_versions(walk, monkeypatch):
    assert walk.to_json()["versions"]["jax"] == jax.__version__
    monkeypatch.setenv("OPLAB_STABLE", "1")
    assert walk.to_json()["versions"] == {}


@pytest.mark.parametrize("content, words", [
    ("not json", "not JSON"),
    ("[1, 2]", "expects the schema"),
    ('{"schema": "oplab.walk/99"}', "oplab.walk/99"),
    ('{"schema": "oplab.walk/1", "function": "f"}', "parts missing"),
    ("[" * 100_000, "not JSON"),
])  # fmt: skip
def test_a_file_that_is_no_walk_is_told_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=words) as caught:
        oplab.load_walk(path)
    assert "\n" not in str(caught.value)
