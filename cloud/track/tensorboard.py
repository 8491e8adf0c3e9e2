"""Runs as TensorBoard's event files: records framed as TFRecord, of Event messages; both are written here by hand.

Formats: tensorflow/core/lib/io/record_writer.h (framing, masked CRC-32C of RFC 3720), and the fields of Event, Summary
and HistogramProto in tensorflow/core/framework/summary.proto that scalars and histograms need.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from cloud.errors import TrackError
from cloud.track.runs import Histogram, Run
from cloud.track.store import Store
from lite_runtime._files import write_atomically

__all__ = ["crc32c", "export", "record"]

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""Wire types of protocol buffers."""


def export(store: Store, run: Run, folder: Path) -> Path:
    """Write a run's scalars and histograms to `folder`/`run.id`; the file's path. Raises TrackError."""
    target = folder / run.id / f"events.out.tfevents.{int(run.created)}.{run.host}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrackError(f"cannot make the folder {str(target.parent)!r}: {error.strerror}; choose another") from error
    write_atomically(target, b"".join(map(record, _events(store, run))), TrackError)
    return target


def _events(store: Store, run: Run) -> Iterator[bytes]:
    yield _event(run.created, 0, _text(3, "brain.Event:2"))
    for name in store.names(run.id):
        series = store.scalars(run.id, name)
        for step, value, at in zip(series.steps, series.values, series.times, strict=True):
            yield _event(at, step, _summary(name, _key(2, _FLOAT) + struct.pack("<f", value)))
    for name, found in store.histograms(run.id).items():
        for made in found:
            yield _event(run.created, made.step, _summary(name, _chunk(5, _histogram(made))))


def _event(when: float, step: int, what: bytes) -> bytes:
    return _key(1, _DOUBLE) + struct.pack("<d", when) + _key(2, _VARINT) + _varint(step) + what


def _summary(tag: str, value: bytes) -> bytes:
    """Event.summary with one Summary.Value."""
    return _chunk(5, _chunk(1, _text(1, tag) + value))


def _histogram(made: Histogram) -> bytes:
    """HistogramProto; moments are those of the buckets' middles."""
    middles = [(low + high) / 2 for low, high in zip(made.edges, made.edges[1:], strict=False)]
    total = float(sum(made.counts))
    squares = sum(n * m * m for n, m in zip(made.counts, middles, strict=True))
    heads = (made.edges[0], made.edges[-1], total, made.mean * total, squares)
    numbers = b"".join(_key(at, _DOUBLE) + struct.pack("<d", value) for at, value in enumerate(heads, 1))
    # A bucket is named by its upper end; an empty one up to the lowest edge says where the first begins.
    return numbers + _chunk(6, _doubles(made.edges)) + _chunk(7, _doubles((0.0, *map(float, made.counts))))


def _doubles(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _chunk(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _chunk(field, text.encode())


def _varint(value: int) -> bytes:
    made = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def record(data: bytes) -> bytes:
    """A TFRecord: length, its checksum, the data, its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    made = crc32c(data)
    return ((made >> 15 | made << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    table, made = _table(), 0xFFFFFFFF
    for byte in data:
        made = table[(made ^ byte) & 0xFF] ^ made >> 8
    return made ^ 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    made = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        made.append(value)
    return tuple(made)
