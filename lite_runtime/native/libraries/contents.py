"""What a shared library offers, and what it asks of a system: as `coff` and `macho` read it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Contents"]


class Contents(NamedTuple):
    """processor: LLVM's name. exports: symbols, as programs name them. imports: symbols of others that its code uses.
    libraries: others that are loaded with it. fixed: bytes of the tables of places that a system writes addresses to
    before the code runs. system: of Apple's, the least version of macOS, as "11.0"; else ""."""

    processor: str
    exports: frozenset[str]
    imports: frozenset[str]
    libraries: tuple[str, ...]
    fixed: int
    system: str = ""
