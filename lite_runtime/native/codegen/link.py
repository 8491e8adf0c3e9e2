"""An ELF object of kernels -> position-independent code with internal references resolved. Only compiling needs it.

This is not a general linker; it refuses, by name, everything it does not know: other machines, relocations that are not
in `relocations.py`, external symbols, writable memory. docs/decisions/0004 says why no linker is installed for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lite_runtime.native.build import BuildError
from lite_runtime.native.codegen.relocations import PROCESSORS, Processor, Reference

__all__ = ["Object", "link", "outside", "parsed"]

_IDENT = {32: b"\x7fELF\x01\x01\x01", 64: b"\x7fELF\x02\x01\x01"}
"""Little-endian, version 1, by bits of addresses."""
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL = 1, 2, 4, 8, 9
_WRITE, _ALLOC = 1, 2
_UNWINDING = (".eh_frame", ".ARM.exidx", ".ARM.extab")
"""Sections for exceptions, of which kernels have none."""
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
    name: str
    info: int
    section: int
    value: int
    size: int


class Object(NamedTuple):
    """A parsed file. titles: names of its sections."""

    content: bytes
    processor: Processor
    sections: Sequence[_Section]
    titles: Sequence[str]
    symbols: Sequence[_Symbol]


def link(obj: bytes, names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Lay out an ELF object's sections and resolve its internal references; returns code and kernel offsets.

    Raises BuildError for an object that is incomplete, needs an external symbol or lacks one of `names`.
    """
    try:
        return _linked(parsed(obj), names)
    except (struct.error, IndexError, KeyError, ValueError) as problem:
        raise BuildError(f"expected a whole ELF object from LLVM, got {len(obj)} bytes: {problem}") from None


def outside(obj: bytes) -> set[str]:
    """The symbols that an object needs and does not define. Raises BuildError as `link` does."""
    try:
        return {symbol.name for symbol in parsed(obj).symbols if symbol.name and symbol.section == 0}
    except (struct.error, IndexError, ValueError) as problem:
        raise BuildError(f"expected a whole ELF object from LLVM, got {len(obj)} bytes: {problem}") from None


def parsed(obj: bytes) -> Object:
    """A relocatable ELF object's sections and symbols. Raises BuildError for anything else."""
    kind, machine = struct.unpack_from("<HH", obj, 16)
    processor = PROCESSORS.get(machine)
    if processor is None or kind != _RELOCATABLE or not obj.startswith(_IDENT[processor.bits]):
        known = ", ".join(one.name for one in PROCESSORS.values())
        raise BuildError(
            f"expected a relocatable ELF object for {known}, got {obj[:7]!r}, type {kind}, machine {machine}; other"
            " processors need their relocations in lite_runtime/native/codegen/relocations.py"
        )
    wide = processor.bits == 64
    offset, *_ = struct.unpack_from("<Q" if wide else "<I", obj, 40 if wide else 32)
    entry, count, strings = struct.unpack_from("<HHH", obj, 58 if wide else 46)
    form = "<IIQQQQIIQQ" if wide else "<10I"
    if entry != struct.calcsize(form):
        raise ValueError(f"sections' headers of {entry} bytes")
    sections = [_Section(*struct.unpack_from(form, obj, offset + i * entry)) for i in range(count)]
    titles = [_string(obj, sections[strings], section.name) for section in sections]
    table = next((section for section in sections if section.kind == _SYMTAB), None)
    if table is None:
        raise BuildError("expected an ELF object with a symbol table, got one without")
    return Object(obj, processor, sections, titles, list(_symbols(obj, table, sections[table.link], wide)))


def _symbols(obj: bytes, table: _Section, strings: _Section, wide: bool) -> Iterator[_Symbol]:
    form = "<IBBHQQ" if wide else "<IIIBBH"
    for at in range(table.offset, table.offset + table.size, struct.calcsize(form)):
        if wide:
            name, info, _, section, value, size = struct.unpack_from(form, obj, at)
        else:
            name, value, size, info, _, section = struct.unpack_from(form, obj, at)
        yield _Symbol(_string(obj, strings, name), info, section, value, size)


def _linked(obj: Object, names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    code, placed = _laid_out(obj)
    later: list[tuple[Reference, int]] = []
    pairs: dict[int, int] = {}
    for section, title in zip(obj.sections, obj.titles, strict=True):
        if section.kind in (_RELA, _REL) and section.info in placed:
            for reference, kind in _references(obj, section, title, code, placed, pairs):
                if kind in obj.processor.late:
                    later.append((reference, kind))
                else:
                    obj.processor.rows[kind][1](reference)
    for reference, kind in later:
        obj.processor.rows[kind][1](reference)
    found = {symbol.name: placed[symbol.section] + symbol.value for symbol in obj.symbols if symbol.section in placed}
    if lacking := [name for name in names if name not in found]:
        raise BuildError(f"expected the kernels {' '.join(names)} in the object, got none called {' '.join(lacking)}")
    return bytes(code), {name: found[name] for name in names}


def _laid_out(obj: Object) -> tuple[bytearray, dict[int, int]]:
    """The code, which is all loaded sections in sequence, and the offset of each section."""
    code, placed = bytearray(), dict[int, int]()
    for i, (section, title) in enumerate(zip(obj.sections, obj.titles, strict=True)):
        if not section.flags & _ALLOC or title.startswith(_UNWINDING):
            continue
        if section.kind not in (_PROGBITS, _NOBITS):
            raise BuildError(f"section {title} of type {section.kind:#x}: expected code and constants alone")
        if section.flags & _WRITE and section.size:
            raise BuildError(f"section {title}: kernels have no memory of their own to write to")
        code += bytes(-len(code) % max(section.align, _ALIGN))
        placed[i] = len(code)
        content = obj.content[section.offset : section.offset + section.size] if section.kind == _PROGBITS else b""
        if section.kind == _PROGBITS and len(content) != section.size:
            raise ValueError(f"section {title} ends behind the file")
        code += content.ljust(section.size, b"\0")
    return code, placed


def _references(
    obj: Object, section: _Section, title: str, code: bytearray, placed: Mapping[int, int], pairs: dict[int, int]
) -> Iterator[tuple[Reference, int]]:
    """A section's relocations, each with its kind."""
    if (section.kind == _RELA) != obj.processor.addends:
        with_or_without = "with" if obj.processor.addends else "without"
        raise BuildError(f"{title}: expected relocations {with_or_without} addends, got others")
    form = {(_RELA, 64): "<QQq", (_REL, 32): "<II"}[section.kind, obj.processor.bits]
    shift = 32 if obj.processor.bits == 64 else 8
    for at in range(section.offset, section.offset + section.size, struct.calcsize(form)):
        where, info, *addend = struct.unpack_from(form, obj.content, at)
        kind, symbol = info & (1 << shift) - 1, obj.symbols[info >> shift]
        name = symbol.name or "an unnamed symbol"
        if kind not in obj.processor.rows:
            known = ", ".join(name for name, _ in obj.processor.rows.values())
            raise BuildError(f"{title}: relocation type {kind} against {name}; expected one of {known}")
        if symbol.section not in placed and obj.processor.rows[kind][0] != "R_RISCV_RELAX":
            raise BuildError(f"kernel code needs {name} from outside; kernels call no library")
        address = placed.get(symbol.section, 0) + symbol.value
        yield Reference(code, placed[section.info] + where, address, addend[0] if addend else 0, pairs), kind


def _string(obj: bytes, table: _Section, at: int) -> str:
    start = table.offset + at
    return obj[start : obj.index(b"\0", start)].decode()
