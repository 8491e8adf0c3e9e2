"""What a device tells about its work, in batches: counters, sketches of values, how often each class was seen.

A batch has a serial number, and the same content whenever it is sent again: the hub takes each once. A private batch
has classes alone, as noisy shares (`edge.agent.telemetry`), and says by which epsilon and delta.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lite_runtime.frozen import NamedTuple
from lite_runtime.updates import fields
from lite_runtime.updates.fields import name, real, record, rows, table, whole
from lite_runtime.updates.sketch import EDGE, MOST, Sketch

__all__ = ["LARGEST", "MAX_BYTES", "MOST_CLASSES", "MOST_COUNTERS", "MOST_LABELS", "MOST_SKETCHES", "Batch", "Bin"]
__all__ += ["Bins", "Part", "packed", "read_batch", "unpacked", "written"]

MAX_BYTES = 1 << 19
LARGEST = 1 << 53
MOST_COUNTERS, MOST_SKETCHES, MOST_CLASSES, MOST_LABELS = 128, 32, 32, 256
"""Names of a part: of counters, sketches and class histograms, and labels of each histogram."""
_NONE: Mapping[str, int] = MappingProxyType({})


class Bin(NamedTuple):
    """A bin of a sketch and its count."""

    at: int
    number: float


class Bins(NamedTuple):
    """A sketch."""

    zero: float = 0.0
    positive: tuple[Bin, ...] = ()
    negative: tuple[Bin, ...] = ()


class Part(NamedTuple):
    """One version of one application between two times (seconds since 1970, the device's clock). classes: by name and
    label, how often; in a private batch a noisy share of 1."""

    application: str
    version: str
    begun: float
    ended: float
    counters: Mapping[str, int] = _NONE
    sketches: Mapping[str, Bins] = MappingProxyType({})
    classes: Mapping[str, Mapping[str, float]] = MappingProxyType({})


class Batch(NamedTuple):
    """Parts of one device. serial: from 1. epsilon, delta: of all private batches together that the device sends until
    its account is spent, 0: not private."""

    serial: int
    parts: tuple[Part, ...]
    epsilon: float = 0.0
    delta: float = 0.0


_COUNT = real(0, LARGEST)
_BINS = rows(record(Bin, at=whole(-EDGE, EDGE), number=_COUNT), MOST)
_PART = record(
    Part,
    application=name(),
    version=name(),
    begun=real(0, 1e11),
    ended=real(0, 1e11),
    counters=table(whole(0, LARGEST), MOST_COUNTERS),
    sketches=table(record(Bins, zero=_COUNT, positive=_BINS, negative=_BINS), MOST_SKETCHES),
    classes=table(table(real(-1e9, 1e9), MOST_LABELS), MOST_CLASSES),
)
_BATCH = record(Batch, serial=whole(1, LARGEST), parts=rows(_PART, 256), epsilon=real(0, 1e6), delta=real(0, 1))


def read_batch(raw: bytes) -> Batch:
    """The batch that these bytes say. Raises ProtocolError."""
    return fields.read(raw, "telemetry", _BATCH, MAX_BYTES)  # type: ignore[no-any-return]


def written(batch: Batch) -> bytes:
    """The JSON of a batch."""
    return fields.written(batch)


def packed(sketch: Sketch) -> Bins:
    """A sketch as a message has it."""

    def side(bins: Mapping[int, float]) -> tuple[Bin, ...]:
        return tuple(Bin(at, count) for at, count in sorted(bins.items()))

    return Bins(sketch.zero, side(sketch.positive), side(sketch.negative))


def unpacked(bins: Bins) -> Sketch:
    """The sketch of a message."""
    return Sketch(
        bins.zero, {one.at: one.number for one in bins.positive}, {one.at: one.number for one in bins.negative}
    )
