"""Random access to pipelines: `open_view` turns a node into a view with a length, readable in any order.

A filter below a node that needs a length is evaluated for every element first, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloud.data import ir
from cloud.data.reading.memo import once
from cloud.data.reading.sources import open_source
from cloud.data.reading.steps import keeps, keeps_rows
from cloud.data.reading.views import Batched, Blended, Ids, Key, Mapped, Mixed, Ordered, Repeated, Source, View, Zipped
from cloud.errors import DataError

__all__ = ["Context", "open_view"]

_SCANNED = 1024
"""Elements that a filter reads at a time."""


@dataclass(frozen=True)
class Context:
    """One epoch of one process: `path` is (seed, epoch, repetition, …); it reads part `process` = (index,
    count) of every batch."""

    path: Key
    process: tuple[int, int] = (0, 1)


def open_view(node: ir.Node, context: Context) -> View:
    """The node's elements in that epoch; DataError if they can only be read in order."""
    return _OPEN.get(type(node), _source)(node, context)


def _source(node: Any, context: Context) -> View:
    return Source(open_source(node))


def _iterable(node: ir.Iterable, context: Context) -> View:
    raise DataError(
        f"the elements of {node.make.shown} can only be read in order: they can be mapped, filtered, repeated, cut "
        "and batched, not shuffled, sharded, zipped, mixed or blended; write them to a file first "
        "(cloud.data.write_records)"
    )


def _map(node: ir.Map, context: Context) -> View:
    return Mapped(open_view(node.of, context), node.steps, context.path)


def _blend(node: ir.Blend, context: Context) -> View:
    return Blended(open_view(node.of, context), node, context.path)


def _filter(node: ir.Filter, context: Context) -> View:
    below = ir.walk(node.of)
    view = open_view(node.of, context)
    moving = any(isinstance(n, ir.Shuffle | ir.Repeat) or ir.draws_of(n) for n in below)
    kept: Ids = once(node, lambda: _scan(view, node), context.path if moving else ())
    return Ordered(view, kept)


def _scan(view: View, node: ir.Filter) -> Ids:
    spans = (np.arange(i, min(i + _SCANNED, len(view))) for i in range(0, len(view), _SCANNED))
    if not node.rows:
        pairs = (pair for ids in spans for pair in zip(ids.tolist(), view.many(ids), strict=True))
        return np.fromiter((i for i, element in pairs if keeps(node, element, view.key(i))), np.intp)
    return np.concatenate([np.zeros(0, np.intp), *(ids[keeps_rows(node, view.take(ids))] for ids in spans)])


def _shuffle(node: ir.Shuffle, context: Context) -> View:
    view = open_view(node.of, context)
    path = context.path if node.seed is None else (node.seed, *context.path[1:])
    salt = (2**30 + node.salt,) if node.salt else ()  # salt 0 gives the same order as arrays without a pipeline
    return Ordered(view, np.random.default_rng((*path, *salt)).permutation(len(view)))


def _repeat(node: ir.Repeat, context: Context) -> View:
    rounds = [open_view(node.of, replace(context, path=(*context.path, k))) for k in range(node.times)]
    return Repeated(rounds)


def _slice(node: ir.Slice, context: Context) -> View:
    view = open_view(node.of, context)
    return Ordered(view, range(len(view))[node.start : node.stop : node.step])


def _batch(node: ir.Batch, context: Context) -> View:
    return Batched(
        open_view(node.of, replace(context, process=(0, 1))), node.size, node.last, node.then, context.process,
        context.path,
    )  # fmt: skip


def _zip(node: ir.Zip, context: Context) -> View:
    return Zipped(tuple(open_view(n, context) for n in node.of))


def _mix(node: ir.Mix, context: Context) -> View:
    return Mixed(tuple(open_view(n, context) for n in node.of), node.weights)


_OPEN: dict[type, Callable[[Any, Context], View]] = {
    ir.Iterable: _iterable, ir.Map: _map, ir.Blend: _blend, ir.Filter: _filter, ir.Shuffle: _shuffle,
    ir.Repeat: _repeat, ir.Slice: _slice, ir.Batch: _batch, ir.Zip: _zip, ir.Mix: _mix,
    ir.Prefetch: lambda node, context: open_view(node.of, context),
}  # fmt: skip
