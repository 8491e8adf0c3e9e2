"""Calibrated confidence and out-of-distribution scores of a classifier: what a bundle holds for them, and their values.

`description` is the bundle's section, `scores` the arithmetic, `confidence` both applied to a run's outputs. What fits
them is `cloud.audit.calibration`.
"""

from __future__ import annotations

from lite_runtime.calibration.confidence import Confidence, confidence
from lite_runtime.calibration.description import Calibration, Mahalanobis, Threshold, with_calibration

__all__ = ["Calibration", "Confidence", "Mahalanobis", "Threshold", "confidence", "with_calibration"]
