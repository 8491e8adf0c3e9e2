"""Pipelines by number: `open_view` makes of a node something with a length whose elements come in any order.

Orders are arrays of numbers, so shuffling and slicing move no element; whole batches are taken from arrays at once.
A filter below something that needs a length is asked about every element first, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.data import ir
from cloud.data.columns import stack
from cloud.data.memo import once
from cloud.data.sources import open_source
from cloud.data.steps import apply_rows, apply_step, keeps, keeps_rows
from cloud.errors import DataError

__all__ = ["Context", "Ids", "Key", "View", "open_view", "padded", "share"]

Ids: TypeAlias = npt.NDArray[np.intp]
Key: TypeAlias = tuple[int, ...]

_SCANNED = 1024
"""Elements a filter of rows is asked about at a time."""


@dataclass(frozen=True)
class Context:
    """One epoch of one process: `path` is (seed, epoch, repetition, …); of every batch it has part `process` =
    (index, count)."""

    path: Key
    process: tuple[int, int] = (0, 1)


class View:
    """Elements by number."""

    def __len__(self) -> int:
        raise NotImplementedError

    def get(self, number: int) -> Any:
        """One element."""
        raise NotImplementedError

    def take(self, ids: Ids) -> Any:
        """Columns of several."""
        return stack([self.get(int(i)) for i in ids])

    def key(self, number: int) -> Key:
        """Where an element comes from."""
        return (number,)


@dataclass
class _Source(View):
    source: Any

    def __len__(self) -> int:
        return len(self.source)

    def get(self, number: int) -> Any:
        return self.source[number]

    def take(self, ids: Ids) -> Any:
        many = getattr(self.source, "take", None)
        return many(ids) if many else super().take(ids)


@dataclass
class _Ordered(View):
    """Another's elements in an order of their numbers."""

    of: View
    order: Ids | range

    def __len__(self) -> int:
        return len(self.order)

    def get(self, number: int) -> Any:
        return self.of.get(int(self.order[number]))

    def take(self, ids: Ids) -> Any:
        order = self.order
        return self.of.take(order.start + order.step * ids if isinstance(order, range) else order.take(ids))

    def key(self, number: int) -> Key:
        return self.of.key(int(self.order[number]))


