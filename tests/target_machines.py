"""Machines that are not there, and compilers for them: a TPU of any generation, and NVIDIA's H100.

    compiled = compile_for(tpu("v5e:2x2"), f, *operands)       # operands: anything with shape and dtype
    compiled = compile_for(h100(), f, *operands)
    kernels(h100(), f, *operands)                              # PTX, SASS and registers of each kernel

The compilers are those that a program on such a machine uses: libtpu, and XLA's CUDA plugin with NVIDIA's
ptxas. What they give cannot be run here. For a GPU it is not always what XLA would run there, either: with no
GPU nothing can be timed, so XLA takes default tiles for its own matrix products. A Pallas kernel states its
own tiles, so its code is the code that would run.

JAX_PLATFORMS=cpu must stand in the environment before JAX is imported, as conftest.py sees to: without it the
CUDA plugin looks for a driver and for cuDNN.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

# libtpu reads these when it is loaded, which is when the first topology is asked for.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or it asks the network which TPU this is
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # or it refuses a second process beside this one

SPECS = Path(__file__).parent / "targets"


# What is needed ---------------------------------------------------------------------------------------------


def missing() -> list[str]:
    """The packages of tests/targets/requirements.txt that are not installed."""
    found = {
        "libtpu": importlib.util.find_spec("libtpu"),
        "jax-cuda13-plugin": importlib.util.find_spec("jax_cuda13_plugin"),
        "jax-cuda13-pjrt": _in_namespace("jax_plugins", "xla_cuda13"),
        "nvidia-cuda-nvcc": _in_namespace("nvidia", "*/bin/ptxas"),
        "nvidia-nvvm": _in_namespace("nvidia", "*/nvvm/libdevice/libdevice.10.bc"),
        "nvidia-cuda-nvdisasm": _in_namespace("nvidia", "*/bin/nvdisasm"),
    }
    return [package for package, place in found.items() if place is None]


def _in_namespace(package: str, pattern: str) -> Path | None:
    """A file of a package that several wheels share, as `nvidia` is."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else ()
    return next((path for folder in folders or () for path in Path(folder).glob(pattern)), None)


# The machines -----------------------------------------------------------------------------------------------


@functools.cache
def tpu(topology: str) -> Any:
    """One core of a TPU slice, such as "v5e:2x2" (JAX 0.10 knows no smaller slice than a whole host)."""
    if not topology:  # libtpu takes "" for a v2
        raise ValueError("expected the name of a TPU slice, such as 'v5e:2x2', got nothing.")
    return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]


@functools.cache
def h100() -> Any:
    return cuda((SPECS / "h100.txtpb").read_text(encoding="utf-8"))


def cuda(spec: str) -> Any:
    """One NVIDIA GPU, as the text of a GpuTargetConfig describes it."""
    platform = re.search(r'^platform_name: "(.*)"', spec, re.MULTILINE)
    if platform is None or platform[1] != "CUDA":  # the plugin would end the process
        raise ValueError(f"expected a target with platform_name CUDA, got {platform and platform[1]}.")
    machine = topologies.get_topology_desc(
        platform="cuda", topology_name="none", target_config=spec, topology="1x1x1"
    )
    return machine.devices[0]


# The compilers ----------------------------------------------------------------------------------------------


def compile_for(device: Any, f: Callable, *operands: Any, options: dict | None = None) -> jax.stages.Compiled:
    """`f` compiled for a device of `tpu` or `cuda`. Has `as_text` (optimised HLO); calling it raises."""
    platform = {"gpu": "cuda"}.get(device.platform, device.platform)
    here = SingleDeviceSharding(device)
    avals = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), operands)
    lowered = jax.jit(f).trace(*avals).lower(lowering_platforms=(platform,))
    return lowered.compile(compiler_options=options)


class Kernel(NamedTuple):
    name: str
    ptx: str
    sass: str
    registers: int  # of a thread
    spilled: int  # bytes that did not fit into registers

    def counts(self) -> Counter[str]:
        """How many of each SASS instruction, without what stands behind its name: HGMMA, UTMALDG, ..."""
        return Counter(re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P[0-9T]+ +)?([A-Z][A-Z0-9]+)", self.sass))


def kernels(device: Any, f: Callable, *operands: Any) -> list[Kernel]:
    """Every kernel for a CUDA device that XLA or Mosaic GPU writes for `f`; not those of libraries."""
    with tempfile.TemporaryDirectory() as folder:
        # XLA takes its dump as an option, Mosaic GPU looks into the environment at each compile.
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_dump_emitter_re": ".*"}
        with _environment(MOSAIC_GPU_DUMP_TO=folder, MOSAIC_GPU_DUMP_PTX="1"):
            compile_for(device, f, *operands, options=options)
        texts = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.ptx"))]
        return [_assemble(ptx, folder) for ptx in texts if ".entry" in ptx]  # JAX 0.10 dumps an empty one


def _assemble(ptx: str, folder: str) -> Kernel:
    source, code = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
    source.write_text(ptx, encoding="utf-8")
    architecture = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1]
    told = _run("ptxas", "-v", f"-arch={architecture}", source, "-o", code).stderr
    return Kernel(
        name=re.search(r"\.entry (\w+)", ptx)[1],
        ptx=ptx,
        sass=_run("nvdisasm", "-c", code).stdout,
        registers=int(re.search(r"Used (\d+) registers", told)[1]),
        spilled=sum(map(int, re.findall(r"(\d+) bytes spill", told))),
    )


def _run(tool: str, *words: Any) -> subprocess.CompletedProcess:
    command = [_in_namespace("nvidia", f"*/bin/{tool}"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
