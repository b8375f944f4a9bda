"""Kernels: code where the compiler wrote it, a library's name where it did not."""

import re

import jax
import jax.numpy as jnp

import oplab
from oplab.stages import kernels

X = jnp.ones((64, 64))


def test_a_compiled_kernel_has_llvm_ir_and_assembly():
    w = oplab.walk(lambda x: jnp.sin(x) * 2 + 1, X)
    (kernel,) = w.kernels.table.to_dict("records")
    assert (
        kernel["kind"] == "compiled"
        and kernel["library"] is None
        and {"llvm", "asm"} <= set(kernel["stages"])
    )
    code = w.code(kernel["instruction"])
    assert f"@{kernel['instruction']}(" in code["llvm"]
    assert code["asm"].startswith(kernel["instruction"] + ":") and re.search(
        r"^ +[0-9a-f]+:  ret", code["asm"], re.M
    )
    assert "(this object file" not in code["asm"]


def test_the_emitters_mlir_is_read_in_a_child_process():
    w = oplab.walk(lambda x: jax.nn.relu(x + x[0]), X)
    assert any("func.func" in text for text in w.emitter_mlir.values())
    said = {k.instruction for k in w.kernels.table.itertuples() if "mlir" in k.stages}
    assert said == {k for k in w.kernels.table["instruction"] if "mlir" in w.code(k)} and said


def test_a_library_says_its_name_the_reason_and_the_switch():
    w = oplab.walk(lambda x: x @ x, X)
    (kernel,) = w.kernels.table.to_dict("records")
    assert kernel["kind"] == "library" and kernel["library"] == "YNNPACK" and kernel["reason"]
    assert w.code(kernel["instruction"]) == {}
    assert kernel["switch"] == 'options={"xla_cpu_experimental_ynn_fusion_type": ""}'


def test_the_switch_makes_xla_write_it():
    f = lambda x: jax.nn.softmax(jnp.tanh(x)).sum(0)  # noqa: E731
    before, after = oplab.walk(f, X), oplab.walk(f, X, options={"xla_cpu_experimental_ynn_fusion_type": ""})
    assert "YNNPACK" in set(before.kernels.table["library"])
    assert set(after.kernels.table["kind"]) == {"compiled"}


def test_every_kernel_has_code_or_a_name():
    def f(x):
        s = jnp.sort(x)
        c = jax.scipy.linalg.cholesky(x @ x.T + 64 * jnp.eye(64))
        return (
            s,
            c,
            jnp.fft.rfft(x),
            jax.lax.top_k(x, 3),
            jax.lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y) @ x, x),
        )

    table = oplab.walk(f, X).kernels.table
    assert {"DUCC", "LAPACK (lapack_spotrf_ffi)"} <= set(table["library"])
    for kernel in table.to_dict("records"):
        assert kernel["stages"] or (kernel["library"] and kernel["reason"] and kernel["switch"]), kernel


def test_equal_fusions_are_compiled_once_and_say_so():
    def f(x):
        return jnp.sin(x) * 2, jnp.sin(x.T + 0).T @ x, jax.lax.optimization_barrier(jnp.sin(x + 1) * 2)

    w = oplab.walk(
        lambda x: [jax.lax.optimization_barrier(jnp.tanh(y)) for y in (x[0], x[1], x[2])], (X, X + 1, X + 2)
    )
    table = w.kernels.table
    assert (table["stages"].map(len) > 0).all()
    assert table["reason"].str.contains("compiled the two once").any() or len(table) == 1


def test_disassembly_of_something_else_is_a_sentence():
    assert "not known" in kernels.disassemble(b"not an object file")
