"""Object files as a static library, in the format that GNU's, LLVM's and Arm's linkers read (System V's ar)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

__all__ = ["archive"]

_NAME = 15
"""The longest name of a member that needs no table of names."""


def archive(members: Mapping[str, bytes], symbols: Mapping[str, Sequence[str]]) -> bytes:
    """A library with these members, by name, and an index of what each defines. Names have at most 15 characters."""
    if long := [name for name in members if len(name) > _NAME]:
        raise ValueError(f"expected names of at most {_NAME} characters, got {long[0]}")
    named = [(member, symbol) for member in members for symbol in symbols[member]]
    texts = b"".join(symbol.encode() + b"\0" for _, symbol in named)
    at = 8 + len(_member("", bytes(4 * (len(named) + 1)) + texts))
    offsets = {}
    for name, content in members.items():
        offsets[name] = at
        at += len(_member(name, content))
    index = struct.pack(f">{len(named) + 1}I", len(named), *(offsets[member] for member, _ in named))
    parts = [_member("", index + texts), *(_member(name, content) for name, content in members.items())]
    return b"".join([b"!<arch>\n", *parts])


def _member(name: str, content: bytes) -> bytes:
    """A header with date, owner and group 0, and the content, padded to an even size."""
    head = f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n"
    return head.encode() + content + b"\n" * (len(content) % 2)
