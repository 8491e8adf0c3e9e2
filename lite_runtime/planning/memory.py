"""Assigns buffers to offsets in the arena: a pure function of their sizes and lifetimes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import accumulate

from lite_runtime.frozen import NamedTuple
from lite_runtime.planning.program import ALIGNMENT

__all__ = ["ALIGNMENT", "Lifetime", "Spans", "arrange"]


class Lifetime(NamedTuple):
    """A buffer of `nbytes` that is needed from step `first` to step `last`, inclusive."""

    nbytes: int
    first: int
    last: int


def arrange(buffers: Sequence[Lifetime], orders: int = 0) -> tuple[list[int], int]:
    """The offset of each buffer, and the arena's size in bytes.

    Buffers alive at the same step never overlap. They are placed largest first, each into the lowest gap that holds it
    among those already placed (the heuristic of XNNPACK and TFLite: within a few per cent of the optimum on real
    networks). The time grows with the number of pairs of buffers alive at the same step, not with that of all pairs.

    orders: how often another order is tried while the arena is larger than what is alive at one step: the buffer that
    ends last is placed first, then the others as before.
    """
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].first))
    best = offsets, total = _placed_in(order, buffers)
    least = _most_alive(buffers) if orders else 0
    for _ in range(orders):
        if best[1] == least:
            break
        highest = max(order, key=lambda i: offsets[i] + _size(buffers[i]))
        order = [highest, *(i for i in order if i != highest)]
        offsets, total = _placed_in(order, buffers)
        if total < best[1]:
            best = offsets, total
    return best


def _size(buffer: Lifetime) -> int:
    return -(-max(buffer.nbytes, 1) // ALIGNMENT) * ALIGNMENT


def _most_alive(buffers: Sequence[Lifetime]) -> int:
    """The greatest number of bytes that are alive at one step."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.first] = changes.get(buffer.first, 0) + _size(buffer)
        changes[buffer.last + 1] = changes.get(buffer.last + 1, 0) - _size(buffer)
    return max(accumulate(changes[step] for step in sorted(changes)), default=0)


def _placed_in(order: Sequence[int], buffers: Sequence[Lifetime]) -> tuple[list[int], int]:
    """The offsets of buffers that are placed in this order, and the arena's size."""
    offsets = [0] * len(buffers)
    placed = _Placed(buffers)
    total = 0
    for i in order:
        size = _size(buffers[i])
        start = 0
        for begin, end in sorted(placed.alive_with(buffers[i])):
            if start + size <= begin:
                break
            start = max(start, end)
        offsets[i] = start
        placed.add(buffers[i], (start, start + size))
        total = max(total, start + size)
    return offsets, total


_Range = tuple[int, int]


class _Placed:
    """Placed buffers, searchable by the steps at which they are alive.

    A buffer is alive within [first, last] if it is alive at `first`, or begins later but not after `last`. The former
    are kept in a segment tree over the steps, the latter in a list sorted by first step.
    """

    def __init__(self, buffers: Sequence[Lifetime]) -> None:
        self._low = min((b.first for b in buffers), default=0)
        self._leaves = max((b.last for b in buffers), default=0) - self._low + 1
        self._nodes: dict[int, list[_Range]] = {}
        self._begins: list[tuple[int, _Range]] = []

    def add(self, life: Lifetime, where: _Range) -> None:
        """Record the bytes `where` as used during a lifetime."""
        insort(self._begins, (life.first, where))
        low, high = life.first - self._low + self._leaves, life.last - self._low + self._leaves + 1
        while low < high:
            if low & 1:
                self._nodes.setdefault(low, []).append(where)
                low += 1
            if high & 1:
                high -= 1
                self._nodes.setdefault(high, []).append(where)
            low, high = low >> 1, high >> 1

    def alive_with(self, life: Lifetime) -> Iterator[_Range]:
        """The byte ranges used at any step of a lifetime, in no particular order."""
        node = life.first - self._low + self._leaves
        while node:
            yield from self._nodes.get(node, ())
            node >>= 1
        after = bisect_left(self._begins, (life.first + 1,))
        for _, where in self._begins[after : bisect_left(self._begins, (life.last + 1,))]:
            yield where


class Spans:
    """A set of bytes: the union of half-open ranges [start, end), kept as sorted ranges that do not touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a range; an empty one adds nothing."""
        if start >= end:
            return
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def overlaps(self, start: int, end: int) -> bool:
        """Whether a byte of the range is in the set."""
        at = bisect_right(self._ends, start)
        return start < end and at < len(self._starts) and self._starts[at] < end
