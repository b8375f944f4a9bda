"""The attention benchmark's variants outside JAX: torch, onnxruntime, and NumPy's matrix product.

torch and onnxruntime are optional, and no package that oplab needs: they are imported by name, by the worker
whose variant they are. `python -m oplab.tools.bench_attention --python PATH` takes them from another
interpreter.
"""

import importlib
import os
from collections.abc import Callable
from types import ModuleType

import numpy as np

from oplab.tools.bench_attention_problem import Missing, Prepared, Shape, operands


def package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed in this interpreter; --python names another one") from error


def threads() -> int:
    return int(os.environ["NPROC"])  # set by whoever started this worker


# torch ---------------------------------------------------------------------------------------------------


def torch() -> ModuleType:
    found = package("torch")
    found.set_num_threads(threads())
    return found


def torch_sdpa(shape: Shape) -> dict[str, Prepared]:
    """scaled_dot_product_attention, on tensors that lie heads first and on views of those that do not."""
    return {"heads first": sdpa(shape, as_view=False), "transposed view": sdpa(shape, as_view=True)}


def sdpa(shape: Shape, as_view: bool) -> Prepared:
    t = torch()
    given = [t.from_numpy(x).to(getattr(t, shape.dtype)) for x in operands(shape)]
    turned = [x.transpose(1, 2) for x in given]  # (batch, heads, seq, dim), which torch expects
    q, k, v, do = turned if as_view else [x.contiguous() for x in turned]

    def attention():
        return t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)

    def forward():
        with t.no_grad():
            return [attention()]

    def both():
        return t.autograd.grad((attention() * do).sum(), (q, k, v))

    if shape.backward:
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    call = both if shape.backward else forward
    results = lambda: [x.detach().transpose(1, 2).float().contiguous().numpy() for x in call()]
    return Prepared(call, results, shape.flops, shape.fused_bytes)


def torch_matmul(n: int, dtype: str) -> Prepared:
    t = torch()
    a, b = (t.randn(n, n).to(getattr(t, dtype)) for _ in range(2))
    return Prepared(lambda: a @ b, lambda: [], 2 * n**3, 3 * n * n * a.element_size())


# onnxruntime -----------------------------------------------------------------------------------------------


def onnx_attention(shape: Shape) -> dict[str, Prepared]:
    """The contributed operator MultiHeadAttention, in the layout that it takes: (batch, seq, heads * dim)."""
    runtime, onnx = package("onnxruntime"), package("onnx")
    if shape.backward:
        raise Missing("onnxruntime's operator has no gradient")
    if shape.dtype != "float32":
        raise Missing(f"onnxruntime's operator takes no {shape.dtype} on a CPU")
    helper, size = onnx.helper, [shape.batch, shape.seq, shape.heads * shape.dim]
    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size)
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["o"], domain="com.microsoft",
                            num_heads=shape.heads, unidirectional=int(shape.causal))
    model = helper.make_model(
        helper.make_graph([node], "attention", [value(name) for name in "qkv"], [value("o")]),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads()
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feed = {name: x.reshape(size) for name, x in zip("qkv", operands(shape))}
    whole = (shape.batch, shape.seq, shape.heads, shape.dim)
    call = lambda: session.run(None, feed)
    return {"heads in the features": Prepared(call, lambda: [call()[0].reshape(whole)], shape.flops,
                                              shape.fused_bytes)}


# NumPy ------------------------------------------------------------------------------------------------------


def numpy_matmul(n: int, dtype: str) -> Prepared:
    if dtype != "float32":
        raise Missing(f"NumPy has no fast product of {dtype}")
    a, b = np.random.default_rng(n).standard_normal((2, n, n), np.float32)
    return Prepared(lambda: a @ b, lambda: [], 2 * n**3, 3 * a.nbytes)


VARIANTS: dict[str, Callable[[Shape], dict[str, Prepared]]] = {
    "torch": torch_sdpa,
    "onnxruntime": onnx_attention,
}
