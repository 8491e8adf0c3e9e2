"""Ways to damage any file, byte by byte."""

from __future__ import annotations

import struct
from random import Random

__all__ = ["spoil"]

_WORDS = (0, 1, 2, 3, 4, 9, 127, 128, 255, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE)
_SCALES = tuple(
    struct.unpack("<I", struct.pack("<f", x))[0] for x in (0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan"))
)


def spoil(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """One more change: bits, bytes, 32-bit words, the end cut off, a part removed, repeated or taken from elsewhere."""
    raw, size = bytearray(data), len(data)
    if size < 8:
        return data + rng.randbytes(8)
    at, count, kind = rng.randrange(size - 4), rng.choice((1, 2, 4, 16, 100)), rng.random()
    if kind < 0.25:
        raw[at] ^= 1 << rng.randrange(8)
    elif kind < 0.4:
        raw[at] = rng.choice((0, 1, 2, 127, 128, 255, rng.randrange(256)))
    elif kind < 0.7:
        struct.pack_into("<I", raw, at & ~3, rng.choice(_WORDS if rng.random() < 0.7 else _SCALES))
    elif kind < 0.75:
        del raw[rng.randrange(size) :]
    elif kind < 0.82:
        del raw[at : at + count]
    elif kind < 0.9:
        raw[at:at] = raw[at : at + count] * rng.choice((1, 1, 2, 50))
    elif kind < 0.95:
        raw[at:at] = rng.randbytes(count)
    else:
        other = rng.choice(others)
        raw = raw[:at] + other[rng.randrange(len(other)) :][: 4 * count] + raw[at:]
    return bytes(raw)
