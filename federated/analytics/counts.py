"""Histograms, and sums for means: questions about a feature of numbers within a range."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from federated.analytics.base import READ, Feature
from federated.learner import Batch
from federated.tables import Number
from federated.tree import Array

__all__ = ["Counts", "Moments", "Ranged"]


class Ranged(Feature, frozen=True):
    """Values outside [low, high] count as its nearest end."""

    low: Number = 0.0
    high: Number = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        READ.need(self.low < self.high, "analytics.high", f"a number above low = {self.low:g}", self.high)


class Counts(Ranged, frozen=True):
    """The weight in each of `bins` bins of equal width.

    dyadic: of all levels of a binary tree over the bins, the root first (Hay et al., "Boosting the Accuracy of
    Differentially Private Histograms Through Consistency", VLDB 2010): sums of many bins need few noisy numbers then.
    The bins must be a power of two.
    """

    bins: Annotated[int, Meta(ge=2, le=1 << 16)] = 64
    dyadic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        READ.need(
            not self.dyadic or self.bins & (self.bins - 1) == 0, "analytics.bins", "a power of two", self.bins
        )

    @property
    def levels(self) -> int:
        """How many histograms of different widths a contribution holds."""
        return self.bins.bit_length() if self.dyadic else 1

    @property
    def size(self) -> int:
        """All nodes of the tree, or all bins."""
        return 2 * self.bins - 1 if self.dyadic else self.bins

    @property
    def bound(self) -> float:
        """The norm of a histogram is at most its sum."""
        return self.whole * sqrt(self.levels) if self.limited else float("inf")

    @property
    def largest(self) -> float:
        """All weight in one bin."""
        return self.whole

    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """The histogram, or the histograms of all levels one after another."""
        values, weights = self.numbers(data, rng)
        at = np.floor((values.clip(self.low, self.high) - self.low) / (self.high - self.low) * self.bins)
        leaves = np.bincount(at.astype(np.int64).clip(0, self.bins - 1), weights, self.bins)
        if not self.dyadic:
            return leaves
        return np.concatenate([leaves.reshape(1 << level, -1).sum(1) for level in range(self.levels)])


class Moments(Ranged, frozen=True):
    """Sums of the values and of their squares, scaled to [-1, 1], and of the weights."""

    signed: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """Three sums."""
        return 3

    @property
    def bound(self) -> float:
        """Each sum is at most the weight."""
        return self.whole * sqrt(3) if self.limited else float("inf")

    @property
    def largest(self) -> float:
        """The weight."""
        return self.whole

    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """[sum of t, sum of t^2, weight]."""
        values, weights = self.numbers(data, rng)
        half = (self.high - self.low) / 2
        scaled = (values.clip(self.low, self.high) - self.low) / half - 1
        return np.array([weights @ scaled, weights @ scaled**2, weights.sum()]).clip(-self.whole, self.whole)
