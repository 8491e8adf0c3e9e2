"""Reads Mach-O files, of Apple's systems: symbols of object files that LLVM makes; contents and signature of libraries.

Formats: "OS X ABI Mach-O File Format Reference"; mach-o/loader.h and mach-o/nlist.h of Apple's xnu; the trie of exports
as dyld walks it; code directories as in kern/cs_blobs.h of xnu.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256

from lite_runtime.native.images import BuildError
from lite_runtime.native.libraries.contents import Contents

__all__ = ["MAGIC", "contents", "outside", "signature"]

MAGIC = b"\xcf\xfa\xed\xfe"
"""64 bits, little-endian."""
_HEADER, _DYLIB = 32, 6
_SYMTAB, _LOAD_DYLIB, _CODE_SIGNATURE, _VERSION_MIN, _BUILD_VERSION = 0x2, 0xC, 0x1D, 0x24, 0x32
_DYLD_INFO, _EXPORTS_TRIE, _CHAINED_FIXUPS = 0x80000022, 0x80000033, 0x80000034
_PROCESSORS = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
_STAB, _TYPE, _UNDEFINED = 0xE0, 0x0E, 0
_BLOBS, _DIRECTORY, _AD_HOC, _SHA256 = 0xFADE0CC0, 0xFADE0C02, 2, 2


def outside(obj: bytes) -> set[str]:
    """The symbols that an object needs and does not define, without their leading underscore. Raises BuildError for
    another file."""
    try:
        return set(_undefined(obj))
    except (struct.error, ValueError) as problem:
        raise BuildError(f"expected a whole Mach-O object from LLVM, got {len(obj)} bytes: {problem}") from None


def contents(library: bytes) -> Contents:
    """What is in a dynamic library. Raises BuildError for another file."""
    try:
        return _contents(library)
    except (struct.error, ValueError, IndexError, KeyError) as problem:
        raise BuildError(f"expected a whole Mach-O library, got {len(library)} bytes: {problem}") from None


def signature(library: bytes) -> str:
    """The identifier in a library's ad-hoc signature, whose digests are compared with its pages; "" for a library
    without one. Raises BuildError if they differ."""
    try:
        parts = [command for kind, command in _commands(library) if kind == _CODE_SIGNATURE]
        return _verified(library, *struct.unpack_from("<II", parts[0], 8)) if parts else ""
    except (struct.error, ValueError, IndexError) as problem:
        raise BuildError(f"expected a Mach-O library with a valid signature, got another: {problem}") from None


def _commands(obj: bytes) -> Iterator[tuple[int, bytes]]:
    """Load commands, with their numbers."""
    if not obj.startswith(MAGIC):
        raise ValueError(f"{obj[:4]!r} at its start")
    (count,) = struct.unpack_from("<I", obj, 16)
    at = _HEADER
    for _ in range(count):
        kind, size = struct.unpack_from("<II", obj, at)
        if size < 8 or len(obj) < at + size:
            raise ValueError(f"a load command of {size} bytes at {at}")
        yield kind, obj[at : at + size]
        at += size


def _undefined(obj: bytes) -> list[str]:
    found = []
    for kind, command in _commands(obj):
        if kind == _SYMTAB:
            symbols, count, strings, _ = struct.unpack_from("<4I", command, 8)
            for i in range(count):
                name, what = struct.unpack_from("<IB", obj, symbols + 16 * i)
                if not what & _STAB and what & _TYPE == _UNDEFINED:
                    found.append(_text(obj, strings + name).removeprefix("_"))
    return found


def _text(content: bytes, start: int) -> str:
    """A text that a zero byte ends."""
    return content[start : content.index(b"\0", start)].decode()


def _contents(library: bytes) -> Contents:
    _, processor, _, kind = struct.unpack_from("<4I", library)
    if kind != _DYLIB:
        raise ValueError(f"a file of type {kind}")
    libraries, exports, fixed, system = [], set[str](), 0, ""
    for kind, command in _commands(library):
        if kind == _LOAD_DYLIB:
            libraries.append(_text(command, struct.unpack_from("<I", command, 8)[0]))
        elif kind in (_VERSION_MIN, _BUILD_VERSION):
            (version,) = struct.unpack_from("<I", command, 8 if kind == _VERSION_MIN else 12)
            system = f"{version >> 16}.{version >> 8 & 255}"
        elif kind == _DYLD_INFO:
            *tables, trie, size = struct.unpack_from("<10I", command, 8)
            fixed += sum(tables[1::2])
            exports.update(_exported(library[trie : trie + size]))
        elif kind == _EXPORTS_TRIE:
            trie, size = struct.unpack_from("<II", command, 8)
            exports.update(_exported(library[trie : trie + size]))
        elif kind == _CHAINED_FIXUPS:
            fixed += struct.unpack_from("<I", command, 12)[0]
    names = frozenset(name.removeprefix("_") for name in exports)
    return Contents(_PROCESSORS[processor], names, frozenset(_undefined(library)), tuple(libraries), fixed, system)


def _exported(trie: bytes) -> Iterator[str]:
    """The names of a trie: a node has the bytes of its symbol, if it is one, then edges to longer names."""
    nodes = [(0, "")] if trie else []
    while nodes:
        at, name = nodes.pop()
        size, at = _uleb(trie, at)
        if size:
            yield name
        at += size
        for _ in range(trie[at]):
            more = _text(trie, at + 1)
            child, after = _uleb(trie, at + 2 + len(more))
            nodes.append((child, name + more))
            at = after - 1


def _uleb(content: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, lowest first, and where it ends."""
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 128:
            return value, at


def _verified(library: bytes, start: int, size: int) -> str:
    blobs = library[start : start + size]
    magic, _, count = struct.unpack_from(">3I", blobs)
    first, at = struct.unpack_from(">II", blobs, 12)
    if magic != _BLOBS or count != 1 or first != 0:
        raise ValueError("a signature of other parts than a code directory")
    magic, _, _, flags, digests, name, _, slots, end = struct.unpack_from(">9I", blobs, at)
    length, how, _, page = struct.unpack_from(">4B", blobs, at + 36)
    if magic != _DIRECTORY or not flags & _AD_HOC or (length, how) != (32, _SHA256) or end != start:
        raise ValueError("a code directory that is not ad-hoc, or of other digests than SHA-256 of all before it")
    for i in range(slots):
        part = library[i << page : min(i + 1 << page, end)]
        if sha256(part).digest() != blobs[at + digests + 32 * i : at + digests + 32 * (i + 1)]:
            raise ValueError(f"page {i} with another digest than is signed")
    if slots << page < end:
        raise ValueError(f"digests of {slots} pages for {end} bytes")
    return _text(blobs, at + name)
