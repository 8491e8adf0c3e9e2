"""Tensors inside protobuf messages, without copying them.

Protobuf's parser copies every `bytes` field twice: into its own memory, and into an object of Python. The tensors of a
request, `raw_input_contents`, are therefore found in the message itself, and only what remains is parsed. In a reply
they are appended to the serialised rest.

Source: Protocol Buffers, Encoding. A message is a sequence of (key, value), key = field number << 3 | wire type; its
fields may be in any order, and the concatenation of two messages is their merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edge.gateway.errors import GatewayError

__all__ = ["MOST_FIELDS", "Parted", "nested", "part", "varint"]

MOST_FIELDS = 4096
"""The largest number of fields at the top of a request: each costs time and memory before anything is checked."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Parted(NamedTuple):
    """rest: the message without the field; raws: where each of the field's values begins, and its length."""

    rest: bytes
    raws: list[tuple[int, int]]


def part(message: bytes, field: int) -> Parted:
    """Separate the values of a repeated `bytes` field from the rest of a message.

    Raises GatewayError: 400 if this is no message, 413 if it has more than `MOST_FIELDS` fields.
    """
    raws: list[tuple[int, int]] = []
    kept: list[bytes] = []
    at = begin = 0
    end, wanted = len(message), field << 3 | _BYTES
    for _ in range(MOST_FIELDS):
        if at == end:
            break
        start = at
        key, at = _read(message, at)
        kind = key & 7
        size = 0
        if kind == _BYTES:
            size, at = _read(message, at)
        elif kind == _VARINT:
            _, at = _read(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise _damaged(f"field {key >> 3} at byte {start} has the wire type {kind}")
        if size > end - at:
            raise _damaged(f"field {key >> 3} at byte {start} has {size} bytes, {end - at} are left")
        if key == wanted:
            kept.append(message[begin:start])
            raws.append((at, size))
            begin = at + size
        at += size
    if at < end:
        raise GatewayError(413, f"expected at most {MOST_FIELDS} inputs, outputs and other fields in a request")
    return Parted(b"".join((*kept, message[begin:])), raws)


def _read(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and where the next one begins."""
    value = shift = 0
    while shift < 70 and at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _damaged(f"the number before byte {at} does not end")


def _damaged(why: str) -> GatewayError:
    return GatewayError(400, f"expected a protobuf message: {why}")


def varint(value: int) -> bytes:
    """A number from 0 on, as written in messages."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def nested(field: int, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """A field whose value is these parts, one after the other."""
    return [varint(field << 3 | _BYTES) + varint(sum(map(len, parts))), *parts]
