"""Views: elements by number, and their orders, maps, batches and mixes.

Orders are arrays of numbers, so shuffling and slicing move no element; whole batches are taken from arrays at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.data import ir
from cloud.data.columns import one, stack, tree_map
from cloud.data.draws import Draws, States, folded
from cloud.data.reading.steps import Streams, apply_blend, apply_many, apply_rows, apply_step
from cloud.errors import DataError, take_multiple

__all__ = [
    "Batched", "Blended", "Ids", "Key", "Mapped", "Mixed", "Ordered", "Repeated", "Source", "View", "Zipped", "guarded",
    "padded", "share",
]  # fmt: skip

Ids: TypeAlias = npt.NDArray[np.intp]
Key: TypeAlias = tuple[int, ...]


class View(ABC):
    """Random access to elements by number."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of elements."""

    @abstractmethod
    def get(self, number: int) -> Any:
        """One element."""

    def many(self, ids: Ids) -> list[Any]:
        """Several elements."""
        return [self.get(int(i)) for i in ids]

    def take(self, ids: Ids) -> Any:
        """Columns of several."""
        return stack(self.many(ids))

    def key(self, number: int) -> Key:
        """The key of an element: its number in the source."""
        return (number,)

    def fold(self, ids: Ids, states: States) -> States:
        """States [rows] that depend on the keys of elements too, part by part."""
        return folded(states, ids)

    def streams(self, ids: Ids) -> Streams:
        """The random numbers of elements."""
        return lambda state: self.fold(ids, np.broadcast_to(state, len(ids)))


@dataclass
class Source(View):
    """The elements of a source. Their arrays are read-only: a function that changed one would change the source."""

    source: Any

    def __len__(self) -> int:
        return len(self.source)

    def get(self, number: int) -> Any:
        """See `View`."""
        return guarded(self.source[number])

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        several = getattr(self.source, "__getitems__", None)
        if several is None:
            return super().many(ids)
        found: list[Any] = several(ids.tolist())
        return found if getattr(self.source, "guards", False) else list(map(guarded, found))

    def take(self, ids: Ids) -> Any:
        """See `View`."""
        many = getattr(self.source, "take_rows", None)
        return many(ids) if many else super().take(ids)


@dataclass
class Ordered(View):
    """Another view's elements in an order of their numbers."""

    of: View
    order: Ids | range

    def __len__(self) -> int:
        return len(self.order)

    def get(self, number: int) -> Any:
        """See `View`."""
        return self.of.get(int(self.order[number]))

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        return self.of.many(self._below(ids))

    def take(self, ids: Ids) -> Any:
        """See `View`."""
        return self.of.take(self._below(ids))

    def _below(self, ids: Ids) -> Ids:
        order = self.order
        return order.start + order.step * ids if isinstance(order, range) else order.take(ids)

    def key(self, number: int) -> Key:
        """See `View`."""
        return self.of.key(int(self.order[number]))

    def fold(self, ids: Ids, states: States) -> States:
        """See `View`."""
        return self.of.fold(self._below(ids), states)


@dataclass
class Repeated(View):
    """One view after the other; repetitions that filter seeded elements have different lengths."""

    rounds: Sequence[View]

    @cached_property
    def _ends(self) -> Ids:
        return np.cumsum([len(view) for view in self.rounds])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _at(self, number: int) -> tuple[int, int]:
        """The repetition, and the number in it."""
        which = int(np.searchsorted(self._ends, number, "right"))
        return which, number - (int(self._ends[which - 1]) if which else 0)

    def get(self, number: int) -> Any:
        """See `View`."""
        which, inner = self._at(number)
        return self.rounds[which].get(inner)

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        return _apart(self.rounds, *self._places(ids))

    def _places(self, ids: Ids) -> tuple[Ids, Ids]:
        """`_at` of several."""
        which = np.searchsorted(self._ends, ids, "right")
        return which, ids - np.concatenate([[0], self._ends])[which]

    def take(self, ids: Ids) -> Any:
        """See `View`."""
        which = np.searchsorted(self._ends, ids, "right")
        if (which == which[0]).all():
            first, inner = self._at(int(ids[0]))
            return self.rounds[first].take(ids - int(ids[0]) + inner)
        return super().take(ids)

    def key(self, number: int) -> Key:
        """See `View`."""
        which, inner = self._at(number)
        return which, *self.rounds[which].key(inner)

    def fold(self, ids: Ids, states: States) -> States:
        """See `View`."""
        return _folded_apart(self.rounds, *self._places(ids), states)


