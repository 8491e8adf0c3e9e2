"""The interface of aggregation rules, and the simple ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from federated.codec.spec import Spec
from federated.errors import FederatedError
from federated.exact import ExactSum
from federated.tree import Array, Tree

__all__ = ["Aggregate", "Aggregator", "Mean", "NormBound", "mean_of", "weighted_sum"]


class Aggregate(NamedTuple):
    """The aggregate of devices' trees, and which of them (by position) were excluded."""

    tree: Tree
    left_out: tuple[int, ...]


class Aggregator(ABC):
    """Frozen dataclasses; fields are parameters. The order of devices affects results only by rounding, and not at all
    the results of rules that add."""

    name: ClassVar[str]
    tolerates: ClassVar[str]
    """How many devices may be malicious, in words."""
    one_by_one: ClassVar[bool] = False
    """Whether `combine` reads every row once, in order: then there is never a second copy of all updates."""

    @property
    def adds(self) -> bool:
        """Whether it is the mean of updates that are each changed by themselves, if at all (`factor`): then sums over
        some devices add up to the sum over all."""
        return False

    def factor(self, row: Array) -> float:
        """What a rule that adds multiplies an update (float32 [size]) by."""
        return 1.0

    def __call__(self, trees: Sequence[Tree], weights: Sequence[float]) -> Aggregate:
        """The aggregate of the trees. Rules that count devices give all the same weight and ignore `weights`: a weight
        is claimed by the device, and a malicious one claims a lot.

        Raises FederatedError if trees differ in names or shapes, contain NaN, or are too few for the rule.
        """
        shares = _checked(trees, weights)
        spec = Spec.of(trees[0])
        rows = map(spec.flatten, trees)
        vector, left_out = self.combine(rows if self.one_by_one else np.stack(list(rows)), shares)
        return Aggregate(spec.unflatten(vector.astype(np.float32)), left_out)

    def summed(self, trees: Sequence[Tree], weights: Sequence[float]) -> ExactSum:
        """For rules that add: the sum [size + 1] of the trees times their weights, and of the weights, last. Raises
        FederatedError as a call does."""
        shares = _checked(trees, weights)
        return weighted_sum(map(Spec.of(trees[0]).flatten, trees), shares, self.factor)

    @abstractmethod
    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """The aggregate of float32 rows [devices, size], an iterator over them if `one_by_one`, and which rows were
        excluded."""

    def need(self, devices: int, least: int, why: str) -> None:
        """Raises FederatedError if there are fewer devices than the rule needs."""
        if devices < least:
            raise FederatedError(f"{self.name}: expected at least {least} devices for {why}, got {devices}")


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean: one device can change it arbitrarily."""

    name = "mean"
    tolerates = "no device"
    one_by_one = True

    @property
    def adds(self) -> bool:
        """It does."""
        return True

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """Exact until the division."""
        return mean_of(weighted_sum(rows, weights)), ()


@dataclass(frozen=True)
class NormBound(Aggregator):
    """The weighted mean of trees scaled down to norm `bound`; 0: to the median of this round's norms.

    Sun et al., "Can You Really Backdoor Federated Learning?", 2019.
    """

    name = "norm_bound"
    tolerates = "a share of devices that moves the mean by no more than that share of the bound"
    bound: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.bound < float("inf"):
            raise FederatedError(f"norm_bound: expected a finite bound from 0, got {self.bound}")

    @property
    def adds(self) -> bool:
        """It does with a bound of its own; the median of the norms is known only to who has all of them."""
        return self.bound > 0

    def factor(self, row: Array) -> float:
        """Below 1 for longer updates."""
        return _shortened(row, self.bound)

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """No row is excluded."""
        bound = self.bound or float(np.median([_norm(row) for row in rows]))
        return mean_of(weighted_sum(rows, weights, lambda row: _shortened(row, bound))), ()


def weighted_sum(rows: Iterable[Array], weights: Array, factor: Callable[[Array], float] = lambda row: 1.0) -> ExactSum:
    """The sum [size + 1] of weight * factor(row) * row, and of the weights, last."""
    total, term = None, np.empty(0)
    for row, weight in zip(rows, weights.tolist(), strict=True):
        if total is None:
            total, term = ExactSum(len(row) + 1), np.empty(len(row) + 1)
        np.multiply(row, weight * factor(row), out=term[:-1], dtype=np.float64)
        term[-1] = weight
        total.add(term)
    return total or ExactSum(0)


def mean_of(total: ExactSum) -> Array:
    """The mean (float64 [size]) of a sum [size + 1] whose last element is that of the weights; 0 if that is 0."""
    vector = total.value()
    return vector[:-1] / (vector[-1] or 1.0)


def _norm(row: Array) -> float:
    return float(np.linalg.norm(row.astype(np.float64)))


def _shortened(row: Array, bound: float) -> float:
    norm = _norm(row)
    return bound / norm if norm > bound else 1.0


def _checked(trees: Sequence[Tree], weights: Sequence[float]) -> Array:
    """The weights as float64 [devices]. Raises FederatedError."""
    if not trees or len(trees) != len(weights):
        raise FederatedError(f"aggregation: expected as many weights as trees, got {len(weights)}, {len(trees)}")
    shares = np.array(weights, np.float64)
    if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
        raise FederatedError("aggregation: expected finite weights from 0, some above 0")
    return shares
