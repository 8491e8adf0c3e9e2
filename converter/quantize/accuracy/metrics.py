"""Distances between results and metrics of models, which budgets, sensitivity and reports use.

Distances (`snr`, `cosine`, `mse`, `relative_error`) compare two arrays of one shape. A `Metric` scores a model by all
its outputs on a set of rows: against the float model's outputs (agreement, error) or against labels (accuracy, AUC,
error), or by a user's function, given as `module:function` and found by importing the module.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.errors import QuantizeError
from converter.quantize.calibration.data import Row
from converter.quantize.calibration.observe import Runner

__all__ = [
    "METRICS",
    "Evaluator",
    "Metric",
    "auc",
    "cosine",
    "load",
    "mse",
    "relative_error",
    "snr",
    "top1",
]

Array = np.ndarray[Any, np.dtype[Any]]
Outputs = Mapping[str, Array]
"""Every output of the model by name, rows stacked along a new leading axis."""


def mse(reference: Array, result: Array) -> float:
    """Mean squared difference; 0 for empty arrays."""
    a, b = _pair(reference, result)
    return float(np.square(a - b).mean()) if a.size else 0.0


def snr(reference: Array, result: Array) -> float:
    """Signal to noise in decibels: 10 log10(sum reference^2 / sum difference^2); inf when nothing differs."""
    a, b = _pair(reference, result)
    noise, signal = float(np.square(a - b).sum()), float(np.square(a).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def cosine(reference: Array, result: Array) -> float:
    """Cosine of the angle between both, in [-1, 1]; 1 when both are zero, 0 when one is."""
    a, b = _pair(reference, result)
    lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if lengths == 0:
        return float(not a.any() and not b.any())
    return min(1.0, max(-1.0, float(a @ b) / lengths))


def relative_error(reference: Array, result: Array) -> float:
    """Root of the summed squared differences, divided by that of the reference; 0 if nothing differs."""
    return 10 ** (-snr(reference, result) / 20)


def _pair(reference: Array, result: Array) -> tuple[Array, Array]:
    if reference.shape != result.shape:
        raise QuantizeError(f"expected results of one shape to compare, got {reference.shape} and {result.shape}")
    return reference.astype(np.float64).reshape(-1), result.astype(np.float64).reshape(-1)


def top1(scores: Array, labels: Array) -> float:
    """Share of rows whose largest score (the first of equal ones) along the last axis is at the label."""
    chosen = scores.argmax(axis=-1).reshape(-1)
    wanted = np.asarray(labels).reshape(-1)
    if chosen.shape != wanted.shape:
        raise QuantizeError(f"expected one label for each of {chosen.size} rows of scores, got {wanted.size}")
    return float((chosen == wanted).mean()) if wanted.size else 0.0


def auc(scores: Array, labels: Array) -> float:
    """Area under the ROC curve: how often a row labelled true (non-zero) scores above one labelled false; ties count
    half. Needs rows of both kinds."""
    values, truth = np.asarray(scores, np.float64).reshape(-1), np.asarray(labels).reshape(-1) != 0
    positive, negative = int(truth.sum()), int((~truth).sum())
    if values.shape != truth.shape or not positive or not negative:
        raise QuantizeError(
            f"expected one score for each label and labels of both kinds, got {values.size} scores, {positive} true "
            f"and {negative} false labels"
        )
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where]
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


_Score = Callable[[Outputs, Outputs, "Array | None"], float]
"""(outputs, the float model's outputs, labels) -> a number"""


@dataclass(frozen=True)
class Metric:
    """A number for a model's outputs; `higher`: whether higher is better. `share`: it is between 0 and 1, so that a
    budget in percent means percentage points."""

    name: str
    score: _Score
    higher: bool = True
    share: bool = True
    labels: bool = False
    """Whether it needs labels."""

    def drop(self, base: float, value: float) -> float:
        """How much worse `value` is than `base`; negative where it is better."""
        return base - value if self.higher else value - base


def _first(outputs: Outputs) -> Array:
    return next(iter(outputs.values()))


def _agreement(outputs: Outputs, reference: Outputs, _: Array | None) -> float:
    return top1(_first(outputs), _first(reference).argmax(axis=-1))


def _worst_error(outputs: Outputs, reference: Outputs, _: Array | None) -> float:
    return max(relative_error(reference[name], outputs[name]) for name in reference)


def _top1(outputs: Outputs, _: Outputs, labels: Array | None) -> float:
    return top1(_first(outputs), _given(labels))


def _auc(outputs: Outputs, _: Outputs, labels: Array | None) -> float:
    scores = _first(outputs)
    return auc(scores.reshape(len(scores), -1)[:, -1], _given(labels))


def _rmse(outputs: Outputs, _: Outputs, labels: Array | None) -> float:
    results, wanted = _first(outputs), _given(labels)
    if results.size != wanted.size:
        raise QuantizeError(f"expected as many labels as results, got {wanted.size} and {results.size}")
    return math.sqrt(mse(wanted, results.reshape(wanted.shape)))


def _given(labels: Array | None) -> Array:
    assert labels is not None, "Evaluator asks for labels first"
    return np.asarray(labels)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("agreement", _agreement),
        Metric("error", _worst_error, higher=False),
        Metric("top1", _top1, labels=True),
        Metric("auc", _auc, labels=True),
        Metric("rmse", _rmse, higher=False, share=False, labels=True),
    )
}
"""agreement: share of rows with the float model's top class. error: relative error of the worst output against the
float model. top1, auc, rmse: the first output against labels."""


