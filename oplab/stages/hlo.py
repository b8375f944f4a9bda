"""Optimised HLO: what XLA made of the program, read from its own text.

Three facts are taken from each line: the instruction with its operands, the computations that it calls (a
fusion calls the computation of its members), and the op_name in its metadata, where our tags are. The text is
parsed on purpose: it is what learners see, and the Python objects behind it expose less in some versions. A
line looks like one of these:

    ROOT %wrapped_tanh = f32[8,8]{1,0} fusion(%dot.1), kind=kLoop, calls=%wrapped_computation,
    metadata={op_name="..." ...} %dot.1 = f32[8,8]{1,0} dot(%x.1, %w.1), lhs_contracting_dims={1},
    rhs_contracting_dims={0}, metadata={...} %fused_computation.1 (param_0: f32[8,8]) -> f32[8] { ENTRY
    %main.7 (x.1: f32[8,8], w.1: f32[8,8]) -> f32[8,8] {
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from ..provenance import strip
from .script import hide_addresses
from .stage import Stage, frame

COLUMNS = [
    "instruction",
    "opcode",
    "computation",
    "fusion",
    "shape",
    "equations",
    "how",
    "reason",
    "op_name",
    "text_line",
]
FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})  # no work of their own
CALLING = frozenset({"fusion", "call", "while", "conditional", "async-start"})
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
    r"|(?:branch_computations|called_computations)=\{([^}]*)\}"
)
_OPERAND = re.compile(r"%([\w.\-]+)")
_FRAME = re.compile(r",? ?metadata=\{stack_frame_id=\d+\}| stack_frame_id=\d+")


class Line(NamedTuple):
    """What one line says, wherever it stands."""

    name: str
    opcode: str
    shape: str
    operands: list[str]
    called: list[str]  # computations
    op_name: str
    root: bool


@dataclass(slots=True, eq=False)
class Instruction:
    """A line in its place."""

    name: str
    opcode: str
    shape: str
    operands: list[str]
    called: list[str]
    op_name: str
    root: bool
    computation: str
    line: int
    text: str


@dataclass
class Module:
    """An HLO module: its computations in the order of the text, and its instructions by name."""

    text: str
    entry: str = ""
    computations: dict[str, list[Instruction]] = field(default_factory=dict)
    instructions: dict[str, Instruction] = field(default_factory=dict)

    def callers(self) -> dict[str, Instruction]:
        """Computation -> the instruction that calls it (the first one; after optimisation there is mostly
        one).
        """
        found: dict[str, Instruction] = {}
        for instruction in self.instructions.values():
            for computation in instruction.called:
                found.setdefault(computation, instruction)
        return found

    def executed(self) -> list[str]:
        """The computations that the runtime steps through: the entry, loop bodies, branches, calls; not what
        lies in a fusion.
        """
        order, todo = [], [self.entry]
        while todo:
            name = todo.pop()
            if name in order or name not in self.computations:
                continue
            order.append(name)
            for instruction in self.computations[name]:
                if instruction.opcode in CALLING - {"fusion"}:
                    todo.extend(_stepped(instruction))
        return order


def _stepped(instruction: Instruction) -> list[str]:
    """What the runtime steps through for an instruction: a loop whose trips are known needs no condition."""
    if instruction.opcode == "while" and '"known_trip_count"' in instruction.text:
        condition = re.search(r"condition=%?([\w.\-]+)", instruction.text)
        return [name for name in instruction.called if condition is None or name != condition[1]]
    return instruction.called


def parse(text: str, known: dict[str, Line | None] | None = None) -> Module:
    """Read HLO text. `known` remembers lines between calls: most passes leave most lines as they were."""
    known = {} if known is None else known
    module = Module(text)
    computation: list[Instruction] | None = None
    name = ""
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        if line[0] == " ":
            if computation is None:
                continue
            parts = parse_line(line, known)
            if parts:
                instruction = Instruction(*parts, name, number, line)
                computation.append(instruction)
                module.instructions[instruction.name] = instruction
        elif line[0] == "}":
            computation = None
        elif header := _COMPUTATION.match(line):
            name = header[2]
            computation = module.computations[name] = []
            if header[1]:
                module.entry = name
    return module


def parse_line(line: str, known: dict[str, Line | None]) -> Line | None:
    """What an instruction's line says; None for another line. `known` remembers lines."""
    if line not in known:
        known[line] = _read(line)
    return known[line]


def _read(line: str) -> Line | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    root, name, shape, opcode, rest = match.groups()
    operands, _, attributes = rest.partition(")")
    called: list[str] = []
    if "=" in attributes:
        for one, many in _CALLED.findall(attributes):
            called.extend([one] if one else [c.strip().lstrip("%") for c in many.split(",")])
    op_name = _OP_NAME.search(attributes) if "op_name=" in attributes else None
    named = _OPERAND.findall(operands) if opcode != "constant" else []
    return Line(name, opcode, shape, named, called, op_name[1] if op_name else "", bool(root))


def display(text: str) -> str:
    """The text as people are shown it: without our tags, addresses, and the stack frames.

    The frames' tables hold the folders of this machine and the stack of whoever asked for the compile; which
    line an instruction comes from is what `equations` and the script stage say.
    """
    head, _, rest = text.partition("\n\nFileNames\n")
    if rest:
        body = min((at for mark in ("\n\n%", "\n\nENTRY") if (at := rest.find(mark)) >= 0), default=0)
        text = head + rest[body:]
    return strip(hide_addresses(_FRAME.sub("", text))).rstrip("\n")


def stage(module: Module, owners: dict[str, tuple[tuple[str, ...], str, str]]) -> Stage:
    """The HLO stage. `owners`: instruction -> (equations, how, reason), see `oplab.attribution`."""
    text = display(module.text)
    above = module.text.rstrip("\n").count("\n") - text.count("\n")  # lines of the tables left out
    callers = module.callers()
    rows = []
    for computation, instructions in module.computations.items():
        caller = callers.get(computation)
        fusion = caller.name if caller is not None and caller.opcode == "fusion" else None
        for i in instructions:
            rows.append(
                (
                    i.name,
                    i.opcode,
                    computation,
                    fusion,
                    i.shape,
                    *owners[i.name],
                    strip(f'"{i.op_name}"')[1:-1] if "#" in i.op_name else i.op_name,
                    i.line - above,
                )
            )
    return Stage("hlo", text, frame(rows, COLUMNS))
