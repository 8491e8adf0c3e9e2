"""A reader of TensorBoard's event files, written from the formats alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any


def records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file, its checksums checked bit by bit."""
    at = 0
    while at < len(data):
        length = data[at : at + 8]
        (size,) = struct.unpack("<Q", length)
        body = data[at + 12 : at + 12 + size]
        sums = struct.unpack("<I", data[at + 8 : at + 12]) + struct.unpack("<I", data[at + 12 + size : at + 16 + size])
        assert sums == (masked(length), masked(body))
        yield body
        at += 16 + size
    assert at == len(data)


def masked(data: bytes) -> int:
    made = 0xFFFFFFFF
    for byte in data:
        made ^= byte
        for _ in range(8):
            made = made >> 1 ^ (0x82F63B78 if made & 1 else 0)
    made ^= 0xFFFFFFFF
    return (((made >> 15) | (made << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data: bytes) -> dict[int, list[Any]]:
    """A protobuf message's fields by number; nested ones as bytes."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if size is None:
                size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def events(data: bytes) -> list[dict[str, Any]]:
    """Scalars and histograms as dicts; the first event is the file's version."""
    made: list[dict[str, Any]] = []
    for number, body in enumerate(records(data)):
        event = fields(body)
        base = {"time": struct.unpack("<d", event[1][0])[0], "step": event.get(2, [0])[0]}  # zeros are left out
        if number == 0:
            assert event[3] == [b"brain.Event:2"]
            continue
        value = fields(fields(event[5][0])[1][0])
        base["tag"] = value[1][0].decode()
        if 2 in value:
            base["value"] = struct.unpack("<f", value[2][0])[0]
        else:
            spread = fields(value[5][0])
            for field, name in enumerate(("min", "max", "num", "sum", "squares"), 1):
                base[name] = struct.unpack("<d", spread.get(field, [bytes(8)])[0])[0]
            for field, name in ((6, "limits"), (7, "counts")):
                base[name] = struct.unpack(f"<{len(spread[field][0]) // 8}d", spread[field][0])
        made.append(base)
    return made
