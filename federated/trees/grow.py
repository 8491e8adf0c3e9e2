"""A round of boosting: one tree per target, level by level, from sums of histograms.

Chen & Guestrin, "XGBoost: A Scalable Tree Boosting System", KDD 2016: equations 5 to 7 for leaves and gains, algorithm
3 for the direction of missing values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from federated.tree import Array
from federated.trees.ensemble import Tree

__all__ = ["Growth", "Split", "best_split", "grow", "histograms"]

LEAST_GAIN = 1e-6
"""Smaller gains are rounding, as in XGBoost."""


@dataclass(frozen=True)
class Growth:
    """How trees grow; the names are XGBoost's."""

    max_depth: int = 6
    learning_rate: float = 0.3
    reg_lambda: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0

    def leaf(self, slope: float, curve: float) -> float:
        """The value of a leaf with these sums (equation 5, times the learning rate); 0 if noise left no curvature."""
        whole = curve + self.reg_lambda
        return -self.learning_rate * slope / whole if whole > 0 and curve >= 0 else 0.0


class Split(NamedTuple):
    """`column` and `edge`: which of the columns asked for, and which of its edges. `left`, `right`: sums of gradients
    and second derivatives."""

    gain: float
    column: int
    edge: int
    missing_left: bool
    left: tuple[float, float]
    right: tuple[float, float]


def best_split(sums: Array, growth: Growth) -> Split | None:
    """The split with the largest gain of a node with these histograms [columns, bins + 1, 2], the last bin missing
    values; None if none is allowed. Of equal gains the first column and the smallest edge win, missing values right."""
    whole = sums[0].sum(axis=0)  # of every column the same, but for noise
    below = np.cumsum(sums[:, :-1], axis=1)[:, :-1]  # [columns, bins - 1, 2]
    left = np.stack([below, below + sums[:, -1:]], axis=2)  # [columns, bins - 1, direction, 2]
    right = sums.sum(axis=1)[:, None, None] - left
    least = max(growth.min_child_weight, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = sum(side[..., 0] ** 2 / (side[..., 1] + growth.reg_lambda) for side in (left, right))
        gains = gains - whole[0] ** 2 / (whole[1] + growth.reg_lambda)
    allowed = (left[..., 1] >= least) & (right[..., 1] >= least) & (left[..., 1] > 0) & (right[..., 1] > 0)
    gains = np.where(allowed & np.isfinite(gains), gains, -np.inf)
    at = int(gains.argmax())
    column, edge, direction = (int(one) for one in np.unravel_index(at, gains.shape))
    gain = float(gains[column, edge, direction])
    if not gain > max(LEAST_GAIN, growth.gamma):
        return None
    sides = (tuple(float(one) for one in side[column, edge, direction]) for side in (left, right))
    lower, upper = sides
    return Split(gain, column, edge, bool(direction), (lower[0], lower[1]), (upper[0], upper[1]))


def histograms(
    place: Array, size: int, leaves: Array, nodes: Sequence[tuple[int, int]], targets: Array, slopes: Array,
    curves: Array,
) -> Array:  # fmt: skip
    """Sums of gradients and second derivatives at `nodes`, pairs of a growing tree and its leaf: [nodes, columns, size,
    2], where size is the bins of a column.

    place: (n, columns), each value's place among the bins of all columns; leaves: (n, trees), where each tree has the
    row; targets: (trees,); slopes, curves: (n, targets).
    """
    columns = place.shape[1]
    made = np.zeros((len(nodes), columns * size, 2))
    for at, (tree, node) in enumerate(nodes):
        rows, target = np.flatnonzero(leaves[:, tree] == node), targets[tree]
        for which, values in enumerate((slopes, curves)):
            weights = np.repeat(values[rows, target], columns)
            made[at, :, which] = np.bincount(place[rows].reshape(-1), weights, made.shape[1])
    return made.reshape(len(nodes), columns, size, 2)


def grow(
    targets: int,
    edges: Array,
    columns: Array,
    growth: Growth,
    ask: Callable[[list[Tree], list[tuple[int, int]]], Array],
) -> list[Tree]:
    """The trees of a round. `ask(trees, nodes)` returns the sums [nodes, columns, bins + 1, 2] at leaves (tree, leaf).
    `edges`: float32 [width, bins - 1]; `columns`: those that may be split."""
    trees = [Tree(target) for target in range(targets)]
    open_ = [(number, 0) for number in range(targets)]
    for depth in range(growth.max_depth):
        if not open_:
            break
        found = ask(trees, open_)
        next_: list[tuple[int, int]] = []
        for (number, node), sums in zip(open_, found, strict=True):
            tree = trees[number]
            if depth == 0:
                slope, curve = sums[0].sum(axis=0)
                tree.value[0], tree.weight[0] = growth.leaf(slope, curve), float(curve)
            split = best_split(sums, growth)
            if split is None:
                continue
            column = int(columns[split.column])
            children = tree.split(node, column, float(edges[column, split.edge]), split.missing_left, split.gain)
            for child, (slope, curve) in zip(children, (split.left, split.right), strict=True):
                tree.value[child], tree.weight[child] = growth.leaf(slope, curve), curve
                next_.append((number, child))
        open_ = next_
    return trees
