"""The stack that functions of a Thumb object file take (Cortex-M), read from their code.

Every function lowers the stack pointer by constants alone: instructions that push registers, and subtractions. LLVM
marks the data between instructions by symbols `$d`, and code by `$t` (ELF for the Arm Architecture, 5.5.5).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lite_runtime.native.build import BuildError
from lite_runtime.native.codegen.link import Object, parsed

__all__ = ["LIBRARY", "depths"]

LIBRARY = 128
"""Bytes for a function from outside: compilers' own, for divisions of 64 bits and float64."""
_ALIGNMENT = 64
"""A frame with memory at a multiple of this wastes less."""
_FUNCTION, _REL, _CALL, _JUMP = 2, 9, 10, 30
"""A symbol's type, a section's, and kinds of relocations: R_ARM_THM_CALL, R_ARM_THM_JUMP24."""
_SP, _PC_AND_LR = 13, 0x1FF


class _Function(NamedTuple):
    name: str
    section: int
    start: int
    end: int


def depths(obj: bytes) -> dict[str, int]:
    """Bytes of stack that each function takes together with those that it calls, by symbol. Raises BuildError for
    recursion, for calls by address, and for a frame whose size is not constant."""
    held = parsed(obj)
    functions = {f.name: f for f in _functions(held)}
    found: dict[str, int] = {}
    calls = {name: list(_calls(held, function, functions)) for name, function in functions.items()}
    for name in functions:
        _deepest(name, functions, calls, held, found)
    return found


def _deepest(
    name: str,
    functions: Mapping[str, _Function],
    calls: Mapping[str, list[str]],
    held: Object,
    found: dict[str, int],
) -> int:
    if name not in functions:
        return LIBRARY
    if name not in found:
        found[name] = -1
        inner = max((_deepest(called, functions, calls, held, found) for called in calls[name]), default=0)
        found[name] = _frame(held, functions[name]) + inner
    if found[name] < 0:
        raise BuildError(f"{name} calls itself, which no kernel may")
    return found[name]


def _functions(held: Object) -> Iterator[_Function]:
    for symbol in held.symbols:
        if symbol.info & 15 == _FUNCTION and symbol.size:
            start = symbol.value & ~1
            yield _Function(symbol.name, symbol.section, start, start + symbol.size)


def _calls(held: Object, function: _Function, functions: Mapping[str, _Function]) -> Iterator[str]:
    places = {(f.section, f.start): f.name for f in functions.values()}
    for section in held.sections:
        if section.kind != _REL or section.info != function.section:
            continue
        for at in range(section.offset, section.offset + section.size, 8):
            where, info = struct.unpack_from("<II", held.content, at)
            if function.start <= where < function.end and info & 255 in (_CALL, _JUMP):
                symbol = held.symbols[info >> 8]
                yield symbol.name or places.get((symbol.section, symbol.value & ~1), "")


def _frame(held: Object, function: _Function) -> int:
    taken = aligned = 0
    for first, second in _instructions(held, function):
        taken += _lowered(first, second, function.name)
        aligned |= first & 0xFF87 == 0x4685  # mov sp, …
    return taken + aligned * _ALIGNMENT


def _instructions(held: Object, function: _Function) -> Iterator[tuple[int, int]]:
    """Instructions of 16 bits, and of 32 bits as two halves; the second is 0 for the others."""
    marks = sorted(
        (s.value, s.name[:2] == "$t")
        for s in held.symbols
        if s.section == function.section and s.name[:2] in ("$t", "$d")
    )
    base, at, code = held.sections[function.section].offset, function.start, True
    while at < function.end:
        while marks and marks[0][0] <= at:
            code = marks.pop(0)[1]
        if not code:
            at += 2
            continue
        (first,) = struct.unpack_from("<H", held.content, base + at)
        wide = first >> 11 in (0b11101, 0b11110, 0b11111)
        yield first, struct.unpack_from("<H", held.content, base + at + 2)[0] if wide else 0
        at += 4 if wide else 2


def _lowered(first: int, second: int, name: str) -> int:
    """By how many bytes an instruction lowers the stack pointer (Armv7-M Architecture Reference Manual, A7.7)."""
    if first & 0xFE00 == 0xB400:  # push
        return 4 * (first & _PC_AND_LR).bit_count()
    if first & 0xFF80 == 0xB080:  # sub sp, #
        return 4 * (first & 0x7F)
    if first == 0xE92D:  # push.w
        return 4 * second.bit_count()
    if first == 0xF84D and second & 0x0FFF == 0x0D04:  # push of one register
        return 4
    if first & 0xFFBF == 0xED2D and second & 0x0E00 == 0x0A00:  # vpush
        return 4 * (second & 0xFF)
    if first & 0xFF87 == 0x4780:  # blx
        raise BuildError(f"{name} calls a function by its address, which no kernel may")
    to_sp = second >> 8 & 15 == _SP and not second & 0x8000
    if first & 0xFBEF == 0xF1AD and to_sp:  # sub.w sp, sp, #
        return _expanded((first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF)
    if first & 0xFBFF == 0xF2AD and to_sp:  # subw sp, sp, #
        return (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
    if first & 0xFFEF == 0xEBAD and to_sp:
        raise BuildError(f"{name} takes a frame whose size is not constant, which no kernel may")
    return 0


def _expanded(bits: int) -> int:
    """A constant of 12 bits as Thumb instructions hold it (A5.3.2)."""
    if bits >> 10 == 0:
        byte = bits & 0xFF
        return (byte, byte << 16 | byte, byte << 24 | byte << 8, byte * 0x01010101)[bits >> 8 & 3]
    value, turn = 0x80 | bits & 0x7F, bits >> 7
    return (value >> turn | value << 32 - turn) & 0xFFFFFFFF
