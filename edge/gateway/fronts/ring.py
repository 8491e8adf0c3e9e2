"""Memory that two processes share, one writing, one reading, each only what the other is done with.

Which bytes are whose is said in messages (`channel`), not in the memory: nothing that the other process can write is
ever taken for an account. Places are counted from the beginning of time; modulo the ring's size they are offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Reader", "Writer"]


class Writer:
    """Where payloads go, one behind the other, each in one piece."""

    __slots__ = ("_end", "_free", "_memory", "_size")

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._size = memory, len(memory)
        self._end = 0
        """Behind the last payload."""
        self._free = 0
        """Up to here the reader is done."""

    def put(self, parts: Sequence[bytes | memoryview], total: int) -> int:
        """The place of a payload of so many bytes; -1 where there is no room for it now."""
        size = self._size
        if self._free == self._end:  # all is read: the same memory again, which processors have at hand
            self._free = self._end = -(-self._end // size) * size
        place = self._end
        left = size - place % size
        if total > left:
            place += left
        if place + total - self._free > size:
            return -1
        at = place % size
        for part in parts:
            self._memory[at : at + len(part)] = part
            at += len(part)
        self._end = place + total
        return place

    def freed(self, end: int) -> None:
        """The reader is done with what lies before `end`. Raises ValueError for what was never written."""
        if end > self._end:
            raise ValueError(f"expected at most {self._end} bytes to be read, got {end}")
        self._free = max(self._free, end)


class Reader:
    """What the other process wrote, copied at once: it cannot change any more when it is looked at."""

    __slots__ = ("_memory", "done")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.done = 0
        """Up to here everything is read."""

    def get(self, place: int, size: int) -> bytes:
        """The payload at a place. Raises ValueError where it does not lie in the ring."""
        whole = len(self._memory)
        at = place % whole
        if size < 0 or place < self.done or at + size > whole:
            raise ValueError(f"expected a payload behind {self.done} in a ring of {whole} bytes, got {size} at {place}")
        self.done = place + size
        return bytes(self._memory[at : at + size])
