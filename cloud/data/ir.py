"""The definition of a pipeline: a tree of frozen nodes that define its elements, but not how they are read.

An element's *key* is its number in the source; keys stay with elements, so that randomness depends on (seed, epoch,
key) and not on order, workers or processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy.typing as npt

from cloud.data.functions import Function

__all__ = [
    "NODES", "Arrays", "Batch", "Blend", "Filter", "Folder", "Items", "Iterable", "Map", "Mix", "Node", "Npz",
    "Parquet", "Prefetch", "Records", "Repeat", "Shuffle", "Slice", "Step", "Tar", "Text", "Zip", "draws_of", "parents",
    "walk", "with_parents",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Arrays:
    """Arrays in memory by name, example first."""

    arrays: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Npz:
    """Arrays of a .npz file, those of `keys` (none: all)."""

    path: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Folder:
    """Images in one folder per class: {"x": uint8 [height, width, channels], "labels": int64}; `size` 0: not
    resized."""

    path: str
    height: int = 0
    width: int = 0
    channels: int = 3


@dataclass(frozen=True, eq=False)
class Records:
    """Elements of a file written by `write_records`."""

    path: str


@dataclass(frozen=True, eq=False)
class Parquet:
    """Rows of Parquet files, those of `columns` (none: all)."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Tar:
    """Members of tar archives, those of one name up to the first dot together: values by the rest of the name."""

    paths: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Text:
    """Windows of a file's bytes: {"x": int32 [length], "labels": int32 [length], the bytes that follow each}."""

    path: str
    length: int
    stride: int


@dataclass(frozen=True, eq=False)
class Items:
    """The result of `make()`: any object with `len` and `[number]`."""

    make: Function


@dataclass(frozen=True, eq=False)
class Iterable:
    """The elements that `make()` yields; called every epoch, with the same elements each time."""

    make: Function


@dataclass(frozen=True)
class Step:
    """One function of a Map. `on`: it takes and returns only that value of the element. `rows`: it works on columns,
    with independent rows. `seeded`: it also takes a `numpy.random.Generator`, with `rows` the `draws.Draws` of all
    rows; `salt` makes its stream differ from others.
    """

    function: Function
    on: str = ""
    rows: bool = False
    seeded: bool = False
    salt: int = 0


@dataclass(frozen=True, eq=False)
class Map:
    """Functions of every element, one after the other."""

    of: Node
    steps: tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Blend:
    """Each element with another one of the same node and epoch, drawn at random: `function(columns, others, draws)`,
    with independent rows; `salt` as in `Step`."""

    of: Node
    function: Function
    salt: int = 0


@dataclass(frozen=True, eq=False)
class Filter:
    """The elements for which the function is true; `on` and `rows` as in `Step`."""

    of: Node
    function: Function
    on: str = ""
    rows: bool = False


@dataclass(frozen=True, eq=False)
class Shuffle:
    """All elements in a random order given by (seed, epoch, salt); `seed` None: the run's."""

    of: Node
    seed: int | None = None
    salt: int = 0


@dataclass(frozen=True, eq=False)
class Repeat:
    """The elements `times` times in one epoch, each time shuffled and seeded differently."""

    of: Node
    times: int


@dataclass(frozen=True, eq=False)
class Slice:
    """Elements start, start + step, … below `stop` (None: all)."""

    of: Node
    start: int = 0
    stop: int | None = None
    step: int = 1


@dataclass(frozen=True, eq=False)
class Batch:
    """Columns of `size` elements. `last` "pad" fills the last batch up with the first elements and adds "mask" (float32
    [size]: 1 for rows that count) to all; "drop" drops a smaller one. `then`: steps with `rows` that run on its columns
    before the mask is added."""

    of: Node
    size: int
    last: str = "pad"
    then: tuple[Step, ...] = ()


@dataclass(frozen=True, eq=False)
class Zip:
    """Dicts merged element by element, up to the length of the shortest."""

    of: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Mix:
    """Elements of several pipelines in the proportions `weights`, evenly interleaved, until the next one is
    exhausted."""

    of: tuple[Node, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Prefetch:
    """How the pipeline is read: by processes, else by threads of this process, and the batches that each keeps ready.
    It does not change elements."""

    of: Node
    workers: int = 0
    threads: int = 1
    ahead: int = 2


Node: TypeAlias = (
    Arrays | Npz | Folder | Records | Parquet | Tar | Text | Items | Iterable
    | Map | Blend | Filter | Shuffle | Repeat | Slice | Batch | Zip | Mix | Prefetch
)  # fmt: skip

NODES = {
    kind.__name__.lower(): kind
    for kind in (Arrays, Npz, Folder, Records, Parquet, Tar, Text, Items, Iterable, Map, Blend, Filter, Shuffle,
                 Repeat, Slice, Batch, Zip, Mix, Prefetch)
}  # fmt: skip
"""Nodes by their name in files."""


def parents(node: Node) -> tuple[Node, ...]:
    """The nodes that a node reads."""
    of: Any = getattr(node, "of", ())
    return of if isinstance(of, tuple) else (of,)


def draws_of(node: Node) -> int:
    """How many times the node draws random numbers for an element."""
    match node:
        case Map(_, steps) | Batch(_, then=steps):
            return sum(step.seeded for step in steps)
    return int(isinstance(node, Blend))


def with_parents(node: Node, new: tuple[Node, ...]) -> Node:
    """The node with other inputs; itself if they are the same."""
    if all(a is b for a, b in zip(parents(node), new, strict=True)):
        return node
    made: Any = node
    return replace(made, of=new if isinstance(made.of, tuple) else new[0])  # type: ignore[no-any-return]


def walk(node: Node) -> list[Node]:
    """All nodes, parents first; the node itself last."""
    return [*(found for parent in parents(node) for found in walk(parent)), node]
