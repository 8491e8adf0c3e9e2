"""Reads WebAssembly object files as LLVM makes them: functions, data segments, and relocations by symbols.

Formats: WebAssembly Core Specification 2.0, chapter 5 (binary format); "WebAssembly Object File Linking" of the
tool-conventions repository (sections `linking` and `reloc.*`, version 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lite_runtime.frozen import NamedTuple
from lite_runtime.native.build import BuildError

__all__ = ["DATA", "FUNCTION", "GLOBAL", "TABLE", "Function", "Object", "Piece", "Relocation", "Segment", "Symbol"]
__all__ += ["read_object", "read_sleb", "sleb", "uleb"]

_MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _TYPE, _IMPORT, _FUNCTION, _CODE, _DATA = 0, 1, 2, 3, 10, 11
_LINKING_VERSION, _SEGMENT_INFO, _SYMBOL_TABLE = 2, 5, 8
FUNCTION, DATA, GLOBAL, SECTION, TAG, TABLE = range(6)
"""Kinds of symbols."""
_UNDEFINED, _EXPLICIT_NAME = 0x10, 0x40
_WITH_ADDEND = frozenset({3, 4, 5, 8, 9})
_IMPORTED_FUNCTION, _IMPORTED_TABLE, _IMPORTED_MEMORY, _IMPORTED_GLOBAL = range(4)


def uleb(value: int) -> bytes:
    """An unsigned number in LEB128, as short as possible."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def sleb(value: int) -> bytes:
    """A signed number in LEB128, as short as possible."""
    out = bytearray()
    while True:
        low = value & 0x7F
        value >>= 7
        if value == (-1 if low & 0x40 else 0):
            out.append(low)
            return bytes(out)
        out.append(low | 0x80)


def read_sleb(content: bytes) -> int:
    """The signed number at the start of these bytes, in LEB128."""
    return _Reader(content).sleb()


class Relocation(NamedTuple):
    """Bytes at `offset` of a function or segment that depend on a symbol (a type for kind 6), by its `number`, and on
    `addend`."""

    kind: int
    offset: int
    number: int
    addend: int


class Piece(NamedTuple):
    """Bytes with relocations, in the order of their offsets."""

    content: bytes
    relocations: Sequence[Relocation]


class Function(NamedTuple):
    """A function's type and its body: locals and code."""

    type: int
    body: Piece


class Segment(NamedTuple):
    """Data, to lie at a multiple of `align` bytes."""

    align: int
    body: Piece


class Symbol(NamedTuple):
    """A name for a function, a place in a segment, or an import. number: of the function, counted without imports, or
    the segment; -1 if it is not defined here."""

    kind: int
    name: str
    number: int
    offset: int = 0


class Object(NamedTuple):
    """types: each as bytes; equal types have equal bytes."""

    types: Sequence[bytes]
    functions: Sequence[Function]
    segments: Sequence[Segment]
    symbols: Sequence[Symbol]


