"""The API of data pipelines: sources, and `Pipeline` with one method per node. Reading starts with the batches."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt

from cloud.data import ir, serial
from cloud.data.augment import Apply, Blend, Policy
from cloud.data.functions import named
from cloud.data.passes import optimised
from cloud.data.reading.iterate import Batches, Position, open_batches
from cloud.data.reading.sources import checked_arrays
from cloud.data.reading.tables import Hosted
from cloud.data.transforms import Cast, Crop, Flip, Pad, Scale, Tokenize, Transform
from cloud.errors import DataError

__all__ = [
    "Pipeline", "arrays", "folder", "from_dict", "hosted", "iterable", "mix", "npz", "parquet", "records", "source",
    "tar", "text", "zipped",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pipeline:
    """Elements, mostly dicts of arrays, and operations on them. Methods return new pipelines; `node` is the definition.

    Elements depend on (seed, epoch) alone: workers, processes and the position where reading starts change neither
    elements nor their order. Functions take and return an element (with `on`: only that value of it) and must not
    change their argument.
    """

    node: ir.Node

    def map(
        self, function: Callable[..., Any] | str, *, on: str = "", rows: bool = False, seeded: bool = False
    ) -> Pipeline:
        """`function` of every element. `rows`: it takes columns of stacked elements, each row independently (and is
        called once per batch); `seeded`: `function(element, generator)`, where the generator depends on the seed, the
        epoch and the element's number; with `rows`: `function(columns, draws)`, whose `uniform`, `normal` and
        `integers` give each row such numbers (`cloud.data.draws.Draws`)."""
        salt = self._salt if seeded else 0
        return Pipeline(ir.Map(self.node, (ir.Step(named(function), on, rows, seeded, salt),)))

    def augment(self, on: str, *changes: Policy | Apply) -> Pipeline:
        """The value `on` changed at random by each of `changes`, one after the other; its shape and dtype stay, and so
        do all other values. Use it before `batch`, for training data only. Raises DataError for no change."""
        if not changes:
            raise DataError("expected at least one Policy or Apply to augment by")
        pipeline = self
        for change in changes:
            if not isinstance(change, Policy | Apply):
                raise DataError(f"expected a Policy or Apply to augment by, got {type(change).__name__}")
            pipeline = pipeline._transformed(change, on)
        return pipeline

    def blend(
        self, on: str, classes: int, how: str = "mixup", *, labels: str = "labels", alpha: float = 1.0,
        chance: float = 1.0, kind: str = "", axes: str = "",
    ) -> Pipeline:  # fmt: skip
        """The value `on` of each element blended with that of another one, drawn anew each epoch, and `labels` as
        probabilities of `classes`, float32 [classes], in the same proportion: see `Blend`. The other element is one of
        this epoch, so its earlier changes are those of this epoch too; it is read a second time. Needs a length, like
        `shuffle`. Raises DataError for settings out of range."""
        function = named(Blend(how, on, labels, classes, alpha, chance, kind, axes))
        return Pipeline(ir.Blend(self.node, function, self._salt))

    @property
    def _salt(self) -> int:
        return 1 + sum(map(ir.draws_of, ir.walk(self.node)))

    def scale(self, on: str, scale: float = 1 / 255, offset: float = 0.0) -> Pipeline:
        """The value `on` times `scale` plus `offset`, in float32."""
        return self._transformed(Scale(float(scale), float(offset)), on)

    def cast(self, on: str, dtype: str) -> Pipeline:
        """The value `on` in another dtype. Raises DataError for one that numbers do not have."""
        return self._transformed(Cast(dtype), on)

    def pad(self, on: str, length: int, value: float = 0.0, *, mask: str = "") -> Pipeline:
        """The value `on`, whose first axis varies, cut or filled up with `value` to `length`; `mask`: the name of one
        more value, float32 [length], 1 for what was there."""
        return self._transformed(Pad(on, _at_least("a length", length, 1), float(value), mask), "")

    def flip(self, on: str, axis: int = 1) -> Pipeline:
        """The value `on` mirrored along `axis` in half of the cases, at random."""
        return self._transformed(Flip(axis), on)

    def crop(self, on: str, size: tuple[int, int], padding: int = 0) -> Pipeline:
        """A window of `size` (height, width) at a random place of the image `on` [rows, columns, …], which gets
        `padding` rows and columns of zeros on every side first."""
        height, width = (_at_least("a size", n, 1) for n in size)
        return self._transformed(Crop(height, width, _at_least("a padding", padding, 0)), on)

    def tokenize(self, on: str, path: str | os.PathLike[str], *, ends: bool = True) -> Pipeline:
        """The string `on` as ids of tokens, int32 [count], by the tokenizer of a `tokenizer.json`, of a folder with one
        or of a bundle; `ends`: with the tokens that begin and end a text. Special tokens in the string are text."""
        return self._transformed(Tokenize(os.fspath(path), ends), on)

    def _transformed(self, transform: Transform, on: str) -> Pipeline:
        return self.map(transform, on=on, rows=transform.rows, seeded=transform.seeded)  # type: ignore[arg-type]

    def filter(self, function: Callable[..., Any] | str, *, on: str = "", rows: bool = False) -> Pipeline:
        """The elements for which `function` is true. If a later node needs a length (shuffle, shard, zip, mix), the
        function is called for every element once before the first batch; else while reading."""
        return Pipeline(ir.Filter(self.node, named(function), on, rows))

    def shuffle(self, seed: int | None = None) -> Pipeline:
        """All elements in a random order, a different one each epoch; from the run's seed, or from this one."""
        if seed is not None:
            _at_least("a seed", seed, 0)
        return Pipeline(ir.Shuffle(self.node, seed, sum(isinstance(n, ir.Shuffle) for n in ir.walk(self.node))))

    def repeat(self, times: int) -> Pipeline:
        """Repeat the elements `times` times within an epoch, shuffled again each time."""
        return Pipeline(ir.Repeat(self.node, _at_least("times", times, 1)))

    def take(self, count: int) -> Pipeline:
        """The first `count` elements."""
        return Pipeline(ir.Slice(self.node, 0, _at_least("a count", count, 0)))

    def skip(self, count: int) -> Pipeline:
        """All elements but the first `count`."""
        return Pipeline(ir.Slice(self.node, _at_least("a count", count, 0)))

    def shard(self, index: int, count: int) -> Pipeline:
        """Every `count`-th element from `index` on. (Distributed training does not need it: see `batches`.) Raises
        DataError unless 0 <= index < count."""
        if not 0 <= index < count:
            raise DataError(f"expected a shard with 0 <= index < count, got {index} of {count}")
        return Pipeline(ir.Slice(self.node, index, None, count))

    def batch(self, size: int, last: str = "pad") -> Pipeline:
        """Columns of `size` elements. An incomplete last batch is filled up with the first elements ("pad": batches
        then have "mask", 0 for those) or dropped ("drop"). Raises DataError for a size below 1 and another `last`."""
        if last not in ("pad", "drop"):
            raise DataError(f'expected last="pad" or "drop", got {last!r}')
        return Pipeline(ir.Batch(self.node, _at_least("a batch", size, 1), last))

    def prefetch(self, workers: int = 0, threads: int = 1, ahead: int = 2) -> Pipeline:
        """Read `ahead` batches in advance: in each of `workers` processes or, if there are none, in all `threads` of
        this process together. The last call takes effect. `tune` finds good numbers."""
        _at_least("workers", workers, 0), _at_least("threads", threads, 0), _at_least("ahead", ahead, 1)
        return Pipeline(ir.Prefetch(self.node, workers, threads, ahead))

    def zip(self, *others: Pipeline) -> Pipeline:
        """Dicts of this pipeline and others merged, element by element."""
        return zipped(self, *others)

    def batches(
        self, seed: int = 0, epoch: int = 0, position: Position | None = None, process: tuple[int, int] = (0, 1)
    ) -> Batches:
        """The batches of an epoch, from `position` on. Process (index, count) gets its share of the rows of each batch:
        together the processes see the same batches as one process would."""
        return open_batches(
            self._plan, self._prefetch, self.fingerprint, seed=seed, epoch=epoch, position=position, process=process
        )

    @property
    def rows(self) -> int:
        """Rows of a batch over all processes; 0 before `batch`."""
        return next((n.size for n in reversed(ir.walk(self.node)) if isinstance(n, ir.Batch)), 0)

    @cached_property
    def fingerprint(self) -> str:
        """A key of the pipeline's nodes, functions and shapes; see `digest`."""
        return serial.fingerprint(_unprefetched(self.node))

    def digest(self) -> str:
        """A key of the nodes, functions, shapes and all data: reads every byte."""
        return serial.digest(_unprefetched(self.node))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. DataError for arrays in memory, lambdas and nested functions."""
        return serial.to_dict(self.node)

    @cached_property
    def _plan(self) -> ir.Node:
        return optimised(self.node)

    @cached_property
    def _prefetch(self) -> ir.Prefetch | None:
        return next((n for n in reversed(ir.walk(self.node)) if isinstance(n, ir.Prefetch)), None)


def arrays(named_arrays: Mapping[str, npt.ArrayLike]) -> Pipeline:
    """Arrays in memory, example first: elements are dicts of one row each."""
    return Pipeline(ir.Arrays(checked_arrays(named_arrays, "the data")))


def npz(path: str | os.PathLike[str], *keys: str) -> Pipeline:
    """Arrays of a .npz file, those of `keys` or all; read completely at the first batch."""
    return Pipeline(ir.Npz(os.fspath(path), keys))


def folder(path: str | os.PathLike[str], *, size: tuple[int, int] | None = None, channels: int = 3) -> Pipeline:
    """Images in one folder per class (in the order of their names): {"x": uint8 [height, width, channels], "labels"};
    resized to `size` (height, width). Raises DataError unless channels are 1 or 3."""
    if channels not in (1, 3):
        raise DataError(f"expected 1 or 3 channels, got {channels}")
    height, width = (0, 0) if size is None else (_at_least("a size", n, 1) for n in size)
    return Pipeline(ir.Folder(os.fspath(path), height, width, channels))


def records(path: str | os.PathLike[str]) -> Pipeline:
    """Elements of a file written by `write_records`, each read when it is needed."""
    return Pipeline(ir.Records(os.fspath(path)))


def parquet(*paths: str | os.PathLike[str], columns: Sequence[str] = ()) -> Pipeline:
    """Rows of Parquet files, with those `columns` or all: numbers, strings, bytes, and lists of numbers as arrays. The
    columns are read whole at the first batch. Needs pyarrow. Raises DataError for no file."""
    return Pipeline(ir.Parquet(_paths(paths), tuple(columns)))


def tar(*paths: str | os.PathLike[str]) -> Pipeline:
    """Elements of tar archives as webdataset has them: members 0001.jpg and 0001.cls are the element {"jpg", "cls"}.
    Images become uint8 arrays, .cls numbers, .txt strings, .npy and .json what they hold, others bytes. Each is read
    when it is needed. Raises DataError for no file."""
    return Pipeline(ir.Tar(_paths(paths)))


def hosted(dataset: Any, *columns: str) -> Pipeline:
    """A data set of the library datasets, with those columns or all, as NumPy arrays; one that streams
    (`IterableDataset`) can be read in order only. Raises DataError for anything else."""
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "column_names"):
        raise DataError(f"expected a Dataset or IterableDataset of the library datasets, got {type(dataset).__name__}")
    known = dataset.column_names
    if missing := [name for name in columns if known is not None and name not in known]:
        raise DataError(f"expected columns {list(columns)}, got {known}: no {missing}")
    kept = dataset.select_columns(list(columns)) if columns else dataset
    formatted = kept.with_format("numpy")
    if not hasattr(dataset, "__len__"):
        return iterable(lambda: formatted)
    return source(Hosted(formatted, tuple(columns)))


def _paths(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if not paths:
        raise DataError("expected at least one file")
    return tuple(os.fspath(path) for path in paths)


def text(path: str | os.PathLike[str], length: int, stride: int | None = None) -> Pipeline:
    """Windows of a file's bytes, every `stride` bytes (`length`): {"x": int32 [length], "labels": the next bytes}."""
    stride = length if stride is None else stride
    return Pipeline(ir.Text(os.fspath(path), _at_least("a length", length, 1), _at_least("a stride", stride, 1)))


