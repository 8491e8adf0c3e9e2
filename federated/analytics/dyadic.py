"""Least squares over a binary tree of noisy counts, and quantiles from it with their error.

Hay, Rastogi, Miklau, Suciu, "Boosting the Accuracy of Differentially Private Histograms Through Consistency", VLDB
2010, section 4: every node of the tree has independent noise of one variance, and of all counts in which parents are
the sums of their children, the nearest ones are found in two passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from federated.tree import Array

__all__ = ["Quantile", "consistent", "contrast_deviation", "quantile"]

ROUNDING = 1e-6
"""How far shares may be off because contributions are rounded to a grid."""
SPREAD = 2.0
"""Intervals are this many standard deviations wide in each direction: 95 %."""


class Quantile(NamedTuple):
    """A quantile: its value; an interval that holds it with 95 % (noise and the width of bins, not which devices were
    asked); the standard deviation of its rank, as a share of the whole weight."""

    at: float
    value: float
    low: float
    high: float
    rank_deviation: float


def consistent(tree: Array) -> Array:
    """The leaves (float64 [bins]) of the consistent tree that is nearest to `tree` [2 bins - 1], the root first."""
    levels, at = [], 0
    while at < len(tree):
        levels.append(tree[at : 2 * at + 1])
        at = 2 * at + 1
    best = [levels[-1]]
    for height, nodes in enumerate(reversed(levels[:-1]), 2):  # theorem 3 for a branching of 2
        children = best[-1].reshape(-1, 2).sum(1)
        whole = 2.0**height
        best.append(((whole - whole / 2) * nodes + (whole / 2 - 1) * children) / (whole - 1))
    best.reverse()
    found = best[0]
    for nodes in best[1:]:
        gap = found - nodes.reshape(-1, 2).sum(1)
        found = nodes + np.repeat(gap / 2, 2)
    return found


def contrast_deviation(contrast: Array, dyadic: bool, deviation: float) -> float:
    """The standard deviation of `contrast @ leaves` if each number sent has this deviation.

    Of least squares it is deviation^2 c' (A'A)^-1 c, where A maps leaves to the tree's nodes; `consistent` of a tree
    with c in its leaves and 0 above them is (A'A)^-1 A' (0, c) = (A'A)^-1 c.
    """
    solved = consistent(np.concatenate([np.zeros(len(contrast) - 1), contrast])) if dyadic else contrast
    return deviation * float(np.sqrt(max(0.0, contrast @ solved)))


def quantile(leaves: Array, low: float, high: float, at: float, dyadic: bool, deviation: float) -> Quantile:
    """The value below which the share `at` of the weight lies, linear within a bin. `deviation`: of the noise on each
    number that was summed. The leaves must have a positive sum."""
    edges = np.linspace(low, high, len(leaves) + 1)
    below = np.maximum.accumulate(np.concatenate([[0.0], np.cumsum(leaves)]))
    whole = float(leaves.sum())
    shares = below / max(whole, below[-1])

    def value(share: float) -> tuple[int, float]:
        """The bin in which the share is reached, and the place in it."""
        bin_ = int(np.searchsorted(shares[1:], max(share, ROUNDING) - 1e-12).clip(0, len(leaves) - 1))
        inside = shares[bin_ + 1] - shares[bin_]
        part = (share - shares[bin_]) / inside if inside > 0 else 0.5
        return bin_, float(edges[bin_] + min(max(part, 0.0), 1.0) * (edges[bin_ + 1] - edges[bin_]))

    bin_, found = value(at)
    contrast = (np.arange(len(leaves)) <= bin_) - at
    spread = contrast_deviation(contrast.astype(np.float64), dyadic, deviation) / whole
    margin = SPREAD * spread + ROUNDING
    least, most = value(max(0.0, at - margin))[0], value(min(1.0, at + margin))[0]
    return Quantile(at, found, float(edges[least]), float(edges[most + 1]), spread)
