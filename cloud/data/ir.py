"""What a pipeline is: a tree of frozen nodes that say what the elements are, never how they are read.

An element's *key* is where it comes from: its number in the source; keys travel with elements, so that what is random
depends on (seed, epoch, key) and on nothing that order, workers or processes change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy.typing as npt

from cloud.data.functions import Function

__all__ = [
    "NODES", "Arrays", "Batch", "Filter", "Folder", "Items", "Iterable", "Map", "Mix", "Node", "Npz", "Prefetch",
    "Records", "Repeat", "Shuffle", "Slice", "Step", "Text", "Zip", "parents", "walk", "with_parents",
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
    """Images in a folder a class: {"x": uint8 [height, width, channels], "labels": int64}; `size` 0: as they are."""

    path: str
    height: int = 0
    width: int = 0
    channels: int = 3


@dataclass(frozen=True, eq=False)
class Records:
    """Elements of a file written by `write_records`."""

    path: str


@dataclass(frozen=True, eq=False)
class Text:
    """Windows of a file's bytes: {"x": int32 [length], "labels": int32 [length], the bytes that follow each}."""

    path: str
    length: int
    stride: int


@dataclass(frozen=True, eq=False)
class Items:
    """What `make()` gives: anything with `len` and `[number]`."""

    make: Function


@dataclass(frozen=True, eq=False)
class Iterable:
    """What `make()` gives anew every epoch: elements one after the other, always the same ones."""

    make: Function


@dataclass(frozen=True)
class Step:
    """One function of a Map. `on`: it takes and gives that value of the element alone. `rows`: it works on columns,
    a row independent of the others. `seeded`: it takes a `numpy.random.Generator` too, `salt` telling it from others.
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
class Filter:
    """The elements for which the function is true; `on` and `rows` as in `Step`."""

    of: Node
    function: Function
    on: str = ""
    rows: bool = False


@dataclass(frozen=True, eq=False)
class Shuffle:
    """All elements in an order of (seed, epoch, salt); `seed` None: the run's."""

    of: Node
    seed: int | None = None
    salt: int = 0


@dataclass(frozen=True, eq=False)
class Repeat:
    """`times` over in one epoch, each time shuffled and seeded anew."""

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
    """Columns of `size` elements. `last` "pad" fills the last batch up with the first elements and adds "mask"
    (float32 [size]: 1 for rows that count) to all; "drop" leaves a smaller one out. `then`: steps of rows that run on
    its columns before the mask is added."""

    of: Node
    size: int
    last: str = "pad"
    then: tuple[Step, ...] = ()


@dataclass(frozen=True, eq=False)
class Zip:
    """Dicts merged element by element, as many as the shortest has."""

    of: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Mix:
    """Elements of several in the shares `weights`, evenly spread, until one that is due has run out."""

    of: tuple[Node, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Prefetch:
    """How the pipeline is read: by processes, else by threads of this one, and how many batches each keeps ready.
    Changes no element."""

    of: Node
    workers: int = 0
    threads: int = 1
    ahead: int = 2


Node: TypeAlias = (
    Arrays | Npz | Folder | Records | Text | Items | Iterable
    | Map | Filter | Shuffle | Repeat | Slice | Batch | Zip | Mix | Prefetch
)  # fmt: skip

NODES = {
    kind.__name__.lower(): kind
    for kind in (Arrays, Npz, Folder, Records, Text, Items, Iterable, Map, Filter, Shuffle, Repeat, Slice, Batch, Zip,
                 Mix, Prefetch)
}  # fmt: skip
"""By the name that files know them by."""


def parents(node: Node) -> tuple[Node, ...]:
    """What a node reads."""
    of: Any = getattr(node, "of", ())
    return of if isinstance(of, tuple) else (of,)


def with_parents(node: Node, new: tuple[Node, ...]) -> Node:
    """The node reading others; itself where they are the same."""
    if all(a is b for a, b in zip(parents(node), new, strict=True)):
        return node
    made: Any = node
    return replace(made, of=new if isinstance(made.of, tuple) else new[0])  # type: ignore[no-any-return]


def walk(node: Node) -> list[Node]:
    """All nodes, parents first; the node itself last."""
    return [*(found for parent in parents(node) for found in walk(parent)), node]