def source(items: Any) -> Pipeline:
    """An object with `len(items)` and `items[number]`; or a function that makes it, or "module:name" of one, so that
    the pipeline can be written to a file. Elements must be the same every time."""
    if isinstance(items, str) or (callable(items) and not hasattr(items, "__getitem__")):
        return Pipeline(ir.Items(named(items)))
    return Pipeline(ir.Items(named(lambda: items)))


def iterable(make: Callable[[], Any] | str) -> Pipeline:
    """The elements of `make()`, which is called every epoch and must yield the same elements in the same order each
    time. They are read in this process, from the beginning up to a position; `write_records` makes a file of them."""
    return Pipeline(ir.Iterable(named(make)))


def zipped(*pipelines: Pipeline) -> Pipeline:
    """Dicts of several pipelines merged element by element, up to the length of the shortest. Raises DataError for
    none."""
    if not pipelines:
        raise DataError("expected at least one pipeline to zip")
    return Pipeline(ir.Zip(tuple(p.node for p in pipelines)))


def mix(*shares: tuple[Pipeline, float]) -> Pipeline:
    """Elements of several pipelines in proportions like 3 to 1, evenly interleaved, until the next one is exhausted.
    Raises DataError for no pipelines, or shares that are not positive."""
    if not shares or not all(math.isfinite(weight) and weight > 0 for _, weight in shares):
        raise DataError(f"expected pairs (pipeline, share above 0), got shares {[weight for _, weight in shares]}")
    return Pipeline(ir.Mix(tuple(p.node for p, _ in shares), tuple(float(weight) for _, weight in shares)))


def from_dict(plain: Any) -> Pipeline:
    """The pipeline of `Pipeline.to_dict`. Its functions' modules are imported: load only trusted data."""
    return Pipeline(serial.from_dict(plain))


def _unprefetched(node: ir.Node) -> ir.Node:
    node = ir.with_parents(node, tuple(_unprefetched(parent) for parent in ir.parents(node)))
    return node.of if isinstance(node, ir.Prefetch) else node


def _at_least(what: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"expected {what} of at least {least}, got {value!r}")
    return value
