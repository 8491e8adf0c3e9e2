"""A dataset of Ray as training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cloud.errors import TrainError

__all__ = ["RayBatches"]


class RayBatches:
    """The batches of a `ray.data.Dataset`, for `Trainer.fit`, or as what data.function returns.

    `data`: the dataset; or, in a function for `ray_trainer(datasets=…)`, its name there: each worker then reads its own
    share of it, equal in size, and `batch` rows of all workers together are a step. `columns`: the dataset's column for
    each input of the model, and for "labels"; by default those of the same names. `shuffle`: rows among which the next
    one is chosen at random; 0: the order of the dataset. Every epoch has its own order, which repeats if the dataset
    gives its rows in the same order (Ray's `preserve_order`).
    """

    def __init__(self, data: Any, batch: int, *, columns: Mapping[str, str] | None = None, shuffle: int = 0) -> None:
        if batch < 1 or shuffle < 0:
            raise TrainError(f"expected batch of at least 1 and shuffle of at least 0, got {batch} and {shuffle}")
        self._data, self._batch, self._columns, self._shuffle = data, batch, dict(columns or {}), shuffle

    def batches(self, seed: int, epoch: int, first: int, process: tuple[int, int]) -> Iterator[dict[str, Any]]:
        """This process's rows of the batches of an epoch from number `first` on; the last one is filled, with rows that
        its mask leaves out. Raises TrainError."""
        index, count = process
        if self._batch % count:
            raise TrainError(f"a batch of {self._batch} rows does not divide among {count} processes")
        shared = isinstance(self._data, str)
        if count > 1 and not shared:
            raise TrainError(
                "several processes need shares: give the dataset to ray_trainer(datasets=…), its name here"
            )
        rows = self._batch // count
        options: dict[str, Any] = {"batch_size": rows, "batch_format": "numpy", "drop_last": count > 1}
        if self._shuffle:
            drawn = np.random.SeedSequence([seed, epoch, index]).generate_state(1)[0]
            options |= {"local_shuffle_buffer_size": self._shuffle, "local_shuffle_seed": int(drawn)}
        for number, found in enumerate(self._source(shared).iter_batches(**options)):
            if number >= first:
                yield _filled(self._named(found), rows)

    def _source(self, shared: bool) -> Any:
        if not shared:
            return self._data
        from ray import train

        try:
            return train.get_dataset_shard(self._data)
        except KeyError as error:
            raise TrainError(f"expected ray_trainer(datasets=…) to have {self._data!r}: {error}") from error

    def _named(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if missing := [column for column in self._columns.values() if column not in found]:
            raise TrainError(f"expected columns {sorted(self._columns.values())}, got {sorted(found)}: no {missing}")
        renamed = {name: found[column] for name, column in self._columns.items()}
        taken = {*self._columns.values()}
        return {**{name: array for name, array in found.items() if name not in taken}, **renamed}


def _filled(batch: Mapping[str, Any], rows: int) -> dict[str, Any]:
    there = len(next(iter(batch.values())))
    mask = (np.arange(rows) < there).astype(np.float32)
    kept = np.arange(rows) % there
    return {**{name: np.asarray(array)[kept] for name, array in batch.items()}, "mask": mask}
