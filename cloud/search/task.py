"""A search's file: the task, the budget, the reference network, and how long is searched; its data.

[task]
kind = "series"            # image, sound or series: which spaces and augmentations fit
data = "har.npz"
x = "x"                    # an array (examples, channels, height, width) or (examples, height, width)
y = "y"                    # whole numbers from 0
group = "subject"          # no group is in two of training, validation and test
[reference]
network = "window_cnn"
[budget]
share = 0.5                # of the reference's latency
minutes = 30
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import onnx_ir as ir
from msgspec import Meta, field

from cloud import zoo
from cloud.data.reading.sources import npz_arrays
from cloud.errors import DataError, SearchError
from cloud.search.space import Elastic, Space, space_for
from cloud.track.digests import digest_of_arrays
from federated.tables import Count, Fraction, Number, Positive, Reader, Seed, Table, Whole
from lite_runtime.graph import Array

__all__ = ["TEMPLATE", "Data", "File", "data_of", "read", "reference_of", "space_of"]

TEMPLATE = __doc__.partition("\n\n")[2] if __doc__ else ""
_READER = Reader(SearchError, "docs/search.md has the keys")
_FRAME, _SHIFT, _FRAMES, _FEATURES, _BANDS = 256, 128, 49, 10, 40
"""Samples of a frame and between frames, frames, and cepstral coefficients of as many mel bands: a recording of 8 kHz
becomes the 49 by 10 of MLPerf Tiny's keyword spotter, of its first 0.8 s."""
_LEAST = 20
"""Examples that training, validation and test need each."""


class _Table(Table, frozen=True):
    reader: ClassVar[Reader] = _READER


class TaskTable(_Table, frozen=True):
    """[task]. `offsets`: x is one array of samples (sound of 8 kHz), cut there, and becomes cepstra. `test`: an array
    of bools that says which examples are held out, else `x_test` and `y_test`, else `test_share` of all. `scale`: x is
    divided by it; `most`: examples of training at most, spread evenly."""

    kind: Literal["image", "sound", "series"]
    data: str
    x: str = "x"
    y: str = "y"
    offsets: str = ""
    x_test: str = ""
    y_test: str = ""
    test: str = ""
    group: str = ""
    test_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    validation_share: Annotated[float, Meta(gt=0, lt=1)] = 0.15
    scale: Positive = 1.0
    most: Whole = 0


class ReferenceTable(_Table, frozen=True):
    """[reference]: a network of the zoo, or the path of an ONNX file with one input and logits."""

    network: str = "ds_cnn"


class BudgetTable(_Table, frozen=True):
    """[budget]. `share`: of the reference's latency in the same precision; `milliseconds`: instead of it. `file_bytes`
    and `arena_bytes`: 0: none. `accuracy_loss`: how far the validation accuracy may be below the reference's."""

    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    milliseconds: Annotated[float, Meta(ge=0)] = 0.0
    file_bytes: Whole = 0
    arena_bytes: Whole = 0
    accuracy_loss: Fraction = 1.0
    minutes: Positive = 30.0


class SearchTable(_Table, frozen=True):
    """[search]: steps of the supernet, candidates of a generation and generations, finalists trained to the end; `bits`
    of weights, 32: floats; `warm`: random networks that are measured first."""

    seed: Seed = 0
    steps: Count = 600
    batch: Annotated[int, Meta(ge=4)] = 64
    rate: Positive = 3e-3
    population: Annotated[int, Meta(ge=4)] = 24
    generations: Count = 8
    finalists: Count = 3
    bits: tuple[Literal[4, 8, 32], ...] = (8,)
    warm: Whole = 60
    folder: str = "search"


class StageTable(_Table, frozen=True):
    """An element of space.stages: what a stage may be, each rising."""

    widths: tuple[Count, ...]
    depths: tuple[Count, ...] = (1,)
    kernels: tuple[Count, ...] = (3,)


class SpaceTable(_Table, frozen=True):
    """[space]: instead of the kind's space. `stages`: the stem first; `lengths`: how many of them a network may have,
    all if it is left out."""

    stages: tuple[StageTable, ...] = ()
    shrinks: tuple[Count, ...] = (1, 2)
    lengths: tuple[Count, ...] = ()


class TrainTable(_Table, frozen=True):
    """[train]: the recipe of the reference and of finalists. `weight`: of the teacher in the loss of finalists."""

    epochs: Count = 20
    batch: Count = 64
    rate: Positive = 3e-3
    decay: Annotated[float, Meta(ge=0)] = 5e-4
    augment: bool = True
    weight: Fraction = 0.5
    temperature: Number = 2.0


class Words(_Table, frozen=True):
    """The whole file."""

    task: TaskTable
    reference: ReferenceTable = field(default_factory=ReferenceTable)
    budget: BudgetTable = field(default_factory=BudgetTable)
    search: SearchTable = field(default_factory=SearchTable)
    space: SpaceTable = field(default_factory=SpaceTable)
    train: TrainTable = field(default_factory=TrainTable)


@dataclass(frozen=True)
class File:
    """A search's file, read. `source`: its content as JSON data."""

    words: Words
    folder: Path
    source: Mapping[str, Any]

    def path(self, name: str) -> Path:
        """A path of the file, relative to its folder."""
        return self.folder / name


def read(path: str | os.PathLike[str]) -> File:
    """Read and check a search's file. Raises SearchError, which names the key."""
    source = _READER.file(path)
    words = _READER.read(Words, source, f"{os.fspath(path)}: ")
    return File(words, Path(path).parent, source)


# -- data --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """Examples, each part (x (n, C, H, W) float32, y (n,) int32): training and validation are for the search, the test
    is for its result alone."""

    train: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]
    classes: int
    digest: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an example."""
        _, channels, height, width = self.train[0].shape
        return channels, height, width


