"""Ways to damage a GGUF file that keep it one: counts, lengths, types, sizes and offsets in place, values of settings,
names, and the numbers of blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import NamedTuple

__all__ = ["sites", "spoil"]

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_WHOLE = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 255, 256, 1 << 16, 1 << 20, 1 << 24, (1 << 28) - 1, 1 << 28)
_WHOLE += ((1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-8, 3e38, -3e38, *map(float, ("nan", "inf", "-inf")))
_TEXTS = (b"llama", b"gemma2", b"qwen3", b"gpt2", b"linear", b"none", b"yarn", b"\x1b[31m", b"\xff\xfe", b"a\nb")
_HALVES = (b"\0\0", b"\xff\xff", b"\x00\x7c", b"\x00\xfc", b"\xff\x7b", b"\x01\x00")
"""Numbers in float16, infinity and NaN among them."""


class Site(NamedTuple):
    """Where a file holds something: "count", "length", "text", "kind", "whole", "real", "offset", "rank" or "data"."""

    kind: str
    at: int
    size: int


def spoil(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """One more change of the file `data`."""
    found = sites(data)
    if not found:
        return data
    kind = rng.choice(sorted({site.kind for site in found}))
    site = rng.choice([site for site in found if site.kind == kind])
    raw = bytearray(data)
    if kind == "text":
        _text(rng, raw, site)
    elif kind == "real":
        struct.pack_into("<f" if site.size == 4 else "<d", raw, site.at, rng.choice(_REALS))
    elif kind == "data":
        at = site.at + rng.randrange(max(1, site.size - 1))
        raw[at : at + 2] = rng.choice(_HALVES)[: len(raw) - at]
    else:
        now = int.from_bytes(raw[site.at : site.at + site.size], "little")
        near = (now - 1, now + 1, now * 2, now // 2, now + 32, now ^ 1)
        new = rng.choice(near) if rng.random() < 0.4 else rng.choice(_WHOLE)
        raw[site.at : site.at + site.size] = (new % (1 << 8 * site.size)).to_bytes(site.size, "little")
    return bytes(raw)


def _text(rng: Random, raw: bytearray, site: Site) -> None:
    """Other letters in place, or another text with its length."""
    if rng.random() < 0.5 and site.size:
        new = rng.choice(_TEXTS)[: site.size]
        at = site.at + rng.randrange(site.size - len(new) + 1)
        raw[at : at + len(new)] = new
    else:
        new = rng.choice(_TEXTS)
        raw[site.at - 8 : site.at + site.size] = struct.pack("<Q", len(new)) + new


@lru_cache(maxsize=2000)
def sites(data: bytes) -> list[Site]:
    """What a file consists of, as far as it can be followed."""
    found: list[Site] = []
    try:
        for site in _walk(data):
            found.append(site)
            if len(found) > 5000:
                break
    except (struct.error, KeyError, OverflowError, RecursionError):
        pass
    return [site for site in found if site.at + site.size <= len(data)]


def _walk(data: bytes) -> Iterator[Site]:
    tensors, values = struct.unpack_from("<8xQQ", data)
    yield from (Site("whole", 4, 4), Site("count", 8, 8), Site("count", 16, 8))
    at = 24
    for _ in range(values):
        at = yield from _texts(data, at)
        at = yield from _value(data, at)
    ends = []
    for _ in range(tensors):
        at = yield from _texts(data, at)
        (rank,) = struct.unpack_from("<I", data, at)
        yield Site("rank", at, 4)
        yield from (Site("whole", at + 4 + 8 * i, 8) for i in range(min(rank, 8)))
        at += 4 + 8 * rank
        yield from (Site("kind", at, 4), Site("offset", at + 4, 8))
        ends.append(struct.unpack_from("<Q", data, at + 4)[0])
        at += 12
    start = -(-at // 32) * 32
    yield from (Site("data", start + end, 64) for end in ends)


def _texts(data: bytes, at: int) -> Iterator[Site]:  # type: ignore[misc]  # returns where it ends
    (size,) = struct.unpack_from("<Q", data, at)
    yield Site("length", at, 8)
    yield Site("text", at + 8, size)
    return at + 8 + size


def _value(data: bytes, at: int) -> Iterator[Site]:  # type: ignore[misc]  # as above
    (kind,) = struct.unpack_from("<I", data, at)
    yield Site("kind", at, 4)
    if kind != 9:
        return (yield from _scalar(data, at + 4, kind))
    return (yield from _array(data, at + 4))


def _array(data: bytes, at: int) -> Iterator[Site]:  # type: ignore[misc]  # as above
    kind, count = struct.unpack_from("<IQ", data, at)
    yield from (Site("kind", at, 4), Site("count", at + 4, 8))
    at += 12
    for _ in range(count):
        at = yield from (_array(data, at) if kind == 9 else _scalar(data, at, kind))
    return at


def _scalar(data: bytes, at: int, kind: int) -> Iterator[Site]:  # type: ignore[misc]  # as above
    if kind == 8:
        return (yield from _texts(data, at))
    width = _WIDTHS[kind]
    yield Site("real" if kind in (6, 12) else "whole", at, width)
    return at + width
