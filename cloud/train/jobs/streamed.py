"""[data] that is read during training: images with one folder per class, files of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud import data
from cloud.data.reading.sources import open_source
from cloud.errors import DataError, TrainError
from cloud.track.digests import digest_of_file, digest_of_plain
from cloud.train.inputs.weights import WEIGHT
from cloud.train.jobs.config import Config
from cloud.train.jobs.examples import SAMPLE, Arrays, Examples, Taken, fitted, rows_apart, whole
from federated.tables import closest

__all__ = ["folder", "records"]


@dataclass(frozen=True)
class _Rows:
    """Some elements of a source."""

    source: Any
    rows: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return self.source[int(self.rows[number])]


@dataclass(frozen=True)
class _Fit:
    """Columns of elements -> the model's inputs by name, "labels" (or "labels.HEAD" for each head) and weights.
    `images`: pixels come channels last."""

    config: Config
    takes: Taken
    images: bool = False

    def __call__(self, columns: Mapping[str, Any]) -> Arrays:
        said = self.config.data
        names = dict(said.inputs) or {name: "x" if self.images else name for name in self.takes}
        one = {"": said.labels} if isinstance(said.labels, str) else said.labels
        labels = {f"labels.{name}".removesuffix("."): key for name, key in one.items()}
        labels |= {WEIGHT: said.weights} if said.weights else {}
        for key in (*names.values(), *labels.values()):
            if key not in columns:
                where = said.folder or said.records
                raise TrainError(f"data.inputs and data.labels: {where!r} has no {key!r}{closest(key, columns)}")
        return {name: self._input(columns[key], name) for name, key in names.items()} | {
            name: whole(columns[key]) for name, key in labels.items()
        }

    def _input(self, column: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        wanted = self.takes.get(name)
        if self.images and wanted is not None and _first(wanted[0]):
            column = np.moveaxis(column, -1, 1)
        return fitted(column, wanted, self.config.data, name)


def folder(config: Config, takes: Taken) -> Examples:
    """Images, in the size and with the channels that the model takes; labels are the indices of the folders, sorted by
    name."""
    path = config.path(config.data.folder)
    name, wanted = next(iter(takes.items()))
    shape = wanted[0] if wanted is not None else (None, None, 3)
    *size, channels = (*shape[1:], shape[0]) if _first(shape) else shape
    if len(size) != 2 or channels not in (1, 3):
        raise TrainError(f"data.folder: expected a model of images with 1 or 3 channels, {name!r} takes {shape}")
    known = (size[0], size[1]) if size[0] and size[1] else None
    source = open_source(data.folder(path, size=known, channels=channels).node)
    files = sorted((p.relative_to(path).as_posix(), p.stat().st_size) for p in path.rglob("*") if p.is_file())
    return _streamed(source, _Fit(config, {name: wanted}, images=True), config, digest_of_plain(files))


def records(config: Config, takes: Taken) -> Examples:
    """A file written by `cloud.data.write_records`: arrays by name in every record."""
    path = config.path(config.data.records)
    source = open_source(data.records(path).node)
    if not len(source):
        raise DataError(f"data.records: {config.data.records!r} is empty: expected at least one record")
    return _streamed(source, _Fit(config, takes), config, digest_of_file(path))


def _first(shape: tuple[int | None, ...]) -> bool:
    """Whether channels come first."""
    return len(shape) == 3 and shape[0] in (1, 3)


def _streamed(source: Any, fit: _Fit, config: Config, digest: str) -> Examples:
    rows, held = rows_apart(len(source), config)
    said = config.train
    train = data.source(_Rows(source, rows)).shuffle().map(fit, rows=True).batch(min(said.batch, len(rows)), said.last)
    validation = data.source(_Rows(source, held)).map(fit, rows=True).batch(min(said.batch, len(held) or 1))
    return Examples(train, validation if len(held) else None, len(rows), digest, _sample(_Rows(source, rows), fit))


def _sample(rows: _Rows, fit: _Fit) -> Arrays | None:
    """Examples for calibration; this also reads the data for the first time, before anything is compiled."""
    needed = fit.config.export.quantize in ("int8", "int16x8")
    chosen = range(0, len(rows), -(-len(rows) // SAMPLE)) if needed else range(1)
    elements = [rows[number] for number in chosen]
    columns = fit({name: np.stack([element[name] for element in elements]) for name in elements[0]})
    return {name: column for name, column in columns.items() if name in fit.takes} if needed else None
