"""Rules that use the distances between devices' updates."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from federated.errors import FederatedError
from federated.robust.aggregators import Aggregator
from federated.tree import Array

__all__ = ["Bulyan", "GeometricMedian", "Krum", "MultiKrum"]


def _liars(share: float, devices: int) -> int:
    """How many of the devices may be malicious, rounded up: of 24, a share of 0.2 is 5. If there is one more than a
    rule expects, MultiKrum averages it in. 0.2 of 10 is 2, whatever the rounding error of 0.2."""
    return ceil(share * devices - 1e-9)


@dataclass(frozen=True)
class _Scoring(Aggregator):
    """`share`: of devices that may be malicious."""

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise FederatedError(f"{self.name}: expected a share in [0, 0.5), got {self.share}")


@dataclass(frozen=True)
class Krum(_Scoring):
    """The update closest to its n - f - 2 nearest: Blanchard et al., "Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent", NeurIPS 2017."""

    name = "krum"
    tolerates = "f of n devices, n >= 2 f + 3"

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """One row; all others are excluded."""
        return _best(self, rows, _liars(self.share, len(rows)), 1)


@dataclass(frozen=True)
class MultiKrum(_Scoring):
    """The mean of the n - f updates that Krum scores best."""

    name = "multi_krum"
    tolerates = "f of n devices, n >= 2 f + 3"

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """Devices have equal weights."""
        liars = _liars(self.share, len(rows))
        return _best(self, rows, liars, len(rows) - liars)


@dataclass(frozen=True)
class Bulyan(_Scoring):
    """Krum is repeated until n - 2 f are chosen; then the mean of each element's n - 4 f values closest to its
    median: El Mhamdi et al., "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018."""

    name = "bulyan"
    tolerates = "f of n devices, n >= 4 f + 3"

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """Devices have equal weights."""
        devices, liars = len(rows), _liars(self.share, len(rows))
        self.need(devices, 4 * liars + 3, f"{liars} that may be malicious")
        squares, left = _squares(rows), list(range(devices))
        chosen = []
        for _ in range(devices - 2 * liars):
            chosen.append(left.pop(_ranked(squares[np.ix_(left, left)], liars)[0]))
        picked = np.sort(rows[sorted(chosen)], axis=0)
        return _closest_mean(picked, len(picked) - 2 * liars), tuple(left)


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point with the smallest weighted sum of distances, by at most `steps` of Weiszfeld's iteration; smaller
    distances are set to `smoothing`: Pillutla et al., "Robust Aggregation for Federated Learning", IEEE TSP 2022
    (RFA)."""

    name = "geometric_median"
    tolerates = "devices with less than half of the weight"
    steps: int = 100
    smoothing: float = 1e-6

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.smoothing > 0:
            raise FederatedError(f"{self.name}: expected steps >= 1, smoothing > 0, got {self.steps}, {self.smoothing}")

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """Stops when the point no longer changes."""
        shares = weights / weights.sum()
        # Distances are taken between rows: the point is always a mean of them, so its coefficients are enough.
        gram = _gram(rows)
        for _ in range(self.steps):
            distances = np.sqrt(np.maximum(np.diag(gram) - 2 * gram @ shares + shares @ gram @ shares, 0))
            pulls = weights / np.maximum(distances, self.smoothing)
            pulls /= pulls.sum()
            # Relative: the share of a distant device is tiny, but its product with that distance is not.
            resting = np.allclose(pulls, shares, rtol=1e-6, atol=0)
            shares = pulls
            if resting:
                break
        return shares @ rows, ()


def _gram(rows: Array) -> Array:
    """Inner products of rows minus their median, float64. With their mean instead, which one device can change
    arbitrarily, small distances would be lost in rounding."""
    centred = rows - np.median(rows, axis=0).astype(np.float64)
    return centred @ centred.T


def _squares(rows: Array) -> Array:
    """Squared distances between rows [n, n]."""
    gram = _gram(rows)
    norms = np.diag(gram)
    return np.maximum(norms[:, None] + norms - 2 * gram, 0)


def _ranked(squares: Array, liars: int) -> list[int]:
    """Rows by the sum of squared distances to their n - f - 2 nearest others (at least one), smallest first. Two rows
    whose only counted neighbour is each other have equal sums: then by the sum to all rows."""
    count = min(max(1, len(squares) - liars - 2), len(squares) - 1)
    # A row's distance to itself, 0, is always among the smallest.
    nearest = np.partition(squares, count, axis=1)[:, : count + 1].sum(axis=1)
    return [int(at) for at in np.lexsort((squares.sum(axis=1), nearest))]


def _best(rule: Aggregator, rows: Array, liars: int, count: int) -> tuple[Array, tuple[int, ...]]:
    """The mean of the `count` rows with the lowest scores, and the positions of the others."""
    rule.need(len(rows), 2 * liars + 3, f"{liars} that may be malicious")
    order = _ranked(_squares(rows), liars)
    return rows[sorted(order[:count])].mean(axis=0, dtype=np.float64), tuple(sorted(order[count:]))


def _closest_mean(ordered: Array, count: int) -> Array:
    """For each column of sorted rows, the mean of the `count` values closest to its median: they are adjacent."""
    middle = np.median(ordered, axis=0)
    starts = range(len(ordered) - count + 1)
    reach = np.stack([np.maximum(middle - ordered[at], ordered[at + count - 1] - middle) for at in starts])
    sums = np.concatenate([np.zeros((1, ordered.shape[1])), np.cumsum(ordered, axis=0, dtype=np.float64)])
    first = reach.argmin(axis=0)
    columns = np.arange(ordered.shape[1])
    return (sums[first + count, columns] - sums[first, columns]) / count
