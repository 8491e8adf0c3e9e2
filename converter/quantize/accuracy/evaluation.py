"""The user's definition of accuracy: a metric, the rows and labels it is measured on, and the allowed loss."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from converter.errors import QuantizeError
from converter.quantize.accuracy.budget import Budget, Found, search
from converter.quantize.accuracy.metrics import Evaluator, load
from converter.quantize.accuracy.sensitivity import Progress
from converter.quantize.calibration.data import Row, Samples, Source, arrays_of, rows_in_order
from converter.quantize.options import Options
from lite_runtime.graph import Array

__all__ = ["AGREEMENT", "LABELS", "Accuracy", "within"]

AGREEMENT = "agreement"
"""The metric where none is named."""
LABELS = ("labels", "label", "y")
"""Names under which an .npz or a dict may contain labels in addition to the inputs."""


@dataclass(frozen=True)
class Accuracy:
    """A budget such as "0.5%" or 0.005 of `metric` (a name of `metrics.METRICS` or `module:function`; "agreement" by
    default), measured on `data` (default: the calibration rows) and `labels`, which may also be in `data` under a name
    of `LABELS`. Of a language model the metric is "perplexity" and `data` a text: its path, or token ids."""

    budget: str | float
    metric: str | None = None
    data: Source | None = None
    labels: Array | None = None


def within(
    model: ir.Model,
    options: Options,
    samples: Samples | None,
    accuracy: Accuracy,
    progress: Progress | None = None,
) -> Found:
    """The cheapest mix of precisions that meets the budget; `model` is not changed. Raises QuantizeError."""
    metric = load(accuracy.metric or AGREEMENT)
    budget = Budget.parse(accuracy.budget, metric.share)
    rows, labels = _rows(accuracy, model, samples)
    return search(model, options, samples, Evaluator(model, rows, metric, labels), budget, progress=progress)


def _rows(accuracy: Accuracy, model: ir.Model, samples: Samples | None) -> tuple[tuple[Row, ...], Array | None]:
    if accuracy.data is None:
        if samples is None:
            raise QuantizeError("an accuracy budget needs rows to measure on: give evaluation or calibration data")
        if accuracy.labels is not None:
            raise QuantizeError("labels need evaluation data: calibration rows do not keep their order")
        return samples.rows, None
    data, labels = _without_labels(accuracy.data, {v.name or "" for v in model.graph.inputs})
    return rows_in_order(data, model), accuracy.labels if accuracy.labels is not None else labels


def _without_labels(data: Source, inputs: set[str]) -> tuple[Source, Array | None]:
    """The data without labels, and the labels in it."""
    if isinstance(data, str | os.PathLike) and Path(data).suffix == ".npz":
        data = arrays_of(Path(data), "evaluation data")
    if not isinstance(data, Mapping):
        return data, None
    name = next((n for n in LABELS if n in data and n not in inputs), None)
    return {k: v for k, v in data.items() if k != name}, None if name is None else np.asarray(data[name])