class _Reader:
    def __init__(self, content: bytes, at: int = 0, end: int | None = None) -> None:
        self.content, self.at, self.end = content, at, len(content) if end is None else end

    def take(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + count
        if not begin <= self.at <= self.end:
            raise ValueError(f"{count} bytes at {begin} of {self.end}")
        return self.content[begin : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if byte & 0x40 else value

    def name(self) -> str:
        return self.take(self.uleb()).decode()

    def limits(self) -> None:
        flags = self.byte()
        self.uleb()
        if flags & 1:
            self.uleb()


def read_object(content: bytes, shown: str) -> Object:
    """The parts of an object file; `shown` names it in errors. Raises BuildError for a file that is not one."""
    try:
        return _Parts(content).whole()
    except (IndexError, KeyError, ValueError) as problem:
        raise BuildError(f"{shown}: expected a WebAssembly object from LLVM, got another file: {problem}") from None


class _Parts:
    """The sections of an object file while it is read."""

    def __init__(self, content: bytes) -> None:
        if not content.startswith(_MAGIC):
            raise ValueError(f"no {_MAGIC!r} at its start")
        self.content = content
        self.sections: list[tuple[int, str, _Reader, int]] = []
        reader = _Reader(content, len(_MAGIC))
        while reader.at < reader.end:
            kind, size = reader.byte(), reader.uleb()
            begin = reader.at
            reader.take(size)
            inner = _Reader(content, begin, begin + size)
            self.sections.append((kind, inner.name() if kind == _CUSTOM else "", inner, begin))

    def whole(self) -> Object:
        """Everything that linking needs."""
        imported = self._imported_functions()
        types, relocations = self._types(), self._relocations()
        aligns, symbols = self._linking(imported)
        kinds = self._function_types()
        functions = [Function(*pair) for pair in zip(kinds, self._bodies(relocations), strict=True)]
        data = [Segment(*pair) for pair in zip(aligns, self._data(relocations), strict=True)]
        return Object(types, functions, data, symbols)

    def _of(self, kind: int) -> tuple[int, _Reader, int]:
        """A section's number, its contents, and where they begin; one that is not there has no items."""
        for number, (found, _, reader, begin) in enumerate(self.sections):
            if found == kind:
                return number, _Reader(self.content, reader.at, reader.end), begin
        return -1, _Reader(b"\0", 0, 1), 0

    def _types(self) -> list[bytes]:
        _, reader, _ = self._of(_TYPE)
        found = []
        for _ in range(reader.uleb()):
            begin = reader.at
            if reader.byte() != 0x60:
                raise ValueError("a type that is no function's")
            reader.take(reader.uleb())
            reader.take(reader.uleb())
            found.append(self.content[begin : reader.at])
        return found

    def _imported_functions(self) -> list[str]:
        _, reader, _ = self._of(_IMPORT)
        names = []
        for _ in range(reader.uleb()):
            module, name, kind = reader.name(), reader.name(), reader.byte()
            if kind == _IMPORTED_FUNCTION:
                reader.uleb()
                names.append(name)
            elif kind == _IMPORTED_TABLE:
                reader.byte()
                reader.limits()
            elif kind == _IMPORTED_MEMORY:
                reader.limits()
            elif kind == _IMPORTED_GLOBAL:
                reader.take(2)
            else:
                raise ValueError(f"an import {module}.{name} of kind {kind}")
        return names

    def _function_types(self) -> list[int]:
        _, reader, _ = self._of(_FUNCTION)
        return [reader.uleb() for _ in range(reader.uleb())]

    def _bodies(self, relocations: Mapping[int, Sequence[Relocation]]) -> list[Piece]:
        number, reader, begin = self._of(_CODE)
        pieces = []
        for _ in range(reader.uleb()):
            size = reader.uleb()
            pieces.append((reader.at - begin, reader.take(size)))
        return _pieces(pieces, relocations.get(number, ()))

    def _data(self, relocations: Mapping[int, Sequence[Relocation]]) -> list[Piece]:
        number, reader, begin = self._of(_DATA)
        pieces = []
        for _ in range(reader.uleb()):
            if reader.uleb() != 0 or reader.byte() != 0x41:
                raise ValueError("a data segment that is not at a constant place of memory 0")
            reader.sleb()
            if reader.byte() != 0x0B:
                raise ValueError("a data segment whose place is no constant")
            size = reader.uleb()
            pieces.append((reader.at - begin, reader.take(size)))
        return _pieces(pieces, relocations.get(number, ()))

    def _relocations(self) -> dict[int, list[Relocation]]:
        found: dict[int, list[Relocation]] = {}
        for kind, name, inner, _ in self.sections:
            if kind != _CUSTOM or not name.startswith("reloc."):
                continue
            reader = _Reader(self.content, inner.at, inner.end)
            rows = found.setdefault(reader.uleb(), [])
            for _ in range(reader.uleb()):
                how, offset, index = reader.byte(), reader.uleb(), reader.uleb()
                rows.append(Relocation(how, offset, index, reader.sleb() if how in _WITH_ADDEND else 0))
        return found

    def _linking(self, imported: Sequence[str]) -> tuple[list[int], list[Symbol]]:
        aligns: list[int] = []
        symbols: list[Symbol] = []
        for kind, name, inner, _ in self.sections:
            if kind != _CUSTOM or name != "linking":
                continue
            reader = _Reader(self.content, inner.at, inner.end)
            if (version := reader.uleb()) != _LINKING_VERSION:
                raise ValueError(f"linking data of version {version}, not {_LINKING_VERSION}")
            while reader.at < reader.end:
                part, size = reader.byte(), reader.uleb()
                own = _Reader(self.content, reader.at, reader.at + size)
                reader.take(size)
                if part == _SEGMENT_INFO:
                    for _ in range(own.uleb()):
                        own.name()
                        aligns.append(1 << own.uleb())
                        own.uleb()
                elif part == _SYMBOL_TABLE:
                    symbols += [_symbol(own, imported) for _ in range(own.uleb())]
        return aligns, symbols


def _symbol(reader: _Reader, imported: Sequence[str]) -> Symbol:
    kind, flags = reader.byte(), reader.uleb()
    defined = not flags & _UNDEFINED
    if kind == DATA:
        name = reader.name()
        if not defined:
            return Symbol(kind, name, -1)
        segment, offset = reader.uleb(), reader.uleb()
        reader.uleb()
        return Symbol(kind, name, segment, offset)
    if kind == SECTION:
        return Symbol(kind, "", reader.uleb())
    index = reader.uleb()
    names_itself = defined or flags & _EXPLICIT_NAME
    name = reader.name() if names_itself else imported[index] if kind == FUNCTION else ""
    return Symbol(kind, name, index - len(imported) if defined and kind == FUNCTION else -1)


def _pieces(found: Sequence[tuple[int, bytes]], relocations: Sequence[Relocation]) -> list[Piece]:
    """Divide a section's relocations among its functions or segments, each with its offset in the section."""
    made = []
    for begin, content in found:
        own = (r for r in relocations if begin <= r.offset < begin + len(content))
        rows = sorted((Relocation(r.kind, r.offset - begin, r.number, r.addend) for r in own), key=lambda r: r.offset)
        made.append(Piece(content, rows))
    if sum(len(piece.relocations) for piece in made) != len(relocations):
        raise ValueError("relocations outside functions and data")
    return made
