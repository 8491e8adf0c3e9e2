"""Where batches come from: arrays in memory, or a pipeline of `cloud.data`; both as a `Feed`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from cloud.errors import TrainError, take_multiple
from cloud.train.inputs.batches import Dataset, batches, epoch_order, pair, rows_of_batch
from cloud.train.inputs.checking import check_numbers
from cloud.train.inputs.weights import WEIGHT, with_weights
from cloud.train.stepping.step import Batch

__all__ = ["ArrayFeed", "Coming", "Feed", "PipelineFeed", "feed_of"]


class Feed(Protocol):
    """Batches epoch by epoch, the same ones for the same seed; each process gets its own rows of each batch."""

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """This process's rows of the batches of epoch `number`, from batch `first` on."""


class Coming:
    """Batches on demand; `waited`: seconds spent waiting for them."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.waited = 0.0
        self._batches = batches
        self._kept: Batch | None = None

    def take(self) -> Batch | None:
        """The next batch; None after the last."""
        if self._kept is not None:
            found, self._kept = self._kept, None
            return found
        begun = time.perf_counter()
        batch = next(self._batches, None)
        self.waited += time.perf_counter() - begun
        return batch

    def over(self) -> bool:
        """Whether no batch is left."""
        self._kept = self.take()
        return self._kept is None


@dataclass(frozen=True)
class ArrayFeed:
    """Arrays in memory, reshuffled every epoch (`seed` None: in order), in batches of a multiple of `ways`."""

    data: Dataset
    size: int
    last: str
    seed: int | None
    ways: int = 1

    @property
    def steps(self) -> int:
        """Steps per epoch."""
        rows = rows_of_batch(self.data.size, self.size, self.ways)
        return self.data.size // rows if self.last == "drop" else -(-self.data.size // rows)

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """See `Feed`."""
        order = np.arange(self.data.size) if self.seed is None else epoch_order(self.data.size, self.seed, number)
        part = _share(rows_of_batch(self.data.size, self.size, self.ways))
        for batch in batches(self.data, order, self.size, self.last, first=first, part=part, ways=self.ways):
            yield {"inputs": batch.inputs, "labels": batch.labels, "mask": batch.mask}


@dataclass(frozen=True)
class PipelineFeed:
    """Any object with `batches(seed, epoch, position, process)` that returns dicts of arrays: the model's inputs by
    name, "labels" (or "labels.NAME" for each of several), "mask" if some rows are padding, and "sample_weight" if
    examples have weights."""

    pipeline: Any
    inputs: tuple[str, ...]
    seed: int
    check: Callable[[Any], None] | None = None

    def epoch(self, number: int, first: int = 0) -> Iterator[Batch]:
        """See `Feed`."""
        process, seen = (jax.process_index(), jax.process_count()), False
        for found in map(_joined, self.pipeline.batches(self.seed, number, first, process)):
            if missing := [name for name in (*self.inputs, "labels") if name not in found]:
                raise TrainError(f"expected batches with {[*self.inputs, 'labels']}, got {sorted(found)}: no {missing}")
            labels = found["labels"]
            if WEIGHT in found and WEIGHT not in self.inputs:
                labels = with_weights(labels, found[WEIGHT])
            if not seen:
                check_numbers({f"input {name!r}": found[name] for name in self.inputs} | {"labels": labels})
                seen = True
            if self.check is not None:
                self.check(labels)
            mask = found["mask"] if "mask" in found else np.ones(len(jax.tree.leaves(labels)[0]), np.float32)
            yield {"inputs": {name: found[name] for name in self.inputs}, "labels": labels, "mask": mask}


def feed_of(
    data: Any, inputs: tuple[str, ...], *, size: int, last: str = "pad", seed: int | None = None, ways: int = 1,
    check: Callable[[Any], None] | None = None,
) -> Feed:  # fmt: skip
    """`data`: a pair (inputs, labels) of arrays, or a pipeline, which determines its own batch size. `check`: refuses
    labels, of arrays at once, of a pipeline batch by batch."""
    if hasattr(data, "batches") and not isinstance(data, Mapping):
        return PipelineFeed(data, inputs, 0 if seed is None else seed, check)
    found, labels = pair(data)
    whole = Dataset.of(found, labels, inputs)
    if check is not None and whole.labels is not None:
        check(whole.labels)
    return ArrayFeed(whole, size, last, seed, ways)


def _joined(batch: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the values "labels.NAME" as a dict "labels"."""
    several = {name.removeprefix("labels."): value for name, value in batch.items() if name.startswith("labels.")}
    if not several or "labels" in batch:
        return batch
    return {**{name: v for name, v in batch.items() if not name.startswith("labels.")}, "labels": several}


def _share(rows: int) -> slice:
    """The rows of a batch that belong to this process."""
    index, count = jax.process_index(), jax.process_count()
    if rows % count:
        raise TrainError(
            f"a batch of {rows} rows does not divide among {count} processes: {take_multiple(rows, count)}"
        )
    return slice(index * rows // count, (index + 1) * rows // count)
