"""Rules that work on one element at a time: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from federated.errors import FederatedError
from federated.robust.aggregators import Aggregator
from federated.tree import Array

__all__ = ["Median", "TrimmedMean"]


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each element."""

    name = "median"
    tolerates = "fewer than half of the devices"

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """For an even number, the mean of the middle two."""
        return np.median(rows, axis=0), ()


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The mean of each element without its `share` of largest and `share` of smallest values, rounded up."""

    name = "trimmed_mean"
    tolerates = "`share` of the devices"
    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise FederatedError(f"trimmed_mean: expected a share in [0, 0.5), got {self.share}")

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """Devices have equal weights."""
        devices = len(rows)
        cut = ceil(self.share * devices - 1e-9)
        self.need(devices, 2 * cut + 1, f"share {self.share}")
        ordered = np.partition(rows, (cut, devices - cut - 1), axis=0)
        return ordered[cut : devices - cut].mean(axis=0, dtype=np.float64), ()
