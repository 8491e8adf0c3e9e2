"""A search's file: the task, the budget, the reference network, and how long is searched.

[task]
kind = "series"            # image, sound, series, table or forecast: which networks and augmentations fit
data = "har.npz"
x = "x"                    # examples: (n, channels, height, width), (n, height, width); of a table (n, columns)
y = "y"                    # (n,): whole numbers from 0 are classes; floats are predicted as numbers
group = "subject"          # no group is in two of training, validation and test
# kind = "forecast": x is (steps,) or (steps, channels), there is no y, and the test part is the last in time
# window = 96              # steps that are read
# horizon = 24             # steps that are forecast
# season = 0               # the naive forecast repeats the last value, or so many
[reference]
network = "window_cnn"     # ds_cnn, resnet8, window_cnn, largest (of the space), or an .onnx file
[budget]
share = 0.5                # of the reference's latency
minutes = 30
[search]
plain = true               # of tables and series boosted trees, of forecasts a linear one: the result where better
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from cloud.errors import SearchError
from federated.tables import Count, Fraction, Number, Positive, Reader, Seed, Table, Whole

__all__ = ["TEMPLATE", "File", "SearchTable", "TaskTable", "TrainTable", "read"]

TEMPLATE = __doc__.partition("\n\n")[2] if __doc__ else ""
_READER = Reader(SearchError, "docs/search.md has the keys")


class _Table(Table, frozen=True):
    reader: ClassVar[Reader] = _READER


class TaskTable(_Table, frozen=True):
    """[task]. `offsets`: x is one array, cut there: samples of 8 kHz, which become cepstra, or the steps of several
    recordings. `test`: an array of bools that says which examples are held out, else `x_test` and `y_test`, else
    `test_share` of all. `scale`: x is divided by it; `most`: examples of training at most, spread evenly. Forecasts:
    steps of a `window` and of its `horizon`, `hop` steps between windows, `season`: steps that a naive forecast
    repeats."""

    kind: Literal["image", "sound", "series", "table", "forecast"]
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
    window: Annotated[int, Meta(ge=4)] = 96
    horizon: Count = 24
    hop: Count = 1
    season: Whole = 0


class ReferenceTable(_Table, frozen=True):
    """[reference]: a network of the zoo, the largest of the space, or the path of an ONNX file with one input and the
    task's output. "": ds_cnn, of tables and forecasts the largest."""

    network: str = ""


class BudgetTable(_Table, frozen=True):
    """[budget]. `share`: of the reference's latency in the same precision, 0: a half, and of tables and forecasts the
    whole, as the call alone takes much of it; `milliseconds`: instead of it. `file_bytes`
    and `arena_bytes`: 0: none. `accuracy_loss`: how far the validation accuracy, or another figure, may be below the
    reference's."""

    share: Fraction = 0.0
    milliseconds: Annotated[float, Meta(ge=0)] = 0.0
    file_bytes: Whole = 0
    arena_bytes: Whole = 0
    accuracy_loss: Fraction = 1.0
    minutes: Positive = 30.0


class SearchTable(_Table, frozen=True):
    """[search]: steps of the supernet, candidates of a generation and generations, finalists trained to the end; `bits`
    of weights, 32: floats; `warm`: random networks that are measured first; `plain`: whether boosted trees (tables,
    series) or a linear forecast compete."""

    seed: Seed = 0
    steps: Count = 600
    batch: Annotated[int, Meta(ge=4)] = 64
    rate: Positive = 3e-3
    population: Annotated[int, Meta(ge=4)] = 24
    generations: Count = 8
    finalists: Count = 3
    bits: tuple[Literal[4, 8, 32], ...] = (8,)
    warm: Whole = 60
    plain: bool = True
    folder: str = "search"


class StageTable(_Table, frozen=True):
    """An element of space.stages: what a stage may be, each rising. `kernels`: 3 if left out; tables have none."""

    widths: tuple[Count, ...]
    depths: tuple[Count, ...] = (1,)
    kernels: tuple[Count, ...] = ()


class SpaceTable(_Table, frozen=True):
    """[space]: instead of the kind's space. `stages`: the stem first; `shrinks`: 1 and 2 if left out, tables have none;
    `lengths`: how many of the stages a network may have, all if it is left out."""

    stages: tuple[StageTable, ...] = ()
    shrinks: tuple[Count, ...] = ()
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


_IMAGES, _FORECAST = ("image", "sound", "series"), ("forecast",)
_ONLY = {
    "task.offsets": ("sound", "forecast"), "task.scale": _IMAGES, "space.shrinks": (*_IMAGES, "forecast"),
    **dict.fromkeys(("task.y", "task.x_test", "task.y_test", "task.test", "train.augment"), (*_IMAGES, "table")),
    **dict.fromkeys(("task.window", "task.horizon", "task.hop", "task.season"), _FORECAST),
    "search.plain": ("series", "table", "forecast"),
}  # fmt: skip
"""Keys that some kinds of task alone have."""


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
    for key, kinds in _ONLY.items():
        section, _, name = key.partition(".")
        if name in source.get(section, {}) and words.task.kind not in kinds:
            raise SearchError(f"{key}: is for task.kind {' or '.join(kinds)}, got {words.task.kind!r}; leave it out")
    return File(words, Path(path).parent, source)
