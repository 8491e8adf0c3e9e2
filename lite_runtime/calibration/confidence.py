"""How sure a model is of a run's outputs, by the calibration in its bundle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lite_runtime.calibration.description import Calibration, Mahalanobis
from lite_runtime.calibration.scores import energy, from_probabilities, log_softmax, mahalanobis
from lite_runtime.errors import InputError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["Confidence", "confidence"]


class Confidence(NamedTuple):
    """Of n rows: what a model's outputs say of themselves.

    probabilities: (n, classes) float64, calibrated; the class with the greatest is that of the outputs. energy,
    distance: (n,) float64, the scores of `scores.energy` and `scores.mahalanobis`; None if the bundle has no threshold
    for it. out_of_distribution: (n,) bool, whether one of them is above its threshold or is not a number; None if the
    bundle has no thresholds.
    """

    probabilities: Array
    energy: Array | None
    distance: Array | None
    out_of_distribution: Array | None


def confidence(calibration: Calibration, outputs: Mapping[str, Array]) -> Confidence:
    """The confidence in outputs of the calibration's signature. Raises InputError if an output that it needs is missing
    or has another shape than (n, classes) or (classes,)."""
    logits = _rows(outputs, calibration.output)
    if logits.shape[1] < 2:
        raise InputError(f"output {calibration.output!r}: expected at least 2 classes, got {logits.shape[1]}")
    if calibration.kind == "probabilities":
        logits = from_probabilities(logits)
    found = energy(logits) if calibration.energy is not None else None
    away = _distance(calibration.mahalanobis, outputs) if calibration.mahalanobis is not None else None
    outside: Array | None = None
    for score, above in (
        (found, calibration.energy),
        (away, calibration.mahalanobis.above if calibration.mahalanobis is not None else None),
    ):
        if score is not None and above is not None:
            own = ~(score <= above.threshold)  # so that NaN is outside
            outside = own if outside is None else outside | own
    return Confidence(np.exp(log_softmax(logits, calibration.temperature)), found, away, outside)


def _distance(given: Mahalanobis, outputs: Mapping[str, Array]) -> Array:
    features = _rows(outputs, given.output)
    size = given.means.shape[1]
    if features.shape[1] != size:
        raise InputError(f"output {given.output!r}: expected {size} features, got {features.shape[1]}")
    return mahalanobis(features, given.means, given.whitener)


def _rows(outputs: Mapping[str, Array], name: str) -> Array:
    """An output as (n, size) float64; one without rows is one row."""
    if name not in outputs:
        raise InputError(
            f"expected the output {name!r}, got {', '.join(outputs) or 'none'}; pass all outputs of the run"
        )
    array = np.asarray(outputs[name])
    if array.ndim not in (1, 2):
        raise InputError(f"output {name!r}: expected shape (n, classes) or (classes,), got {array.shape}")
    return array.astype(np.float64).reshape(-1, array.shape[-1])