@dataclass
class Changed(View):
    """Another view's elements, each changed: numbers and keys are that one's."""

    of: View

    def __len__(self) -> int:
        return len(self.of)

    def key(self, number: int) -> Key:
        """See `View`."""
        return self.of.key(number)

    def fold(self, ids: Ids, states: States) -> States:
        """See `View`."""
        return self.of.fold(ids, states)


@dataclass
class Mapped(Changed):
    """Another view's elements after steps; `path` is the epoch's."""

    steps: tuple[ir.Step, ...]
    path: Key

    def get(self, number: int) -> Any:
        """See `View`."""
        return self._after(self.of.get(number), number)

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        found, steps = self.of.many(ids), self.steps
        if any(step.seeded for step in steps):
            together = self._together(found, ids) if steps[0].rows else None
            return together or [self._after(element, int(i)) for element, i in zip(found, ids, strict=True)]
        try:
            return apply_many(steps, found)
        except Exception:  # user code: again one by one, to say at which element
            return [self._after(element, int(i)) for element, i in zip(found, ids, strict=True)]

    def _together(self, found: list[Any], ids: Ids) -> list[Any] | None:
        """Elements after steps of rows, computed as columns; None if they differ in shape or a step fails."""
        try:
            columns = apply_rows(self.steps, stack(found), self.path, self.of.streams(ids))
        except DataError:
            return None
        return [one(columns, row) for row in range(len(ids))]

    def _after(self, element: Any, number: int) -> Any:
        key = self.of.key(number)
        for step in self.steps:
            element = apply_step(step, element, key, self.path)
        return element

    def take(self, ids: Ids) -> Any:
        """See `View`."""
        if not all(step.rows for step in self.steps):
            return super().take(ids)
        return apply_rows(self.steps, self.of.take(ids), self.path, self.of.streams(ids))


@dataclass
class Blended(Changed):
    """Another view's elements, each with another one of them; `path` is the epoch's."""

    node: ir.Blend
    path: Key

    def get(self, number: int) -> Any:
        """See `View`."""
        return one(self.take(np.array([number])), 0)

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        columns = self.take(ids)
        return [one(columns, row) for row in range(len(ids))]

    def take(self, ids: Ids) -> Any:
        """See `View`."""
        columns = self.of.take(ids)
        return apply_blend(self.node, columns, self._others, self.path, self.of.streams(ids))

    def _others(self, draws: Draws) -> Any:
        return self.of.take(draws.integers(len(self.of)))


@dataclass
class Batched(View):
    """Batches of another view's elements, with the rows of one process."""

    of: View
    size: int
    last: str
    then: tuple[ir.Step, ...]
    process: tuple[int, int]
    path: Key

    def __post_init__(self) -> None:
        self._rows, self._count = np.arange(self.size)[share(self.size, self.process)], len(self.of)
        if not self._count:
            raise DataError("no element is left for a batch")
        if not len(self):
            raise DataError(
                f'{self._count} elements do not fill one batch of {self.size} and last="drop" drops the rest: '
                'use smaller batches or last="pad"'
            )

    def __len__(self) -> int:
        whole, rest = divmod(self._count, self.size)
        return whole + (rest > 0 and self.last == "pad")

    def get(self, number: int) -> Any:
        """See `View`."""
        start, count = number * self.size, self._count
        ids = self._rows + start
        if start + self.size > count:  # missing rows are filled up from the start
            ids = np.where(ids < count, ids, (ids - count) % count)
        columns = apply_rows(self.then, self.of.take(ids), self.path, self.of.streams(ids))
        return columns if self.last == "drop" else padded(columns, self._rows < count - start)

    def key(self, number: int) -> Key:
        """See `View`."""
        return self.of.key(number * self.size)

    def fold(self, ids: Ids, states: States) -> States:
        """See `View`."""
        return self.of.fold(ids * self.size, states)


