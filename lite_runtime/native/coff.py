"""Reads the symbols of COFF object files, which LLVM makes for Windows.

Format: "PE Format" of Microsoft's documentation, sections "COFF File Header" and "COFF Symbol Table".
"""

from __future__ import annotations

import struct

from lite_runtime.native.build import BuildError

__all__ = ["MACHINES", "outside"]

MACHINES = {b"\x64\x86": "x86_64", b"\x64\xaa": "aarch64"}
"""The first two bytes of a file, by processor."""
_HEADER = struct.Struct("<2sHIIIHH")
_SYMBOL = struct.Struct("<8sIhHBB")
_EXTERNAL, _WEAK_EXTERNAL = 2, 105


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
