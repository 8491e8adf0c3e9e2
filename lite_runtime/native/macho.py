"""Reads the symbols of Mach-O object files, which LLVM makes for Apple's systems.

Format: "OS X ABI Mach-O File Format Reference"; mach-o/loader.h and mach-o/nlist.h of Apple's xnu.
"""

from __future__ import annotations

import struct

from lite_runtime.native.build import BuildError

__all__ = ["MAGIC", "outside"]

MAGIC = b"\xcf\xfa\xed\xfe"
"""64 bits, little-endian."""
_HEADER, _SYMTAB = 32, 2
_STAB, _TYPE, _UNDEFINED = 0xE0, 0x0E, 0


def outside(obj: bytes) -> set[str]:
    """The symbols that an object needs and does not define, without their leading underscore. Raises BuildError for
    another file."""
    try:
        return set(_undefined(obj))
    except (struct.error, ValueError) as problem:
        raise BuildError(f"expected a whole Mach-O object from LLVM, got {len(obj)} bytes: {problem}") from None


def _undefined(obj: bytes) -> list[str]:
    if not obj.startswith(MAGIC):
        raise ValueError(f"{obj[:4]!r} at its start")
    (commands,) = struct.unpack_from("<I", obj, 16)
    at, found = _HEADER, []
    for _ in range(commands):
        kind, size = struct.unpack_from("<II", obj, at)
        if kind == _SYMTAB:
            symbols, count, strings, _ = struct.unpack_from("<4I", obj, at + 8)
            for i in range(count):
                name, what = struct.unpack_from("<IB", obj, symbols + 16 * i)
                if not what & _STAB and what & _TYPE == _UNDEFINED:
                    start = strings + name
                    found.append(obj[start : obj.index(b"\0", start)].decode().removeprefix("_"))
        at += size
    return found
