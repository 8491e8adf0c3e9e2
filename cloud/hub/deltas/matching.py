"""Bytes as copies from older ones and literal rest: a greedy search by windows of a few bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["Copy", "Literal", "matched"]

WINDOW = 8
"""Bytes that must be the same for a place to be looked at."""
LEAST = 12
"""Fewest bytes of a copy: an operation takes about four."""
_KEYS = 1 << 22
_BLOCK = 1 << 20


class Copy(NamedTuple):
    """Bytes of the old file."""

    place: int
    size: int


class Literal(NamedTuple):
    """Bytes of the new file."""

    content: bytes


def matched(new: memoryview, old: memoryview, near: int = 0) -> Iterator[Copy | Literal]:
    """`new` as copies from `old` and literals, in order. near: the place in `old` that is tried first."""
    index = _Index(old)
    at = start = 0
    shift = near
    while at < len(new):
        hit, places = index.next(new, at)
        place, size = max(
            ((place, _same(new, hit, old, place)) for place in {*places, shift + hit} if 0 <= place < len(old)),
            key=lambda one: (one[1], -abs(one[0] - shift - hit)),
            default=(0, 0),
        )
        back = _same_before(new, start, hit, old, place) if size else 0
        if size + back < LEAST and size + back < len(new) - start:
            at = hit + 1
            continue
        if hit - back > start:
            yield Literal(bytes(new[start : hit - back]))
        yield Copy(place - back, size + back)
        at = start = hit + size
        shift = place - hit
    if start < len(new):
        yield Literal(bytes(new[start:]))


def _same(new: memoryview, at: int, old: memoryview, place: int) -> int:
    """How many bytes from here on are the same."""
    count, step = 0, 64
    while True:
        one, other = new[at + count : at + count + step], old[place + count : place + count + step]
        length = min(len(one), len(other))
        if one[:length] != other[:length]:
            differs = np.frombuffer(one, np.uint8, length) != np.frombuffer(other, np.uint8, length)
            return count + int(differs.argmax())
        count += length
        if length < step:
            return count
        step = min(2 * step, 1 << 20)


def _same_before(new: memoryview, start: int, at: int, old: memoryview, place: int) -> int:
    """How many bytes before here are the same, from `start` on."""
    count = 0
    while at - count > start and place - count > 0 and new[at - count - 1] == old[place - count - 1]:
        count += 1
    return count


class _Index:
    """Places of windows in the old bytes."""

    def __init__(self, old: memoryview) -> None:
        stride = 1 + len(old) // _KEYS
        keys = _windows(old, stride)
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._stride = stride
        self._from = self._to = 0

    def next(self, new: memoryview, at: int) -> tuple[int, list[int]]:
        """The first position from `at` on whose window is known, and up to two places of it; or the end, and none."""
        while True:
            if not self._from <= at < self._to:
                if at > len(new) - WINDOW or not len(self._keys):
                    return len(new), []
                self._scan(new, at)
            rank = int(np.searchsorted(self._hits, at - self._from))
            if rank < len(self._hits):
                first, last = int(self._first[rank]), int(self._last[rank])
                places = {int(self._order[first]), int(self._order[last - 1])}
                return int(self._hits[rank]) + self._from, [place * self._stride for place in places]
            at = self._to

    def _scan(self, new: memoryview, at: int) -> None:
        keys = _windows(new[at : at + _BLOCK + WINDOW - 1], 1)
        first = np.searchsorted(self._keys, keys)
        known = self._keys[np.minimum(first, len(self._keys) - 1)] == keys
        self._hits = np.flatnonzero(known)
        self._first = first[self._hits]
        self._last = np.searchsorted(self._keys, keys[self._hits], "right")
        self._from, self._to = at, at + len(keys)


def _windows(data: memoryview, stride: int) -> Array:
    """The bytes of each window as one number."""
    if len(data) < WINDOW:
        return np.zeros(0, np.uint64)
    views = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), WINDOW)[::stride]
    return np.ascontiguousarray(views).view(np.uint64).reshape(-1)