def data_of(file: File) -> Data:
    """Read and split the data; all parts are scaled by mean and spread of the training part, cepstra each by its own.
    Raises SearchError for arrays that are missing or do not match."""
    said = file.words.task
    arrays = _arrays(file.path(said.data))
    y = _labels(_named(arrays, said.y, "task.y"), "task.y")
    x = _inputs(arrays, said, _named(arrays, said.x, "task.x"), len(y), "task.x")
    if said.x_test or said.y_test:
        held_y = _labels(_named(arrays, said.y_test, "task.y_test"), "task.y_test")
        held = _inputs(arrays, said, _named(arrays, said.x_test, "task.x_test"), len(held_y), "task.x_test"), held_y
        own = np.arange(len(y))
    else:
        test = _test_rows(arrays, said, len(y), file.words.search.seed)
        held, own = (x[test], y[test]), np.flatnonzero(~test)
    groups = None if not said.group else _named(arrays, said.group, "task.group")[own]
    chosen = _drawn(groups, len(own), said.validation_share, file.words.search.seed + 1)
    parts = {"training": (x[own[~chosen]], y[own[~chosen]]), "validation": (x[own[chosen]], y[own[chosen]]),
             "test": held}  # fmt: skip
    if said.most and len(parts["training"][1]) > said.most:
        some = np.linspace(0, len(parts["training"][1]) - 1, said.most).astype(np.intp)
        parts["training"] = tuple(array[some] for array in parts["training"])
    for name, (_, labels) in parts.items():
        if len(labels) < _LEAST:
            raise SearchError(f"{name}: expected at least {_LEAST} examples, got {len(labels)}; change the shares")
    classes = int(max(labels.max() for _, labels in parts.values())) + 1
    lacking = sorted(set(range(classes)) - set(np.unique(parts["training"][1]).tolist()))
    if lacking:
        raise SearchError(f"task.y: the training part has no example of class {lacking[0]}; split in another way")
    seen, axes = parts["training"][0], (0, 1, 2) if said.offsets else None
    mean, spread = seen.mean(axes), seen.std(axes)
    scaled = {
        n: (np.asarray((a - mean) / np.where(spread > 0, spread, 1), np.float32), b) for n, (a, b) in parts.items()
    }
    digest = digest_of_arrays({f"{n}/{k}": a for n, pair in scaled.items() for k, a in zip("xy", pair, strict=True)})
    return Data(scaled["training"], scaled["validation"], scaled["test"], classes, digest)


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
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) == 0 or int(y.min()) < 0:
        raise SearchError(f"{key}: expected whole numbers from 0, (examples,), got {y.dtype}{list(y.shape)}")
    return y.astype(np.int32)


def _inputs(arrays: Mapping[str, Array], said: TaskTable, x: Array, count: int, key: str) -> Array:
    if said.offsets:
        if said.kind != "sound":
            raise SearchError('task.offsets: only recordings are cut; expected task.kind = "sound"')
        x = _cepstra(x, _named(arrays, said.offsets, "task.offsets"))
    if x.dtype.kind not in "iuf" or x.ndim not in (3, 4):
        raise SearchError(
            f"{key}: expected numbers (examples, [channels,] height, width), got {x.dtype}{list(x.shape)}"
        )
    if len(x) != count:
        raise SearchError(f"{key}: expected {count} examples, as many as labels, got {len(x)}")
    made = np.asarray(x if x.ndim == 4 else x[:, None], np.float32) / np.float32(said.scale)
    if not np.isfinite(made).all():
        raise SearchError(f"{key}: example {int(np.flatnonzero(~np.isfinite(made).all((1, 2, 3)))[0])} is not finite")
    return made


def _test_rows(arrays: Mapping[str, Array], said: TaskTable, count: int, seed: int) -> Array:
    if said.test:
        test = _named(arrays, said.test, "task.test")
        if test.dtype != bool or test.shape != (count,):
            raise SearchError(f"task.test: expected bools ({count},), got {test.dtype}{list(test.shape)}")
        return test
    groups = _named(arrays, said.group, "task.group") if said.group else None
    return _drawn(groups, count, said.test_share, seed)


def _drawn(groups: Array | None, count: int, share: float, seed: int) -> Array:
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
    if samples.ndim != 1 or offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise SearchError("task.offsets: expected samples (n,) and whole numbers (recordings + 1,)")
    if int(offsets.min()) < 0 or int(offsets.max()) > len(samples) or (np.diff(offsets.astype(np.int64)) < 1).any():
        raise SearchError(f"task.offsets: expected rising places in {len(samples)} samples")
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


# -- networks -----------------------------------------------------------------------------------------------------


def space_of(file: File, data: Data) -> Space:
    """The space of [space], or of the kind of task."""
    said, bits = file.words.space, tuple(sorted(set(file.words.search.bits)))
    if not said.stages:
        return space_for(file.words.task.kind, data.shape, data.classes, bits)
    stages = tuple(Elastic(s.widths, s.depths, s.kernels, bits) for s in said.stages)
    return Space(data.shape, data.classes, stages, said.shrinks, said.lengths)


def reference_of(file: File, data: Data) -> ir.Model:
    """The network to be beaten, newly initialised. Raises SearchError for an unknown name."""
    name, seed = file.words.reference.network, file.words.search.seed
    if name in ("ds_cnn", "resnet8", "window_cnn"):
        return getattr(zoo, name)(data.shape, data.classes, seed)  # type: ignore[no-any-return]
    if not name.endswith(".onnx"):
        raise SearchError(f"reference.network: expected ds_cnn, resnet8, window_cnn or an .onnx file, got {name!r}")
    from cloud.train.jobs.graphs import graph_of

    return graph_of(file.path(name))
