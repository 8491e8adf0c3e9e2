"""The interface of aggregation rules, and the simple ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from federated.codec.spec import Spec
from federated.errors import FederatedError
from federated.tree import Array, Tree

__all__ = ["Aggregate", "Aggregator", "Mean", "NormBound", "weighted_sum"]


class Aggregate(NamedTuple):
    """The aggregate of devices' trees, and which of them (by position) were excluded."""

    tree: Tree
    left_out: tuple[int, ...]


class Aggregator(ABC):
    """Frozen dataclasses; fields are parameters. The order of devices affects results only by rounding."""

    name: ClassVar[str]
    tolerates: ClassVar[str]
    """How many devices may be malicious, in words."""
    one_by_one: ClassVar[bool] = False
    """Whether `combine` reads every row once, in order: then there is never a second copy of all updates."""

    def __call__(self, trees: Sequence[Tree], weights: Sequence[float]) -> Aggregate:
        """The aggregate of the trees. Rules that count devices give all the same weight and ignore `weights`: a weight
        is claimed by the device, and a malicious one claims a lot.

        Raises FederatedError if trees differ in names or shapes, contain NaN, or are too few for the rule.
        """
        if not trees or len(trees) != len(weights):
            raise FederatedError(f"aggregation: expected as many weights as trees, got {len(weights)}, {len(trees)}")
        shares = np.array(weights, np.float64)
        if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
            raise FederatedError("aggregation: expected finite weights from 0, some above 0")
        spec = Spec.of(trees[0])
        rows = map(spec.flatten, trees)
        vector, left_out = self.combine(rows if self.one_by_one else np.stack(list(rows)), shares)
        return Aggregate(spec.unflatten(vector.astype(np.float32)), left_out)

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

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """In float64."""
        return weighted_sum(rows, weights / weights.sum()), ()


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

    def combine(self, rows: Array, weights: Array) -> tuple[Array, tuple[int, ...]]:
        """No row is excluded."""
        norms = np.array([np.linalg.norm(row.astype(np.float64)) for row in rows])
        bound = self.bound or float(np.median(norms))
        factors = np.divide(bound, norms, where=norms > bound, out=np.ones_like(norms))
        return weighted_sum(rows, factors * weights / weights.sum()), ()


def weighted_sum(rows: Iterable[Array], weights: Array) -> Array:
    """In float64, in order, row by row: a matrix product with all rows as float64 takes 1.6 times as long."""
    total: Array = 0.0
    for weight, row in zip(weights, rows, strict=True):
        total = total + np.multiply(row, weight, dtype=np.float64)
    return total
