"""Tasks of the accuracy table, and how outputs are scored: example by example, so that contenders can be compared in
pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from converter.quantize.accuracy.metrics import auc
from lite_runtime.graph import Array

__all__ = ["Measure", "Rows", "Task", "area", "pixels", "top1"]

Rows = Mapping[str, Array]
"""Arrays by input name, samples along the leading axis."""


@dataclass(frozen=True)
class Measure:
    """A figure of merit, higher is better. `unit`: its name; `each`: outputs of all evaluation rows -> one number for
    each example; `whole`: (numbers, which examples [k] int) -> the figure for these examples."""

    unit: str
    each: Callable[[Mapping[str, Array]], Array]
    whole: Callable[[Array, Array], float]

    def of(self, outputs: Mapping[str, Array]) -> float:
        """The figure for all examples."""
        each = self.each(outputs)
        return self.whole(each, np.arange(len(each)))


@dataclass(frozen=True)
class Task:
    """One model and its data. `metric` None: there are no labels, and outputs are compared with the float model's."""

    name: str
    model: Path
    calibration: Rows
    evaluation: Rows
    metric: Measure | None = None
    peer: Path | None = None
    """The int8 .tflite that the model's authors published."""


def _mean(each: Array, which: Array) -> float:
    return float(np.mean(each[which]))


def top1(labels: Array) -> Measure:
    """The share of right classes; for labels [rows, length] over all positions of a row."""

    def each(outputs: Mapping[str, Array]) -> Array:
        (scores,) = outputs.values()
        right = scores.reshape(*labels.shape, -1).argmax(-1) == labels
        return np.asarray(right.reshape(len(labels), -1).mean(1))

    return Measure("top-1", each, _mean)


def pixels(masks: Array) -> Measure:
    """Mean intersection over union of masks: logits above 0 against labels."""

    def each(outputs: Mapping[str, Array]) -> Array:
        (scores,) = outputs.values()
        found, wanted = scores.reshape(masks.shape) > 0, masks > 0.5
        axes = tuple(range(1, masks.ndim))
        return np.asarray((found & wanted).sum(axes) / np.maximum((found | wanted).sum(axes), 1))

    return Measure("IoU", each, _mean)


def area(errors: Callable[[Mapping[str, Array]], Array], labels: Array) -> Measure:
    """The area under the ROC curve of errors as scores of `labels` (True: anomalous)."""
    return Measure("AUC", errors, lambda each, which: auc(each[which], labels[which]))
