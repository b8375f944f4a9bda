"""Every operator's Pallas kernel compiles for the hardware that it was written for, with none of it here.

`make test-targets` installs the compilers (tests/targets/requirements.txt) and runs this; there a missing
compiler is a failure. Elsewhere the file is skipped as a whole. Whether the values are right is tested with
each operator and in test_hopper.py; here it is whether the chip's own compiler takes the kernel, and what it
makes of it.
"""

import os
import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from target_machines import compile_for, cuda, h100, kernels, missing, tpu

from oplab import ops
from oplab.ops.attention_hopper import attention_hopper
from oplab.ops.matmul_hopper import matmul_hopper

REQUIRED = os.environ.get("OPLAB_TARGETS") == "1"  # as `make test-targets` sets it
pytestmark = pytest.mark.skipif(
    bool(missing()) and not REQUIRED,
    reason=f"needs {', '.join(missing())} (make test-targets installs them)",
)


def test_the_compilers_are_installed():
    assert not missing()


def arrays(*shapes, dtype=jnp.bfloat16):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


# TPU ------------------------------------------------------------------------------------------------------

OPERATORS = {  # name: the operands, then what else is given
    "relu": (arrays((300, 200), dtype=jnp.float32), {}),
    "matmul": (arrays((300, 520), (520, 200)), {}),
    "bias_add": (arrays((300, 200), (200,), dtype=jnp.float32), {}),
    "softmax": (arrays((300, 200)), {}),
    "layer_norm": (arrays((300, 200), (200,), (200,), dtype=jnp.float32), {}),
    "conv2d": (arrays((2, 16, 16, 8), (3, 3, 8, 16), dtype=jnp.float32), {}),
    "attention": (arrays((1, 600, 4, 64), (1, 600, 2, 64), (1, 600, 2, 64)), {"causal": True}),
}


@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operators_pallas_kernel_compiles_for_tpu(name, topology, capsys):
    operands, more = OPERATORS[name]
    operator = partial(getattr(ops, name), implementation="pallas", **more)
    text = compile_for(tpu(topology), operator, *operands).as_text()
    written = text.count('custom_call_target="tpu_custom_call"')
    with capsys.disabled():
        print(f"\n{topology} {name}: {written} Mosaic kernel, {compiled_by_xla(text)} fusions beside it")
    assert written == 1


def compiled_by_xla(hlo):
    entry = hlo[hlo.index("\nENTRY") :]
    return len(re.findall(r" fusion\(", entry))


def test_a_tpu_must_be_named():
    with pytest.raises(ValueError, match="v5e:2x2"):
        tpu("")


# NVIDIA Hopper --------------------------------------------------------------------------------------------


def hopper_matmul(out_dtype):
    return partial(matmul_hopper, out_dtype=out_dtype)


def hopper_attention(causal):
    return partial(attention_hopper, causal=causal, scale=0.125)


HOPPER = {  # name: the function, its operands, the form of its products in SASS
    "matmul": (hopper_matmul(jnp.float32), arrays((512, 1024), (1024, 512)), "64x256x16.F32.BF16"),
    "matmul, batched and ragged": (
        hopper_matmul(jnp.float16),
        arrays((3, 100, 72), (3, 72, 130), dtype=jnp.float16),
        "64x192x16.F32",
    ),
    "attention": (hopper_attention(None), arrays(*[(2, 512, 4, 128)] * 3), "64x128x16.F32.BF16"),
    "attention, causal, grouped and ragged": (
        hopper_attention("bottom_right"),
        arrays((1, 300, 4, 64), (1, 500, 2, 64), (1, 500, 2, 32), dtype=jnp.float16),
        "64x128x16.F32",
    ),
}


@pytest.mark.parametrize("name", HOPPER)
def test_a_hopper_kernel_compiles_to_wgmma_and_tma(name, capsys):
    function, operands, form = HOPPER[name]
    kernel = next(k for k in kernels(h100(), function, *operands) if "hopper" in k.name)
    counts = kernel.counts()
    opcodes = ("HGMMA", "UTMALDG", "UTMASTG", "SYNCS", "MUFU")
    shown = ", ".join(f"{counts[opcode]} {opcode}" for opcode in opcodes)
    with capsys.disabled():
        print(f"\nh100 {name}: {shown}; {kernel.registers} registers, {kernel.spilled} bytes spilled")
    assert ".target sm_90a" in kernel.ptx
    assert counts["HGMMA"] and f"HGMMA.{form}" in kernel.sass
    assert counts["UTMALDG"] >= 2 and counts["UTMASTG"]  # two operands come by TMA, the result leaves by it
    assert not counts["HMMA"] and kernel.spilled == 0
    from_registers = re.search(r"HGMMA\S+ R\d+, R\d+, gdesc", kernel.sass)
    assert bool(from_registers) == name.startswith("attention")  # where P never goes to memory


def test_a_kernel_of_xlas_own_is_listed_too():
    (kernel,) = kernels(h100(), jnp.sin, *arrays((300, 200), dtype=jnp.float32))
    assert ".target sm_90a" in kernel.ptx and kernel.counts()["STG"] and not kernel.counts()["HGMMA"]
    assert 0 < kernel.registers < 256


def test_a_target_that_would_end_the_process_is_refused():
    with pytest.raises(ValueError, match="platform_name CUDA, got ROCM"):
        cuda('platform_name: "ROCM"\n')
