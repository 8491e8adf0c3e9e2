"""Arrays in memory as batches of one size. `cloud.data` has full data pipelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.errors import TrainError
from cloud.train.inputs.checking import check_numbers
from cloud.train.inputs.weights import with_weights

__all__ = ["Arrays", "Batch", "Dataset", "batches", "epoch_order", "pair", "rows_of_batch"]

Arrays: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]

_WHOLE = slice(None)


class Batch(NamedTuple):
    """Rows of a data set; `mask` [batch] is 1 for rows that count and 0 for padding of the last batch."""

    inputs: dict[str, npt.NDArray[Any]]
    labels: Any
    mask: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Dataset:
    """Inputs by name and labels, an array or a dict of some, example first."""

    inputs: dict[str, npt.NDArray[Any]]
    labels: Any
    size: int

    @classmethod
    def of(cls, inputs: Arrays, labels: Any, names: tuple[str, ...]) -> Dataset:
        """Checked data. `inputs` is a mapping, or the one array of a model with one input."""
        if not isinstance(inputs, Mapping):
            if len(names) != 1:
                raise TrainError(f"the model has inputs {list(names)}; give a mapping from name to array")
            inputs = {names[0]: inputs}
        arrays = {name: np.asarray(array) for name, array in inputs.items()}
        target = _arrays(labels)
        check_numbers({f"input {name!r}": array for name, array in arrays.items()} | {"labels": target})
        known: dict[str, npt.NDArray[Any]] = dict(arrays)
        if isinstance(target, dict):
            known |= {f"labels[{name!r}]": array for name, array in target.items()}
        elif target is not None:
            known["labels"] = target
        sizes = {name: len(array) if array.ndim else 0 for name, array in known.items()}
        if len(set(sizes.values())) != 1:
            raise TrainError(f"expected the same number of examples in every array, got {sizes}")
        size = next(iter(sizes.values()))
        if size == 0:
            raise TrainError("the data is empty: expected at least one example")
        return cls(arrays, target, size)

    def take(self, rows: npt.NDArray[np.intp], mask: npt.NDArray[np.float32]) -> Batch:
        """The batch of those rows."""
        # `take` is up to four times as fast as indexing, which handles more cases than whole rows.
        labels = self.labels
        if labels is not None:
            labels = _taken(labels, rows)
        return Batch({name: a.take(rows, axis=0) for name, a in self.inputs.items()}, labels, mask)


def _arrays(labels: Any) -> Any:
    """Labels as an array, or a dict of some."""
    if isinstance(labels, Mapping):
        return {name: np.asarray(array) for name, array in labels.items()}
    return None if labels is None else np.asarray(labels)


def _taken(labels: Any, rows: npt.NDArray[np.intp]) -> Any:
    return (
        {n: a.take(rows, axis=0) for n, a in labels.items()} if isinstance(labels, dict) else labels.take(rows, axis=0)
    )


def pair(data: Any) -> tuple[Any, Any]:
    """(inputs, labels), checked to be two things, or three: the third are weights of examples, and go with the
    labels."""
    if not isinstance(data, tuple | list) or len(data) not in (2, 3):
        raise TrainError(
            f"expected data as (inputs, labels) or (inputs, labels, weights), got {type(data).__name__}"
            + (f" of {len(data)}" if isinstance(data, tuple | list) else "")
        )
    return data[0], data[1] if len(data) == 2 else with_weights(data[1], data[2])


def epoch_order(size: int, seed: int, epoch: int) -> npt.NDArray[np.intp]:
    """The order of examples in an epoch; depends only on the seed and the epoch's number."""
    return np.random.default_rng((seed, epoch)).permutation(size)


def batches(
    data: Dataset, order: npt.NDArray[np.intp], batch_size: int, last: str,
    *, first: int = 0, part: slice = _WHOLE, ways: int = 1,
) -> Iterator[Batch]:  # fmt: skip
    """Batches of exactly `batch_size` (see `rows_of_batch`), starting with number `first`; of each batch the rows
    `part`.

    `last` says what happens to an incomplete last batch: "pad" fills it with examples from the start of the order,
    masked out; "drop" skips it.
    """
    size = rows_of_batch(data.size, batch_size, ways)
    full = np.ones(size, np.float32)[part]
    for start in range(first * size, len(order), size):
        rows = order[start : start + size]
        if len(rows) == size:
            yield data.take(rows[part], full)
        elif last == "pad":
            mask = (np.arange(size) < len(rows)).astype(np.float32)
            yield data.take(np.concatenate([rows, np.resize(order, size - len(rows))])[part], mask[part])


def rows_of_batch(size: int, batch_size: int, ways: int = 1) -> int:
    """`batch_size`, at most the data's `size`, rounded up to a multiple of `ways`."""
    return -(-min(batch_size, size) // ways) * ways
