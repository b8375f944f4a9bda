"""The kernels: what runs as one unit, and its code; or, where a library does the work, the library's name.

XLA:CPU writes LLVM IR and one object file for most fusions, hands matrix products and reductions to YNNPACK
or Eigen, and calls LAPACK, DUCC and a few routines of its own runtime for the rest. The compiled program says
which is which; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..attribution import Owner
from .assembly import disassemble
from .hlo import FREE, Instruction, Module
from .passes import Dump
from .stage import Stage, frame

COLUMNS = ["instruction", "computation", "kind", "library", "equations", "stages", "reason", "switch"]
YNN_OFF = 'options={"xla_cpu_experimental_ynn_fusion_type": ""}'
NO_SWITCH = "none: XLA has no code of its own for this on the CPU"
_FUSION_KIND = re.compile(r'"kind":"(__\w+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_SMALL_CALL = 'xla_cpu_small_call="true"'
_CONTROL = frozenset(
    {
        "while",
        "conditional",
        "call",
        "async-start",
        "async-done",
        "async-update",
        "partition-id",
        "replica-id",
        "after-all",
        "opt-barrier",
        "domain",
        "get-dimension-size",
        "add-dependency",
    }
)
_LIBRARY_FUSIONS = {
    "__ynn_fusion": ("YNNPACK", YNN_OFF),
    "__xnn_fusion": ("XNNPACK", 'options={"xla_cpu_experimental_xnn_fusion_type": ""}'),
    "__onednn_fusion": ("oneDNN", 'options={"xla_cpu_experimental_onednn_fusion_type": ""}'),
}
# opcode -> who does it when XLA wrote no code for it
_LIBRARIES = {
    "dot": "Eigen",
    "convolution": "Eigen",
    "fft": "DUCC",
    "sort": "XLA runtime (sort)",
    "topk": "XLA runtime (TopK)",
    "rng-get-and-update-state": "XLA runtime (rng)",
    "infeed": "XLA runtime (infeed)",
    "outfeed": "XLA runtime (outfeed)",
}
_COLLECTIVES = ("all-", "reduce-scatter", "collective-", "send", "recv", "ragged-all-to-all")


@dataclass(frozen=True)
class Kernel:
    """One kernel of the compiled program."""

    instruction: Instruction
    kind: str  # "compiled", "library" or "runtime"
    library: str | None = None
    code: str | None = None  # the file stem in the dump whose code it runs; None for a library
    reason: str = ""
    switch: str = ""


def kernels(module: Module, dump: Dump, problem: str) -> list[Kernel]:
    """The kernels in the order in which the program steps through them, loop bodies and branches included."""
    found = [i for name in _executed(module) for i in module.computations[name] if _is_kernel(i)]
    symbols = _symbols(dump)
    signatures: dict[str, str] = {}
    for instruction in found:
        stem = _stem(instruction, symbols)
        if stem:
            signatures.setdefault(_signature(instruction, module), stem)
    return [_kernel(i, module, symbols, signatures, problem) for i in found]


def _executed(module: Module) -> list[str]:
    """The computations stepped through, without the small loops that newer versions make one kernel of."""
    small = {c for i in module.instructions.values() if _SMALL_CALL in i.text for c in i.called}
    inside: set[str] = set()
    todo = list(small)
    while todo:
        name = todo.pop()
        if name not in inside:
            inside.add(name)
            todo += [c for i in module.computations.get(name, ()) for c in i.called]
    return [name for name in module.executed() if name not in inside]


def _is_kernel(instruction: Instruction) -> bool:
    if instruction.opcode in FREE:
        return False
    return instruction.opcode not in _CONTROL or _SMALL_CALL in instruction.text


def _symbols(dump: Dump) -> dict[str, str]:
    """Function in the LLVM IR -> the file stem it is defined in."""
    return {
        name: stem
        for stem, text in dump.llvm.items()
        for name in re.findall(r'^define [^@]*@"?([\w.\-$]+)"?\(', text, re.M)
    }


def _stem(instruction: Instruction, symbols: dict[str, str]) -> str | None:
    for name in (instruction.name, instruction.name + "_kernel", instruction.name.replace("-", "_")):
        if name in symbols:
            return symbols[name]
    return None


def _signature(instruction: Instruction, module: Module) -> str:
    """The members of a fusion without names and metadata: XLA compiles equal fusions once, under one name."""
    body = [m for c in instruction.called for m in module.computations.get(c, ())]
    numbers = {m.name: str(n) for n, m in enumerate(body)}
    lines = [f"{m.opcode} {m.shape} {[numbers.get(o, o) for o in m.operands]} {_attributes(m)}" for m in body]
    partitions = re.search(r'outer_dimension_partitions":\[[^\]]*\]', instruction.text)
    return "\n".join([instruction.opcode, partitions[0] if partitions else "", *lines])


def _attributes(member: Instruction) -> str:
    """What stands after the operands, without names; the value of a constant, the number of a parameter."""
    head, _, rest = member.text.partition(f" {member.opcode}(")[2].partition(")")
    rest = re.sub(r",? ?(?:metadata=\{.*|(?:calls|to_apply)=%?[\w.\-]+)", "", rest)
    return (head if member.opcode in ("constant", "parameter") else "") + rest


def _kernel(
    instruction: Instruction,
    module: Module,
    symbols: dict[str, str],
    signatures: dict[str, str],
    problem: str,
) -> Kernel:
    """Whose code an instruction runs, from the surest sign to the last resort."""
    opcode = instruction.opcode
    fusion = _library_fusion(instruction)
    if fusion:
        name, switch = fusion
        reason = f"{name} does this fusion in one call; XLA writes no code for it"
        return Kernel(instruction, "library", name, reason=reason, switch=switch)
    stem = _stem(instruction, symbols)
    if stem:
        return Kernel(instruction, "compiled", code=stem)
    same = signatures.get(_signature(instruction, module)) if opcode == "fusion" else None
    if same:
        reason = f"equal to {same}, so XLA compiled the two once"
        return Kernel(instruction, "compiled", code=same, reason=reason)
    if opcode == "custom-call":
        library = _target_library(instruction)
        reason, switch = (
            "the program itself asks for this call by name",
            "none: whoever lowered it chose the call",
        )
        return Kernel(instruction, "library", library, reason=reason, switch=switch)
    if opcode in _LIBRARIES:
        library = _LIBRARIES[opcode]
        reason = f"XLA's runtime calls {library} for every {opcode} outside a fusion"
        return Kernel(instruction, "library", library, reason=reason, switch=NO_SWITCH)
    if opcode.startswith(_COLLECTIVES):
        reason = "it moves data between devices"
        return Kernel(instruction, "library", "XLA collectives", reason=reason, switch=NO_SWITCH)
    if opcode.startswith("copy"):
        reason = "a plain copy of memory needs no code of its own"
        return Kernel(instruction, "runtime", "XLA runtime (copy)", reason=reason, switch=NO_SWITCH)
    if problem:
        return Kernel(instruction, "compiled", reason=f"its code could not be read. {problem}")
    reason = f"XLA wrote no separate code for this {opcode}"
    return Kernel(instruction, "runtime", "XLA runtime", reason=reason, switch=NO_SWITCH)


def _library_fusion(instruction: Instruction) -> tuple[str, str] | None:
    """(library, switch) of a fusion that XLA hands to a library as a whole."""
    kind = _FUSION_KIND.search(instruction.text) if instruction.opcode == "fusion" else None
    if "__onednn" in instruction.text:
        return _LIBRARY_FUSIONS["__onednn_fusion"]
    return _LIBRARY_FUSIONS.get(kind[1], (kind[1], NO_SWITCH)) if kind else None


def _target_library(instruction: Instruction) -> str:
    """The library behind a custom call, by the name of its target."""
    match = _TARGET.search(instruction.text)
    target = match[1] if match else "custom call"
    if target.startswith("lapack_"):
        return f"LAPACK ({target})"
    return f"Python callback ({target})" if "callback" in target else target


def code(kernel: Kernel, dump: Dump) -> dict[str, str]:
    """The code of a kernel, from the compiler's last form to the machine's: {"llvm": ..., "asm": ...}. Empty
    for a library.
    """
    if kernel.code is None:
        return {}
    found = {}
    if kernel.code in dump.llvm:
        found["llvm"] = dump.llvm[kernel.code]
    if kernel.code in dump.objects:
        found["asm"] = disassemble(dump.objects[kernel.code])
    return found


def stage(found: list[Kernel], owners: dict[str, Owner], dump: Dump, problem: str) -> Stage:
    """The kernels stage. The text holds the LLVM IR of each kernel, or the sentence that says whose it is."""
    rows, text = [], [problem] if problem else []
    written: set[str] = set()
    for kernel in found:
        name = kernel.instruction.name
        has = tuple(
            kind
            for kind, there in (
                ("mlir", kernel.code in dump.emitted),
                ("llvm", kernel.code in dump.llvm),
                ("asm", kernel.code in dump.objects),
            )
            if there
        )
        reason = (
            kernel.reason
            if owners[name][0]
            else f"no equation asked for it: XLA's own {kernel.instruction.opcode}"
        )
        rows.append(
            (
                name,
                kernel.instruction.computation,
                kernel.kind,
                kernel.library,
                owners[name][0],
                has,
                reason,
                kernel.switch,
            )
        )
        title = f"=== {name}: " + (kernel.kind if kernel.library is None else kernel.library)
        text.append(title + (f" ({reason})" if reason else ""))
        if kernel.library and kernel.switch:
            text.append(f"    the switch that makes XLA write it: {kernel.switch}")
        if kernel.code and kernel.code in dump.llvm and kernel.code not in written:
            written.add(kernel.code)
            text.append(dump.llvm[kernel.code].rstrip())
    return Stage("kernels", "\n".join(text), frame(rows, COLUMNS))
