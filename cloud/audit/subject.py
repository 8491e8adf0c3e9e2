"""What is audited: the deployed file on the device runtime, its float twin, examples, and what they are examples of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from cloud.audit.straight_through import StraightThrough
from cloud.audit.victim import BlackBox, Victim, WhiteBox
from federated.config import Config
from lite_runtime.calibration.confidence import Confidence
from lite_runtime.calibration.description import Calibration
from lite_runtime.graph import Array

__all__ = ["KINDS", "Data", "Kind", "Subject"]

Kind: TypeAlias = Literal["image", "sound", "spectrogram", "series", "table"]
KINDS: tuple[Kind, ...] = ("image", "sound", "spectrogram", "series", "table")


@dataclass(frozen=True)
class Data:
    """Examples: x (n, ...) float32 in the units of the model's input, y (n,) int64 classes, and columns (n,) of texts
    that say what each example is of: a device, a person, a place."""

    name: str
    x: Array
    y: Array
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Subject:
    """A model and everything that parts of an audit ask about it."""

    name: str
    model: BlackBox
    """The deployed file; `logits` gives its scores (n, classes)."""
    data: Data
    kind: Kind
    span: tuple[float, float]
    """The least and greatest value that an input may have; changed inputs stay within."""
    epsilon: float
    """How far attacks may go, in Linf, in the units of the input."""
    seed: int = 0
    twin: Victim | None = None
    """The float model of `--float`, white box if its operators have gradients; None if none was given."""
    own: WhiteBox | None = None
    """The deployed file itself as a white box, if it is one."""
    no_gradient: str = ""
    """Why there is no white box, neither `own` nor `twin`; "" if there is one."""
    members: Data | None = None
    """Examples that the model was trained on, of `--members`."""
    training: Path | None = None
    """The bundle that devices train: that of `--federation`, or the deployed file; None if neither can be trained."""
    run: Config | None = None
    """The federated run of `--federation`."""
    calibration: Calibration | None = None
    """The calibration that the bundle carries."""
    confidence: Confidence | None = None
    """What that calibration says of the examples; None without one."""
    class_names: tuple[str, ...] = ()

    @cached_property
    def scores(self) -> Array:
        """(n, classes) float32: the deployed file's outputs for all examples."""
        return self.model.logits(self.data.x)

    @cached_property
    def right(self) -> Array:
        """(n,) bool: which examples it answers correctly."""
        return np.asarray(self.scores.argmax(1) == self.data.y)

    @cached_property
    def white(self) -> WhiteBox | None:
        """What attacks by gradients attack: the file itself, or its answers with the gradients of its float twin."""
        if self.own is not None:
            return self.own
        return StraightThrough(self.model, self.twin) if isinstance(self.twin, WhiteBox) else None

    @property
    def classes(self) -> tuple[str, ...]:
        """A name for each class."""
        return self.class_names or tuple(map(str, range(self.model.classes)))

    def classes_of(self, y: Array) -> Array:
        """Classes (n,) by their names."""
        return np.asarray(np.array(self.classes)[y])

    def sample(self, most: int, only: Array | None = None) -> Array:
        """Up to `most` rows, ascending, drawn by the seed; only: (n,) bool, rows to draw from."""
        rows = np.arange(len(self.data)) if only is None else np.flatnonzero(only)
        if len(rows) <= most:
            return rows
        return np.sort(np.random.default_rng(self.seed).choice(rows, most, replace=False))
