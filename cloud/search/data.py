"""The examples of a search: read, checked, and divided into training, validation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from cloud.data.reading.sources import npz_arrays
from cloud.errors import DataError, SearchError
from cloud.search.goal import CLASSES, Columns, Goal, Part, Values
from cloud.search.task import File, TaskTable
from cloud.search.windows import check_offsets, forecasts
from cloud.track.digests import digest_of_arrays
from lite_runtime.graph import Array

__all__ = ["Data", "data_of"]

_FRAME, _SHIFT, _FRAMES, _FEATURES, _BANDS = 256, 128, 49, 10, 40
"""Samples of a frame and between frames, frames, and cepstral coefficients of as many mel bands: a recording of 8 kHz
becomes the 49 by 10 of MLPerf Tiny's keyword spotter, of its first 0.8 s."""
_LEAST = 20
"""Examples that training, validation and test need each."""


@dataclass(frozen=True)
class Data:
    """Examples, each part (x float32, y): training and validation are for the search, the test is for its result alone.
    x is (n, C, H, W), of a table (n, columns); y is what `goal` says. `naive`: errors of naive forecasts on the test
    part, in spreads, by their names."""

    train: Part
    validation: Part
    test: Part
    outputs: int
    digest: str
    goal: Goal = CLASSES
    columns: Columns | None = None
    naive: Mapping[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an example."""
        return tuple(self.train[0].shape[1:])


def data_of(file: File) -> Data:
    """Read and split the data. Images, sound and series are scaled by mean and spread of the training part, cepstra
    each by its own; tables and forecasts stay as they are, because their networks scale them. Raises SearchError for
    arrays that are missing or do not match."""
    said, seed = file.words.task, file.words.search.seed
    arrays = _arrays(file.path(said.data))
    if said.kind == "forecast":
        return _forecast(arrays, said, seed)
    parts = _examples(arrays, said, seed)
    goal, outputs = _goal(parts)
    seen = parts["training"][0]
    columns = None
    if said.kind == "table":
        spread = seen.std(0, dtype=np.float64)
        columns = Columns(_numbers(seen.mean(0, dtype=np.float64)), _numbers(np.where(spread > 0, spread, 1)))
    else:
        axes = (0, 1, 2) if said.offsets else None
        mean, spread = seen.mean(axes), seen.std(axes)
        parts = {
            n: (np.asarray((a - mean) / np.where(spread > 0, spread, 1), np.float32), b) for n, (a, b) in parts.items()
        }
    return Data(*_ordered(parts), outputs, _digest(parts), goal, columns)


def _numbers(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _ordered(parts: Mapping[str, Part]) -> tuple[Part, Part, Part]:
    return parts["training"], parts["validation"], parts["test"]


def _digest(parts: Mapping[str, Part]) -> str:
    return digest_of_arrays({f"{n}/{k}": a for n, pair in parts.items() for k, a in zip("xy", pair, strict=True)})


def _examples(arrays: Mapping[str, Array], said: TaskTable, seed: int) -> dict[str, Part]:
    """The parts by name, not yet scaled."""
    y = _labels(_named(arrays, said.y, "task.y"), "task.y")
    x = _inputs(arrays, said, _named(arrays, said.x, "task.x"), len(y), "task.x")
    if said.x_test or said.y_test:
        held_y = _labels(_named(arrays, said.y_test, "task.y_test"), "task.y_test")
        held = _inputs(arrays, said, _named(arrays, said.x_test, "task.x_test"), len(held_y), "task.x_test"), held_y
        if held_y.dtype != y.dtype:
            raise SearchError(f"task.y_test: expected {y.dtype.kind!r} numbers like task.y, got {held_y.dtype}")
        own = np.arange(len(y))
    else:
        test = _test_rows(arrays, said, len(y), seed)
        held, own = (x[test], y[test]), np.flatnonzero(~test)
    groups = None if not said.group else _named(arrays, said.group, "task.group")[own]
    chosen = drawn(groups, len(own), said.validation_share, seed + 1)
    parts = {"training": (x[own[~chosen]], y[own[~chosen]]), "validation": (x[own[chosen]], y[own[chosen]]),
             "test": held}  # fmt: skip
    if said.most and len(parts["training"][1]) > said.most:
        some = np.linspace(0, len(parts["training"][1]) - 1, said.most).astype(np.intp)
        parts["training"] = (parts["training"][0][some], parts["training"][1][some])
    _enough(parts)
    return parts


def _enough(parts: Mapping[str, Part]) -> None:
    for name, (_, labels) in parts.items():
        if len(labels) < _LEAST:
            raise SearchError(f"{name}: expected at least {_LEAST} examples, got {len(labels)}; change the shares")


def _goal(parts: Mapping[str, Part]) -> tuple[Goal, int]:
    """What the labels ask for, and the numbers that the last layer gives."""
    seen = parts["training"][1]
    if seen.dtype.kind == "f":
        if any(labels.min() == labels.max() for _, labels in parts.values()):
            raise SearchError("task.y: all numbers of a part are the same; there is nothing to predict")
        return Values(float(seen.mean(dtype=np.float64)), float(seen.std(dtype=np.float64))), 1
    classes = int(max(labels.max() for _, labels in parts.values())) + 1
    lacking = sorted(set(range(classes)) - set(np.unique(seen).tolist()))
    if lacking:
        raise SearchError(f"task.y: the training part has no example of class {lacking[0]}; split in another way")
    return CLASSES, classes


def _forecast(arrays: Mapping[str, Array], said: TaskTable, seed: int) -> Data:
    x = _named(arrays, said.x, "task.x")
    offsets = _named(arrays, said.offsets, "task.offsets") if said.offsets else np.array([0, len(x)])
    names = None
    if said.group:
        groups = _named(arrays, said.group, "task.group")
        test = drawn(groups, len(offsets) - 1, said.test_share, seed)
        rest = np.flatnonzero(~test)
        held = rest[drawn(groups[rest], len(rest), said.validation_share, seed + 1)]
        names = ["test" if out else "training" for out in test]
        for number in held:
            names[number] = "validation"
    parts, goal = forecasts(said, x, offsets, names)
    _enough(parts)
    kinds = {"last value": 1, **({"last season": said.season} if said.season else {})}
    naive = {name: float(goal.errors(goal.naive(parts["test"][0], n), parts["test"][1]).mean() ** 0.5)
             for name, n in kinds.items()}  # fmt: skip
    return Data(*_ordered(parts), len(goal.spread) * goal.horizon, _digest(parts), goal, naive=naive)


def _arrays(path: Path) -> Mapping[str, Array]:
    try:
        return npz_arrays(path)
    except DataError as error:
        raise SearchError(f"task.data: {error}") from error


def _named(arrays: Mapping[str, Array], name: str, key: str) -> Array:
    if name not in arrays:
        raise SearchError(f"{key}: expected an array of the file, got {name!r}; it has {', '.join(sorted(arrays))}")
    return arrays[name]


def _labels(y: Array, key: str) -> Array:
    """(n,) int32 classes, or float32 numbers."""
    whole = y.dtype.kind in "iu"
    if y.ndim != 1 or len(y) == 0 or not (y.dtype.kind == "f" or (whole and int(y.min()) >= 0)):
        raise SearchError(f"{key}: expected classes, whole numbers from 0, or floats, (examples,), got "
                          f"{y.dtype}{list(y.shape)}{f' from {y.min()}' if whole and y.size else ''}")  # fmt: skip
    if not np.isfinite(y).all():
        raise SearchError(f"{key}: number {int(np.flatnonzero(~np.isfinite(y))[0])} is not finite")
    return y.astype(np.int32 if whole else np.float32)


def _inputs(arrays: Mapping[str, Array], said: TaskTable, x: Array, count: int, key: str) -> Array:
    if said.offsets:
        x = _cepstra(x, _named(arrays, said.offsets, "task.offsets"))
    table = said.kind == "table"
    if x.dtype.kind not in "iuf" or x.ndim not in ((2,) if table else (3, 4)) or 0 in x.shape:
        form = "columns" if table else "[channels,] height, width"
        raise SearchError(f"{key}: expected numbers (examples, {form}), got {x.dtype}{list(x.shape)}")
    if len(x) != count:
        raise SearchError(f"{key}: expected {count} examples, as many as labels, got {len(x)}")
    made = np.asarray(x[:, None] if x.ndim == 3 else x, np.float32) / np.float32(said.scale)
    finite = np.isfinite(made).reshape(len(made), -1).all(1)
    if not finite.all():
        raise SearchError(f"{key}: example {int(np.flatnonzero(~finite)[0])} is not finite; fill it in first")
    return made


def _test_rows(arrays: Mapping[str, Array], said: TaskTable, count: int, seed: int) -> Array:
    if said.test:
        test = _named(arrays, said.test, "task.test")
        if test.dtype != bool or test.shape != (count,):
            raise SearchError(f"task.test: expected bools ({count},), got {test.dtype}{list(test.shape)}")
        return test
    groups = _named(arrays, said.group, "task.group") if said.group else None
    return drawn(groups, count, said.test_share, seed)


def drawn(groups: Array | None, count: int, share: float, seed: int) -> Array:
    """Which examples are drawn: about a share of them, of whole groups if there are any."""
    draw = np.random.default_rng(seed)
    if groups is None:
        chosen = np.zeros(count, bool)
        chosen[draw.permutation(count)[: max(1, round(share * count))]] = True
        return chosen
    if groups.shape != (count,):
        raise SearchError(f"task.group: expected one for each of {count} examples, got {list(groups.shape)}")
    names = draw.permutation(np.unique(groups))
    if len(names) < 3:
        raise SearchError(f"task.group: expected three groups or more, got {len(names)}; leave the key out")
    return np.isin(groups, names[: max(1, round(share * len(names)))])


def _cepstra(samples: Array, offsets: Array) -> Array:
    """[recordings, 1, frames, coefficients]: the cosine transform of logarithms of mel bands, of int16 samples."""
    if samples.ndim != 1:
        raise SearchError(f"task.x: expected samples (n,) beside offsets, got {samples.dtype}{list(samples.shape)}")
    check_offsets(offsets, len(samples))
    top = 2595 * np.log10(1 + 4000 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, _BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(_FRAME, 1 / 8000)[:, None]
    rise, fall = (at - edges[:-2]) / np.diff(edges)[:-1], (edges[2:] - at) / np.diff(edges)[1:]
    bands = np.maximum(0, np.minimum(rise, fall))
    place = np.pi * (np.arange(_BANDS)[:, None] + 0.5) * np.arange(_FEATURES) / _BANDS
    transform, window = np.cos(place) * np.sqrt(2 / _BANDS), np.hanning(_FRAME)
    full = float(np.iinfo(samples.dtype).max) if samples.dtype.kind in "iu" else 1.0
    made = np.empty((len(offsets) - 1, 1, _FRAMES, _FEATURES), np.float32)
    for i, (begin, end) in enumerate(pairwise(offsets.astype(int))):
        clip = np.zeros(_FRAME + _SHIFT * (_FRAMES - 1))
        part = samples[begin:end][: len(clip)]
        clip[: len(part)] = part / full
        frames = np.lib.stride_tricks.sliding_window_view(clip, _FRAME)[::_SHIFT] * window
        made[i, 0] = np.log(np.abs(np.fft.rfft(frames)) ** 2 @ bands + 1e-6) @ transform
    return made