@dataclass
class _Repeated(View):
    rounds: Sequence[View]

    @cached_property
    def _once(self) -> int:
        return len(self.rounds[0])

    def __len__(self) -> int:
        return self._once * len(self.rounds)

    def get(self, number: int) -> Any:
        return self.rounds[number // self._once].get(number % self._once)

    def take(self, ids: Ids) -> Any:
        first = int(ids[0]) // self._once
        if first == int(ids[-1]) // self._once and np.all(ids // self._once == first):
            return self.rounds[first].take(ids % self._once)
        return super().take(ids)

    def key(self, number: int) -> Key:
        return number // self._once, *self.rounds[number // self._once].key(number % self._once)


@dataclass
class _Mapped(View):
    of: View
    steps: tuple[ir.Step, ...]
    path: Key

    def __len__(self) -> int:
        return len(self.of)

    def get(self, number: int) -> Any:
        element, key = self.of.get(number), self.of.key(number)
        for step in self.steps:
            element = apply_step(step, element, key, self.path)
        return element

    def take(self, ids: Ids) -> Any:
        if not all(step.rows for step in self.steps):
            return super().take(ids)
        return apply_rows(self.steps, self.of.take(ids))

    def key(self, number: int) -> Key:
        return self.of.key(number)


@dataclass
class _Batched(View):
    of: View
    size: int
    last: str
    then: tuple[ir.Step, ...]
    process: tuple[int, int]

    def __post_init__(self) -> None:
        self._rows, self._count = np.arange(self.size)[share(self.size, self.process)], len(self.of)
        if not self._count:
            raise DataError("no element is left to make a batch of")
        if not len(self):
            raise DataError(
                f'{self._count} elements do not fill one batch of {self.size} and last="drop" leaves the rest '
                'out: take smaller batches or last="pad"'
            )

    def __len__(self) -> int:
        whole, rest = divmod(self._count, self.size)
        return whole + (rest > 0 and self.last == "pad")

    def get(self, number: int) -> Any:
        start, count = number * self.size, self._count
        ids = self._rows + start
        if start + self.size > count:  # what is missing is filled up from the start
            ids = np.where(ids < count, ids, (ids - count) % count)
        columns = apply_rows(self.then, self.of.take(ids))
        return columns if self.last == "drop" else padded(columns, self._rows < count - start)

    def key(self, number: int) -> Key:
        return self.of.key(number * self.size)


@dataclass
class _Zipped(View):
    of: tuple[View, ...]

    def __len__(self) -> int:
        return min(len(view) for view in self.of)

    def get(self, number: int) -> Any:
        return _merged([view.get(number) for view in self.of])

    def take(self, ids: Ids) -> Any:
        return _merged([view.take(ids) for view in self.of])

    def key(self, number: int) -> Key:
        return tuple(part for view in self.of for part in view.key(number))


@dataclass
class _Mixed(View):
    of: tuple[View, ...]
    weights: tuple[float, ...]

    @cached_property
    def _order(self) -> tuple[Ids, Ids]:
        """Which view and which of its elements comes when: element j of a view of weight w at the time (j + ½)/w;
        over when one is due that a view has no more."""
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
        which, inner = self._order
        return self.of[which[number]].get(int(inner[number]))

    def key(self, number: int) -> Key:
        which, inner = self._order
        return int(which[number]), *self.of[which[number]].key(int(inner[number]))


def padded(columns: Any, counts: npt.NDArray[np.bool_]) -> Any:
    """Columns with "mask"; DataError where there is no place for it."""
    if not isinstance(columns, dict) or "mask" in columns:
        raise DataError('last="pad" adds "mask" to a batch: elements must be dicts without one; or take last="drop"')
    return {**columns, "mask": counts.astype(np.float32)}


def share(rows: int, process: tuple[int, int]) -> slice:
    """Which rows of a batch are a process's; DataError where they do not divide."""
    index, count = process
    if not 0 <= index < count:
        raise DataError(f"expected a process (index, count) with 0 <= index < count, got {process}")
    if rows % count:
        below = rows // count * count
        raise DataError(
            f"a batch of {rows} rows does not divide among {count} processes: take one of "
            f"{f'{below} or ' if below else ''}{below + count}"
        )
    return slice(index * rows // count, (index + 1) * rows // count)


def open_view(node: ir.Node, context: Context) -> View:
    """The node's elements in that epoch; DataError where they come only one after the other."""
    return _OPEN.get(type(node), _source)(node, context)


def _source(node: Any, context: Context) -> View:
    return _Source(open_source(node))


def _iterable(node: ir.Iterable, context: Context) -> View:
    raise DataError(
        f"the elements of {node.make.shown} come one after the other: they can be mapped, filtered, repeated, cut and "
        "batched, not shuffled, sharded, zipped or mixed; write them to a file first (cloud.data.write_records)"
    )


def _map(node: ir.Map, context: Context) -> View:
    return _Mapped(open_view(node.of, context), node.steps, context.path)


def _filter(node: ir.Filter, context: Context) -> View:
    below = ir.walk(node.of)
    view = open_view(node.of, context)
    moving = any(isinstance(n, ir.Shuffle | ir.Repeat) or _seeded(n) for n in below)
    kept: Ids = once(node, lambda: _scan(view, node), context.path if moving else ())
    return _Ordered(view, kept)


def _scan(view: View, node: ir.Filter) -> Ids:
    if not node.rows:
        found = (i for i in range(len(view)) if keeps(node, view.get(i), view.key(i)))
        return np.fromiter(found, np.intp)
    spans = (np.arange(i, min(i + _SCANNED, len(view))) for i in range(0, len(view), _SCANNED))
    return np.concatenate([np.zeros(0, np.intp), *(ids[keeps_rows(node, view.take(ids))] for ids in spans)])


def _seeded(node: ir.Node) -> bool:
    return isinstance(node, ir.Map) and any(step.seeded for step in node.steps)


def _shuffle(node: ir.Shuffle, context: Context) -> View:
    view = open_view(node.of, context)
    path = context.path if node.seed is None else (node.seed, *context.path[1:])
    salt = (2**30 + node.salt,) if node.salt else ()  # the first is the order that arrays without a pipeline have
    return _Ordered(view, np.random.default_rng((*path, *salt)).permutation(len(view)))


def _repeat(node: ir.Repeat, context: Context) -> View:
    rounds = [open_view(node.of, replace(context, path=(*context.path, k))) for k in range(node.times)]
    return _Repeated(rounds) if len(rounds[0]) else rounds[0]


def _slice(node: ir.Slice, context: Context) -> View:
    view = open_view(node.of, context)
    return _Ordered(view, range(len(view))[node.start : node.stop : node.step])


def _batch(node: ir.Batch, context: Context) -> View:
    return _Batched(
        open_view(node.of, replace(context, process=(0, 1))), node.size, node.last, node.then, context.process
    )


def _zip(node: ir.Zip, context: Context) -> View:
    return _Zipped(tuple(open_view(n, context) for n in node.of))


def _mix(node: ir.Mix, context: Context) -> View:
    return _Mixed(tuple(open_view(n, context) for n in node.of), node.weights)


_OPEN: dict[type, Callable[[Any, Context], View]] = {
    ir.Iterable: _iterable, ir.Map: _map, ir.Filter: _filter, ir.Shuffle: _shuffle, ir.Repeat: _repeat,
    ir.Slice: _slice, ir.Batch: _batch, ir.Zip: _zip, ir.Mix: _mix,
    ir.Prefetch: lambda node, context: open_view(node.of, context),
}  # fmt: skip


def _merged(elements: list[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for element in elements:
        if not isinstance(element, dict):
            raise DataError(f"zip merges elements that are dicts, got {type(element).__name__}")
        if clash := sorted(merged.keys() & element.keys()):
            raise DataError(f"zip merges dicts of different names, got {clash} twice; rename one in a .map(...)")
        merged |= element
    return merged
