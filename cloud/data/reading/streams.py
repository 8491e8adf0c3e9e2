"""Sequential reading of pipelines whose length is unknown, because they filter or their source is an iterable.

The nodes below the filters are read in chunks of numbers (`Chunks`), in advance and in parallel if possible; those
above run element by element. Every process reads all elements up to the batch and keeps its rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from cloud.data import ir
from cloud.data.columns import stack
from cloud.data.draws import States
from cloud.data.reading.opening import Context, open_view
from cloud.data.reading.steps import apply_rows, apply_step, keeps, keyed
from cloud.data.reading.views import Key, View, padded, share
from cloud.errors import DataError

__all__ = ["CHUNK", "Ahead", "Chunks", "Item", "elements", "is_stream", "starts_anywhere"]

CHUNK = 32
"""Elements read at a time below a filter; a fixed number, so that positions depend on nothing else."""


_NOTHING = ir.Arrays({})


class Item(NamedTuple):
    """An element of a stream, its key, and the number below the filters of the element after it."""

    element: Any
    key: Key
    next: int


Ahead: TypeAlias = Callable[[Any, int], Iterator[Any]]
"""(items, start) -> the items in order: the method of reading ahead."""


def is_stream(node: ir.Node) -> bool:
    """Whether elements can only be read in order: a filter or an iterable without a node above that needs a length."""
    match node:
        case ir.Iterable() | ir.Filter():
            return True
        case ir.Map(of) | ir.Slice(of) | ir.Batch(of) | ir.Repeat(of) | ir.Prefetch(of):
            return is_stream(of)
    return False


def starts_anywhere(node: ir.Node) -> bool:
    """Whether `elements(start=…)` can start in the middle: maps, filters and batches of something with numbers."""
    while isinstance(node, ir.Map | ir.Filter | ir.Batch):
        node = node.of
    return not is_stream(node)


@dataclass
class Chunks:
    """A view's elements after maps and filters, in chunks of `CHUNK`."""

    view: View
    chain: tuple[ir.Map | ir.Filter, ...]
    path: Key

    def __len__(self) -> int:
        return -(-len(self.view) // CHUNK)

    def get(self, number: int) -> list[Item]:
        """Chunk `number`."""
        span = range(number * CHUNK, min((number + 1) * CHUNK, len(self.view)))
        found = zip(self.view.many(np.arange(span.start, span.stop)), span, strict=True)
        items = (Item(element, self.view.key(i), i + 1) for element, i in found)
        return list(_chained(items, self.chain, self.path))


def elements(node: ir.Node, context: Context, ahead: Ahead, start: int = 0) -> Iterator[Item]:
    """The node's elements in that epoch; `start`: an earlier `next`, if `starts_anywhere`."""
    match node:
        case ir.Iterable(make):
            return _iterated(make.call, make.shown)
        case ir.Slice(of, first, stop, step):
            return islice(elements(of, context, ahead), first, stop, step)
        case ir.Repeat(of, times):
            return _repeated(of, times, context, ahead)
        case ir.Batch():
            return _batched(node, context, ahead, start)
    return _chain(node, context, ahead, start)


def _repeated(node: ir.Node, times: int, context: Context, ahead: Ahead) -> Iterator[Item]:
    for number in range(times):
        for item in elements(node, replace(context, path=(*context.path, number)), ahead):
            yield item._replace(key=(number, *item.key))


def _chain(node: ir.Node, context: Context, ahead: Ahead, start: int) -> Iterator[Item]:
    chain: list[ir.Map | ir.Filter] = []
    while isinstance(node, ir.Map | ir.Filter):
        chain.insert(0, replace(node, of=_NOTHING))  # workers need the functions, not the nodes below
        node = node.of
    if is_stream(node):
        return _chained(elements(node, context, ahead, start), tuple(chain), context.path)
    chunks = Chunks(open_view(node, context), tuple(chain), context.path)
    return (item for chunk in ahead(chunks, start // CHUNK) for item in chunk if item.next > start)


def _chained(items: Iterator[Item], chain: tuple[ir.Map | ir.Filter, ...], path: Key) -> Iterator[Item]:
    for item in items:
        element = item.element
        for link in chain:
            if isinstance(link, ir.Map):
                for step in link.steps:
                    element = apply_step(step, element, item.key, path)
            elif not keeps(link, element, item.key):
                break
        else:
            yield item._replace(element=element)


def _iterated(make: Callable[[], Any], shown: str) -> Iterator[Item]:
    number = -1
    try:
        for number, element in enumerate(make()):
            yield Item(element, (number,), number + 1)
    except DataError:
        raise
    except Exception as problem:  # user code: an iterable of the pipeline
        raise DataError(f"{shown} failed after {number + 1} elements: {type(problem).__name__}: {problem}") from problem


def _batched(node: ir.Batch, context: Context, ahead: Ahead, start: int) -> Iterator[Item]:
    part, below = share(node.size, context.process), replace(context, process=(0, 1))
    items = elements(node.of, below, ahead, start)
    some = start > 0
    while group := list(islice(items, node.size)):
        counts = np.arange(node.size) < len(group)
        if len(group) < node.size:
            if node.last == "drop":
                break
            group += _filling(node, below, ahead, node.size - len(group))
        keys = [item.key for item in group[part]]
        columns = apply_rows(
            node.then, stack([item.element for item in group[part]]), context.path, partial(_keyed, keys)
        )
        some = True
        last = group[int(counts.sum()) - 1]
        yield Item(padded(columns, counts[part]) if node.last == "pad" else columns, group[0].key, last.next)
    if not some:
        raise DataError(_nothing(node, len(group)))


def _keyed(keys: list[Key], state: States) -> States:
    return np.concatenate([keyed(state, key) for key in keys])


def _filling(node: ir.Batch, context: Context, ahead: Ahead, count: int) -> list[Item]:
    """The epoch's first elements, repeated if there are fewer."""
    items = elements(node.of, context, ahead)
    first = list(islice(items, count))
    return [first[i % len(first)] for i in range(count)]


def _nothing(node: ir.Batch, found: int) -> str:
    if found:
        return (f'{found} elements do not fill one batch of {node.size} and last="drop" drops the rest: use '
                'smaller batches or last="pad"')  # fmt: skip
    names = [n.function.shown for n in ir.walk(node.of) if isinstance(n, ir.Filter)]
    after = f" after filtering by {', '.join(names)}" if names else ""
    return f"no element is left for a batch{after}"