def load(name: str) -> Metric:
    """A metric of `METRICS`, or the user's function `module:function`, imported from the working directory or the
    installation. It gets the outputs by name (rows along a new leading axis) and the labels (or None), and returns a
    number, larger for better; a function attribute `lower_is_better = True` reverses this.
    """
    if name in METRICS:
        return METRICS[name]
    module, _, function = name.partition(":")
    if not module or not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise QuantizeError(f"metric: expected one of {', '.join(METRICS)} or 'module:function', got {name!r}")
    with _importable(os.getcwd()):
        try:
            found: Any = importlib.import_module(module)
        except ImportError as error:
            raise QuantizeError(
                f"metric {name!r}: module {module!r} cannot be imported ({error}); run where it can be found, or set "
                "PYTHONPATH"
            ) from error
    for part in function.split("."):
        if not hasattr(found, part):
            raise QuantizeError(f"metric {name!r}: {getattr(found, '__name__', module)!r} has no {part!r}")
        found = getattr(found, part)
    if not callable(found):
        raise QuantizeError(f"metric {name!r}: expected a function, got {type(found).__name__}")
    return _users(name, found)


@contextmanager
def _importable(folder: str) -> Any:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _users(name: str, function: Callable[..., Any]) -> Metric:
    def score(outputs: Outputs, reference: Outputs, labels: Array | None) -> float:
        value = function(outputs, labels)
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise QuantizeError(f"metric {name!r}: expected a number, got {type(value).__name__}") from error
        if not math.isfinite(number):
            raise QuantizeError(f"metric {name!r}: expected a finite number, got {number}")
        return number

    return Metric(name, score, higher=not getattr(function, "lower_is_better", False), share=False)


class Evaluator:
    """Scores models with the same inputs and outputs on fixed rows.

    `reference` is the float model, with which agreement and error compare. `labels`: one for each row, in order.
    Raises QuantizeError for an empty set of rows, and for missing labels or a wrong number of them.
    """

    def __init__(
        self,
        reference: ir.Model,
        rows: Sequence[Row],
        metric: Metric,
        labels: Array | None = None,
        *,
        threads: int = 0,
    ) -> None:
        if not rows:
            raise QuantizeError(f"metric {metric.name!r}: expected rows to evaluate on, got none")
        if metric.labels and labels is None:
            raise QuantizeError(f"metric {metric.name!r} needs labels: give one for each row of the evaluation data")
        if labels is not None and len(labels) != len(rows):
            raise QuantizeError(f"expected one label per row, got {len(labels)} labels for {len(rows)} rows")
        self.metric, self.labels, self._rows, self._threads = metric, labels, tuple(rows), threads
        self.reference = self.outputs(reference)
        self.base = self.score(self.reference)
        """The float model's own score."""

    def outputs(self, model: ir.Model) -> dict[str, Array]:
        """Every output on every row: arrays [rows, ...]. Raises QuantizeError if rows differ in shape."""
        runner = Runner(model, (), threads=self._threads)
        names = [v.name or "" for v in model.graph.outputs]
        results = [runner.run(row) for row in self._rows]
        try:
            return {name: np.stack([result[name] for result in results]) for name in names}
        except ValueError as error:
            raise QuantizeError(f"rows of the evaluation data give outputs of different shapes: {error}") from error

    def score(self, outputs: Outputs) -> float:
        """The metric of these outputs."""
        return self.metric.score(outputs, self.reference, self.labels)

    def __call__(self, model: ir.Model) -> float:
        """The metric of a model."""
        return self.score(self.outputs(model))