@dataclass
class Zipped(View):
    """Dicts merged element by element."""

    of: tuple[View, ...]

    def __len__(self) -> int:
        return min(len(view) for view in self.of)

    def get(self, number: int) -> Any:
        """See `View`."""
        return _merged([view.get(number) for view in self.of])

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        return [_merged(list(parts)) for parts in zip(*(view.many(ids) for view in self.of), strict=True)]

    def take(self, ids: Ids) -> Any:
        """See `View`."""
        return _merged([view.take(ids) for view in self.of])

    def key(self, number: int) -> Key:
        """See `View`."""
        return tuple(part for view in self.of for part in view.key(number))

    def fold(self, ids: Ids, states: States) -> States:
        """See `View`."""
        for view in self.of:
            states = view.fold(ids, states)
        return states


@dataclass
class Mixed(View):
    """Elements of several views in proportions."""

    of: tuple[View, ...]
    weights: tuple[float, ...]

    @cached_property
    def _order(self) -> tuple[Ids, Ids]:
        """The order of (view, element): element j of a view of weight w has the time (j + ½)/w; it ends when the next
        element is one that its view does not have."""
        due = [(np.arange(len(view) + 1) + 0.5) / w for view, w in zip(self.of, self.weights, strict=True)]
        order = np.argsort(np.concatenate(due), kind="stable")
        which = np.concatenate([np.full(len(t), k) for k, t in enumerate(due)])[order]
        inner = np.concatenate([np.arange(len(t)) for t in due])[order]
        lacks = np.concatenate([np.arange(len(t)) == len(t) - 1 for t in due])[order]
        end = int(np.argmax(lacks))
        return which[:end], inner[:end]

    def __len__(self) -> int:
        return len(self._order[0])

    def get(self, number: int) -> Any:
        """See `View`."""
        which, inner = self._order
        return self.of[which[number]].get(int(inner[number]))

    def many(self, ids: Ids) -> list[Any]:
        """See `View`."""
        which, inner = self._order
        return _apart(self.of, which[ids], inner[ids])

    def key(self, number: int) -> Key:
        """See `View`."""
        which, inner = self._order
        return int(which[number]), *self.of[which[number]].key(int(inner[number]))

    def fold(self, ids: Ids, states: States) -> States:
        """See `View`."""
        which, inner = self._order
        return _folded_apart(self.of, which[ids], inner[ids], states)


def guarded(element: Any) -> Any:
    """The element with arrays that cannot be written to."""
    return tree_map(_read_only, element)


def _read_only(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def _apart(views: Sequence[View], which: Ids, inner: Ids) -> list[Any]:
    """Elements number `inner` of the views number `which`, each view asked once."""
    found: list[Any] = [None] * len(which)
    for k in np.unique(which):
        places = np.flatnonzero(which == k)
        for place, element in zip(places, views[int(k)].many(inner[places]), strict=True):
            found[place] = element
    return found


def _folded_apart(views: Sequence[View], which: Ids, inner: Ids, states: States) -> States:
    """`View.fold` of elements number `inner` of the views number `which`, whose keys begin with that number."""
    found = folded(states, which)
    for k in np.unique(which):
        places = np.flatnonzero(which == k)
        found[places] = views[int(k)].fold(inner[places], found[places])
    return found


def padded(columns: Any, counts: npt.NDArray[np.bool_]) -> Any:
    """Columns with "mask"; DataError if it cannot be added."""
    if not isinstance(columns, dict) or "mask" in columns:
        raise DataError('last="pad" adds "mask" to a batch: elements must be dicts without one; or use last="drop"')
    return {**columns, "mask": counts.astype(np.float32)}


def share(rows: int, process: tuple[int, int]) -> slice:
    """The rows of a batch for one process; DataError if they do not divide."""
    index, count = process
    if not 0 <= index < count:
        raise DataError(f"expected a process (index, count) with 0 <= index < count, got {process}")
    if rows % count:
        raise DataError(f"a batch of {rows} rows does not divide among {count} processes: {take_multiple(rows, count)}")
    return slice(index * rows // count, (index + 1) * rows // count)


def _merged(elements: list[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for element in elements:
        if not isinstance(element, dict):
            raise DataError(f"zip merges elements that are dicts, got {type(element).__name__}")
        if clash := sorted(merged.keys() & element.keys()):
            raise DataError(f"zip merges dicts with different keys, got {clash} twice; rename one in a .map(...)")
        merged |= element
    return merged
