"""The assignment of devices' heads to the slots of a model's tables."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

__all__ = ["Key", "Slots"]

T = TypeVar("T")
Key = tuple[str, int, float]
"""A device, its version, and when that version was made: one batch may contain jobs for an old version and its
successor."""


class Slots:
    """Assigns slots 1 to count - 1 to the most recently used keys; slot 0 holds the common model."""

    def __init__(self, count: int) -> None:
        self._held: OrderedDict[Key, int] = OrderedDict()
        self._free = list(range(count - 1, 0, -1))
        self._count = count

    def __len__(self) -> int:
        return len(self._held)

    def batches(self, asked: Sequence[T], key: Callable[[T], Key]) -> Iterator[Sequence[T]]:
        """The items in order, split into batches that need no more slots than there are."""
        if len(asked) < self._count:
            yield asked
            return
        begin, seen = 0, set[Key]()
        for i, what in enumerate(asked):
            seen.add(key(what))
            if len(seen) >= self._count:
                yield asked[begin:i]
                begin, seen = i, {key(what)}
        yield asked[begin:]

    def take(self, key: Key) -> tuple[int, bool]:
        """The key's slot, and whether it must be written because it was free or belonged to another key. Only the least
        recently used key loses its slot, so the slots used in one of `batches` are not overwritten."""
        slot = self._held.get(key)
        if slot is not None:
            self._held.move_to_end(key)
            return slot, False
        slot = self._free.pop() if self._free else self._held.popitem(last=False)[1]
        self._held[key] = slot
        return slot, True

    def drop(self, key: Key) -> None:
        """Free the key's slot, because writing to it failed."""
        slot = self._held.pop(key, None)
        if slot is not None:
            self._free.append(slot)
