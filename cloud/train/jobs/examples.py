"""`Examples`, the data of a run, and the conversion of arrays to the form that a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud.errors import TrainError
from cloud.train.jobs.config import Config, Data
from cloud.train.tasks import as_task

__all__ = [
    "Arrays", "Examples", "Labels", "Taken", "count_of", "fitted", "limited", "rows_apart", "some", "split", "taken",
    "whole",
]  # fmt: skip

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Labels: TypeAlias = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
"""One array of labels, or several by name, perhaps with the examples' weights."""

Taken: TypeAlias = Mapping[str, tuple[tuple[int | None, ...], np.dtype[Any]] | None]
"""Shape without the batch dimension, and dtype, of a model's inputs by name; None if unknown."""

SAMPLE = 200
"""Examples used for calibration when a bundle is quantised."""


@dataclass(frozen=True)
class Examples:
    """Training data and, if there is any, validation data, as `Trainer.fit` takes them; `count`: training examples (0:
    known only after reading); `digest` of the contents, "" if unknown; `sample`: some inputs by name."""

    train: Any
    validation: Any
    count: int
    digest: str
    sample: Mapping[str, npt.NDArray[Any]] | None


def taken(model: Any) -> Taken:
    """What a model takes: of an `onnx_ir.Model` names, shapes and dtypes; of others the names."""
    if not isinstance(model, ir.Model):
        return dict.fromkeys(as_task(model).inputs)
    weights = set(model.graph.initializers)
    return {value.name: _said(value) for value in model.graph.inputs if value.name and value.name not in weights}


def _said(value: ir.Value) -> tuple[tuple[int | None, ...], np.dtype[Any]] | None:
    if value.shape is None or value.dtype is None:
        return None
    return tuple(d if isinstance(d, int) else None for d in value.shape[1:]), value.dtype.numpy()


def fitted(array: npt.NDArray[Any], wanted: Any, said: Data, name: str) -> npt.NDArray[Any]:
    """`array` in the (shape, dtype) `wanted` for input `name`: axes of 1 are added or removed, integers become floats.
    If the model does not specify them, they do so if data.scale or data.offset is given. Raises TrainError."""
    if wanted is None:
        scaled = array.dtype.kind in "iub" and (said.scale, said.offset) != (1, 0)
        return array.astype(np.float32) * np.float32(said.scale) + np.float32(said.offset) if scaled else array
    shape, dtype = wanted
    if dtype.kind == "f" and array.dtype.kind in "iub":
        array = array.astype(dtype) * dtype.type(said.scale) + dtype.type(said.offset)
    elif array.dtype.kind == dtype.kind or (array.dtype.kind in "iu" and dtype.kind in "iu"):
        array = array.astype(dtype, copy=False)
    else:
        raise TrainError(f"data: the model takes {dtype} for {name!r}, got {array.dtype}")
    known = [d for d in shape if d != 1]
    found = [d for d in array.shape[1:] if d != 1]
    fits = len(known) == len(found) and all(k in (None, f) for k, f in zip(known, found, strict=True))
    if not fits:
        words = "×".join("?" if d is None else str(d) for d in shape)
        got = array.shape[1:]
        raise TrainError(f"data: the model takes examples of {words} for {name!r}, got {got}; reshape the data")
    sizes = iter(found)
    return array.reshape(len(array), *(1 if d == 1 else next(sizes) for d in shape))


def whole(labels: Any) -> Any:
    """Whole numbers as int32, which JAX computes with; of one array of labels, or of several."""
    if isinstance(labels, dict):
        return {name: whole(array) for name, array in labels.items()}
    return labels.astype(np.int32) if labels.dtype.kind in "iu" else labels


def some(inputs: Mapping[str, Any]) -> Arrays:
    """A sample spread evenly over the data, because files are often sorted by label."""
    return {name: np.asarray(array[:: -(-len(array) // SAMPLE)]) for name, array in inputs.items()}


def limited(inputs: Arrays, labels: Labels, config: Config) -> tuple[Arrays, Labels]:
    """At most data.limit examples, chosen by the seed. Raises TrainError for arrays of different lengths."""
    _as_many(inputs, labels)
    rows = _drawn(count_of(labels), config)
    if len(rows) == count_of(labels):
        return inputs, labels
    return {name: array[rows] for name, array in inputs.items()}, _taken(labels, rows)


def count_of(labels: Labels) -> int:
    """The number of examples."""
    return len(next(iter(labels.values())) if isinstance(labels, dict) else labels)


def _taken(labels: Labels, rows: npt.NDArray[np.intp]) -> Labels:
    return {n: array[rows] for n, array in labels.items()} if isinstance(labels, dict) else labels[rows]


def _as_many(inputs: Arrays, labels: Labels) -> None:
    named = {f"labels {n!r}": a for n, a in labels.items()} if isinstance(labels, dict) else {"labels": labels}
    sizes = {name: array.shape[0] if array.ndim else 0 for name, array in {**inputs, **named}.items()}
    if len(set(sizes.values())) != 1 or not all(sizes.values()):
        raise TrainError(f"data: expected the same number of examples in every array, at least one, got {sizes}")


def rows_apart(count: int, config: Config) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Which of `count` examples are used for training and which are held out, both in their original order, chosen by
    the seed."""
    rows = _drawn(count, config)
    held = round(config.data.validation * len(rows))
    order = np.random.default_rng((config.train.seed, 0x5EED)).permutation(len(rows))
    return rows[np.sort(order[held:])], rows[np.sort(order[:held])]


def _drawn(count: int, config: Config) -> npt.NDArray[np.intp]:
    most = config.data.limit
    if not 0 < most < count:
        return np.arange(count)
    return np.sort(np.random.default_rng((config.train.seed, 0xF3)).permutation(count)[:most])


def split(inputs: Arrays, labels: Labels, config: Config, digest: str) -> Examples:
    """Examples from arrays, with a share held out. Raises TrainError for arrays of different lengths."""
    _as_many(inputs, labels)
    parts = rows_apart(count_of(labels), config)
    train, held = (({name: array[rows] for name, array in inputs.items()}, _taken(labels, rows)) for rows in parts)
    return Examples(train, held if len(parts[1]) else None, len(parts[0]), digest, some(train[0]))
