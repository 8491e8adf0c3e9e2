"""Reads COFF object files, which LLVM makes for Windows, and the libraries (DLLs) that are linked of them; writes an
object file with one function.

Format: "PE Format" of Microsoft's documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from lite_runtime.native.images import BuildError
from lite_runtime.native.libraries.contents import Contents

__all__ = ["MACHINES", "contents", "object_with", "outside"]

MACHINES = {b"\x64\x86": "x86_64", b"\x64\xaa": "aarch64"}
"""The first two bytes of a file, by processor."""
_HEADER = struct.Struct("<2sHIIIHH")
_SYMBOL = struct.Struct("<8sIhHBB")
_EXTERNAL, _WEAK_EXTERNAL = 2, 105
_SECTION = struct.Struct("<8s6IHHI")
_CODE = 0x60500020
"""Flags of a section: code, at multiples of 16 bytes, may be read and executed."""
_FUNCTION = 0x20
_PE32_PLUS, _DIRECTORIES = 0x20B, 112
_EXPORTS, _IMPORTS, _BASE_RELOCATIONS, _DELAYED = 0, 1, 5, 13


def outside(obj: bytes) -> set[str]:
    """The symbols that an object needs and does not define. Raises BuildError for another file."""
    try:
        return set(_undefined(obj))
    except (struct.error, ValueError) as problem:
        raise BuildError(f"expected a whole COFF object from LLVM, got {len(obj)} bytes: {problem}") from None


def _undefined(obj: bytes) -> list[str]:
    machine, _, _, symbols, count, _, _ = _HEADER.unpack_from(obj)
    if machine not in MACHINES:
        raise ValueError(f"{machine!r} at its start")
    strings, found, i = symbols + _SYMBOL.size * count, [], 0
    while i < count:
        name, value, section, _, kind, more = _SYMBOL.unpack_from(obj, symbols + _SYMBOL.size * i)
        if section == 0 and value == 0 and kind in (_EXTERNAL, _WEAK_EXTERNAL):
            short, (zeros, offset) = name.rstrip(b"\0"), struct.unpack("<II", name)
            start = strings + offset
            found.append((obj[start : obj.index(b"\0", start)] if not zeros else short).decode())
        i += 1 + more
    return found


def object_with(processor: str, name: str, code: bytes) -> bytes:
    """An object file that defines one function. name: of nine bytes or more."""
    (machine,) = (number for number, of in MACHINES.items() if of == processor)
    begin = _HEADER.size + _SECTION.size
    text = name.encode() + b"\0"
    return b"".join(
        (
            _HEADER.pack(machine, 1, 0, begin + len(code), 1, 0, 0),
            _SECTION.pack(b".text", 0, 0, len(code), begin, 0, 0, 0, 0, _CODE),
            code,
            _SYMBOL.pack(struct.pack("<II", 0, 4), 0, 1, _FUNCTION, _EXTERNAL, 0),
            struct.pack("<I", 4 + len(text)),
            text,
        )
    )


def contents(library: bytes) -> Contents:
    """What is in a DLL for 64 bits. Raises BuildError for another file."""
    try:
        return _Library(library).contents()
    except (struct.error, ValueError, IndexError, KeyError) as problem:
        raise BuildError(f"expected a whole DLL, got {len(library)} bytes: {problem}") from None


class _Library:
    """A DLL, whose parts refer to one another by their addresses in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        (start,) = struct.unpack_from("<I", content, 60)
        if content[:2] != b"MZ" or content[start : start + 4] != b"PE\0\0":
            raise ValueError(f"{content[:2]!r} at its start")
        self._machine, count, _, _, _, size, _ = _HEADER.unpack_from(content, start + 4)
        optional = start + 4 + _HEADER.size
        (magic,) = struct.unpack_from("<H", content, optional)
        if magic != _PE32_PLUS:
            raise ValueError(f"a header of kind {magic:#x}")
        self._tables = optional + _DIRECTORIES
        self._sections = [_SECTION.unpack_from(content, optional + size + i * _SECTION.size) for i in range(count)]

    def _table(self, number: int) -> tuple[int, int]:
        """Address and bytes of one of the header's tables."""
        address, size = struct.unpack_from("<II", self._content, self._tables + 8 * number)
        return address, size

    def _at(self, address: int) -> int:
        """The place in the file of what lies at an address."""
        for _, _, begin, size, raw, *_ in self._sections:
            if begin <= address < begin + size:
                return int(address - begin + raw)
        raise ValueError(f"no section at {address:#x}")

    def _text(self, address: int) -> str:
        start = self._at(address)
        return self._content[start : self._content.index(b"\0", start)].decode()

    def contents(self) -> Contents:
        if self._table(_DELAYED)[1]:
            raise ValueError("libraries that are loaded later")
        imports = list(self._imports())
        return Contents(
            processor=MACHINES[self._machine],
            exports=frozenset(self._exports()),
            imports=frozenset(name for _, names in imports for name in names),
            libraries=tuple(library for library, _ in imports),
            fixed=self._table(_BASE_RELOCATIONS)[1],
        )

    def _exports(self) -> Iterator[str]:
        address, size = self._table(_EXPORTS)
        if size:
            count, _, names = struct.unpack_from("<3I", self._content, self._at(address) + 24)
            for i in range(count):
                yield self._text(struct.unpack_from("<I", self._content, self._at(names) + 4 * i)[0])

    def _imports(self) -> Iterator[tuple[str, list[str]]]:
        """Libraries, and the symbols of each that are used; those used by number are "#" and the number."""
        address, size = self._table(_IMPORTS)
        for at in range(address, address + size, 20) if size else ():
            symbols, _, _, name, _ = struct.unpack_from("<5I", self._content, self._at(at))
            if not name:
                return
            names: list[str] = []
            while symbol := struct.unpack_from("<Q", self._content, self._at(symbols + 8 * len(names)))[0]:
                names.append(f"#{symbol & 0xFFFF}" if symbol >> 63 else self._text(symbol + 2))
            yield self._text(name), names
