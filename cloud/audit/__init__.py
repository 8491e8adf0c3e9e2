"""What a deployed model is like before it ships: measured, and written to its bundle."""

from __future__ import annotations

from cloud.audit.calibration import (
    Bin,
    Measured,
    Separation,
    fit_calibration,
    fit_mahalanobis,
    fit_temperature,
    measure_calibration,
    measure_groups,
    separation,
    threshold,
    worst_decile,
)

__all__ = [
    "Bin",
    "Measured",
    "Separation",
    "fit_calibration",
    "fit_mahalanobis",
    "fit_temperature",
    "measure_calibration",
    "measure_groups",
    "separation",
    "threshold",
    "worst_decile",
]
