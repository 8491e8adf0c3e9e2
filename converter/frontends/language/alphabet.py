"""GPT-2's alphabet: the printable characters in which vocabulary files write bytes."""

from __future__ import annotations

__all__ = ["ALPHABET", "bytes_of"]

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
ALPHABET: dict[str, int] = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): b for i, b in enumerate(_OTHERS)}
"""The byte that a character stands for."""


def bytes_of(token: str) -> bytes | None:
    """The bytes that a token stands for; None if it has a character that is not in the alphabet."""
    found = [ALPHABET.get(c) for c in token]
    return None if None in found else bytes(byte for byte in found if byte is not None)
