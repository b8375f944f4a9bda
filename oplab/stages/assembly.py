"""Assembly: the machine code of a kernel's object file, made readable.

`lief` knows the formats of object files (ELF, Mach-O, COFF), `capstone` the instruction sets.
"""

from __future__ import annotations


def disassemble(object_file: bytes) -> str:
    """The machine code of an object file as assembly, one `symbol:` block per function.

    Addresses are relative to the function, so that the text is the same on every run.
    """
    import capstone
    import lief

    binary = lief.parse(object_file)
    if binary is None:
        return "(this object file's format is not known here)"
    machine = str(binary.abstract.header.architecture).rsplit(".", 1)[-1].lower()
    if "arm64" in machine or "aarch64" in machine:
        engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    else:
        engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.skipdata = True
    blocks = []
    for name, data in _functions(binary):
        lines = [
            f"{address:6x}:  {mnemonic:10s} {operands}".rstrip()
            for address, _, mnemonic, operands in engine.disasm_lite(data, 0)
        ]
        blocks.append("\n".join([f"{name}:", *lines]))
    return "\n\n".join(blocks)


def _functions(binary) -> list[tuple[str, bytes]]:
    """(symbol, machine code) of each function; the whole code section where the symbols say nothing."""
    sections = [s for s in binary.sections if "text" in str(s.name) and not str(s.name).startswith(".rel")]
    named = []
    for section in sections:
        content = bytes(section.content)
        starts = sorted(
            {
                (int(s.value), str(s.name).lstrip("_"), int(getattr(s, "size", 0)))
                for s in binary.symbols
                if str(s.name)
                and "FUNC" in str(getattr(s, "type", "FUNC"))
                and getattr(s, "section", section) == section
            }
        )
        for n, (start, name, size) in enumerate(starts):
            end = start + size if size else (starts[n + 1][0] if n + 1 < len(starts) else len(content))
            if content[start:end]:
                named.append((name, content[start:end]))
        if not starts and content:
            named.append((str(section.name), content))
    return named
