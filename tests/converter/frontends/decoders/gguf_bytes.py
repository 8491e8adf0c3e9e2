"""Writes the bytes of GGUF files, sound ones and ones that lie."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Stored", "array", "file", "scalar", "text"]

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


class Stored(NamedTuple):
    """A tensor: `sizes` as the file has them, the axis of neighbours first; `offset` None: after the tensor before."""

    name: str | bytes
    sizes: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None


def text(value: str | bytes, size: int | None = None) -> bytes:
    """A length and text."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if size is None else size) + raw


def scalar(kind: int, value: Any) -> bytes:
    """A value of a type."""
    return struct.pack("<I", kind) + (text(value) if kind == 8 else struct.pack("<" + _CODES[kind], value))


def array(kind: int, values: Sequence[Any], count: int | None = None) -> bytes:
    """An array of a type."""
    items = b"".join(text(v) if kind == 8 else v if kind == 9 else struct.pack("<" + _CODES[kind], v) for v in values)
    return struct.pack("<IIQ", 9, kind, len(values) if count is None else count) + items


def file(
    metadata: Mapping[str, bytes] | Sequence[tuple[str | bytes, bytes]] = (),
    tensors: Sequence[Stored] = (),
    *,
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
    alignment: int = 32,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file. `counts`: of tensors and of metadata, if they are to be wrong."""
    rows = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    made = bytearray(magic + struct.pack("<I", version))
    made += struct.pack("<QQ", *(len(x) if n is None else n for n, x in zip(counts, (tensors, rows), strict=True)))
    for key, value in rows:
        made += text(key) + value
    at, data = 0, bytearray()
    for tensor in tensors:
        offset = at if tensor.offset is None else tensor.offset
        made += text(tensor.name) + struct.pack(f"<I{len(tensor.sizes)}Q", len(tensor.sizes), *tensor.sizes)
        made += struct.pack("<IQ", tensor.kind, offset)
        data += tensor.data + bytes(-len(tensor.data) % alignment)
        at = len(data)
    made += bytes(-len(made) % alignment)
    return bytes(made + data)
