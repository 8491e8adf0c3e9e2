"""Weights of examples travel with the labels: a dict with `WEIGHT` beside the labels, or beside their dict's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cloud.errors import TrainError

__all__ = ["WEIGHT", "plain", "weights_of", "with_weights"]

WEIGHT = "sample_weight"
"""The key of weights in a batch of a pipeline, and in labels."""

_LABELS = "labels"


def with_weights(labels: Any, weights: Any) -> Any:
    """Labels, an array or a dict of some, with the examples' `weights` [batch]. Raises TrainError for weights that are
    not finite numbers of at least 0, one per example."""
    found = np.asarray(weights)
    if found.dtype.kind not in "fiub" or found.ndim != 1:
        raise TrainError(f"{WEIGHT}: expected one number per example, got {found.dtype}{list(found.shape)}")
    if not (np.isfinite(found) & (found >= 0)).all():
        wrong = int(np.flatnonzero(~(np.isfinite(found) & (found >= 0)))[0])
        raise TrainError(f"{WEIGHT}: expected finite numbers of at least 0, got {found[wrong]} in row {wrong}")
    return {**(labels if isinstance(labels, Mapping) else {_LABELS: labels}), WEIGHT: found.astype(np.float32)}


def plain(labels: Any) -> Any:
    """Labels without weights."""
    if weights_of(labels) is None:
        return labels
    rest = {name: array for name, array in labels.items() if name != WEIGHT}
    return rest[_LABELS] if rest.keys() == {_LABELS} else rest


def weights_of(labels: Any) -> Any:
    """The weights [batch] among labels, or None."""
    return labels.get(WEIGHT) if isinstance(labels, Mapping) else None
