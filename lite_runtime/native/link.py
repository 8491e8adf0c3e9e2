"""An ELF object of kernels -> position-independent code with internal references resolved. Only compiling needs it.

This is not a general linker; it refuses, by name, everything it does not know: other machines, other relocations,
external symbols, writable memory. docs/decisions/0004 says why no linker is installed for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from lite_runtime.native.build import BuildError

__all__ = ["link"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_IDENT = b"\x7fELF\x02\x01\x01"
"""64 bits, little-endian, version 1."""
_RELOCATABLE, _X86_64 = 1, 62
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _UNWIND = 1, 2, 4, 8, 9, 0x70000001
_WRITE, _ALLOC = 1, 2
_PC_RELATIVE = {2: "R_X86_64_PC32", 4: "R_X86_64_PLT32"}
"""Relocations that are resolved, both as symbol + addend - place in 32 bits (System V ABI, AMD64 supplement, 4.4.1)."""
_ALIGN = 64


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


def link(obj: bytes, names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Lay out an x86-64 ELF object's sections and resolve its internal references; returns code and kernel offsets.

    Raises BuildError for an object that is incomplete, needs an external symbol or lacks one of `names`.
    """
    try:
        return _linked(obj, names)
    except (struct.error, IndexError, ValueError) as problem:
        raise BuildError(f"expected a whole ELF object from LLVM, got {len(obj)} bytes: {problem}") from None


def _linked(obj: bytes, names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    ident, kind, machine, _, _, _, offset, _, _, _, _, entry, count, strings = _HEADER.unpack_from(obj)
    if not ident.startswith(_IDENT) or (kind, machine, entry) != (_RELOCATABLE, _X86_64, _SECTION.size):
        raise BuildError(
            f"expected a relocatable ELF object for x86-64, got {ident[:7]!r}, type {kind}, machine {machine}; "
            "other processors need their relocations in lite_runtime/native/link.py"
        )
    sections = [_Section(*_SECTION.unpack_from(obj, offset + i * entry)) for i in range(count)]
    title = [_string(obj, sections[strings], section.name) for section in sections]
    code, placed = _laid_out(obj, sections, title)
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    if table is None:
        raise BuildError("expected an ELF object with a symbol table, got one without")
    words = range(table.offset, table.offset + table.size, _SYMBOL.size)
    symbols = [_Symbol(*_SYMBOL.unpack_from(obj, at)) for at in words]
    for section, name in zip(sections, title, strict=True):
        if section.kind in (_RELA, _REL) and section.info in placed:
            if section.kind == _REL:
                raise BuildError(f"{name}: expected relocations with addends, got some without")
            _resolve(obj, section, name, code, placed, symbols, sections[table.link])
    found = {
        _string(obj, sections[table.link], symbol.name): placed[symbol.section] + symbol.value
        for symbol in symbols
        if symbol.section in placed
    }
    if lacking := [name for name in names if name not in found]:
        raise BuildError(f"expected the kernels {' '.join(names)} in the object, got none called {' '.join(lacking)}")
    return bytes(code), {name: found[name] for name in names}


def _laid_out(obj: bytes, sections: Sequence[_Section], title: Sequence[str]) -> tuple[bytearray, dict[int, int]]:
    """The code, which is all loaded sections in sequence, and the offset of each section."""
    code, placed = bytearray(), dict[int, int]()
    for i, section in enumerate(sections):
        if not section.flags & _ALLOC or section.kind == _UNWIND:
            continue
        if section.kind not in (_PROGBITS, _NOBITS):
            raise BuildError(f"section {title[i]} of type {section.kind:#x}: expected code and constants alone")
        if section.flags & _WRITE and section.size:
            raise BuildError(f"section {title[i]}: kernels have no memory of their own to write to")
        code += bytes(-len(code) % max(section.align, _ALIGN))
        placed[i] = len(code)
        content = obj[section.offset : section.offset + section.size] if section.kind == _PROGBITS else b""
        if section.kind == _PROGBITS and len(content) != section.size:
            raise ValueError(f"section {title[i]} ends behind the file")
        code += content.ljust(section.size, b"\0")
    return code, placed


def _resolve(
    obj: bytes,
    section: _Section,
    title: str,
    code: bytearray,
    placed: dict[int, int],
    symbols: Sequence[_Symbol],
    strings: _Section,
) -> None:
    """Write the values of one section's relocations into the code."""
    for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
        where, info, addend = _RELOCATION.unpack_from(obj, at)
        kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
        name = _string(obj, strings, symbol.name) or "an unnamed symbol"
        if symbol.section not in placed:
            raise BuildError(f"kernel code needs {name} from outside; kernels call no library")
        if kind not in _PC_RELATIVE:
            known = ", ".join(_PC_RELATIVE.values())
            raise BuildError(f"{title}: relocation type {kind} against {name}; expected one of {known}")
        place = placed[section.info] + where
        value = placed[symbol.section] + symbol.value + addend - place
        struct.pack_into("<i", code, place, value)


def _string(obj: bytes, table: _Section, at: int) -> str:
    start = table.offset + at
    return obj[start : obj.index(b"\0", start)].decode()
