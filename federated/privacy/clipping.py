"""Clipping: bounds on how much one device can change a sum.

Uses only arithmetic, so that it also runs under `jax.vmap` in the simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import Any, NamedTuple

from federated import tree
from federated.errors import FederatedError
from federated.tree import Tree

__all__ = ["AdaptiveBound", "Clip", "Clipped", "FlatClip", "LayerClip"]

_TINY = 1e-30
"""Avoids 0 / 0; far below any relevant norm."""


class Clipped(NamedTuple):
    """A tree of bounded norm; the norm it had; 1.0 if it was already within the bound, else 0.0."""

    tree: Tree
    norm: Any
    within: Any


class Clip(ABC):
    """Scales trees down to a Euclidean norm of at most `bound`."""

    bound: float

    @abstractmethod
    def __call__(self, update: Tree) -> Clipped:
        """The tree if it is within the bound, otherwise a smaller one of the same direction (of each array, by layer).

        A NaN stays NaN: the receiver refuses the tree.
        """


def _check(bound: float) -> None:
    if not 0 < bound < float("inf"):
        raise FederatedError(f"clipping: expected a finite bound above 0, got {bound}")


@dataclass(frozen=True)
class FlatClip(Clip):
    """One norm over all arrays (McMahan et al. 2018, "flat clipping")."""

    bound: float

    def __post_init__(self) -> None:
        _check(self.bound)

    def __call__(self, update: Tree) -> Clipped:
        """Scaled as a whole."""
        norm = tree.dot(update, update) ** 0.5
        ratio = norm / self.bound
        return Clipped(tree.scale(update, 1 / ratio.clip(1.0)), norm, (ratio <= 1.0) * 1.0)


@dataclass(frozen=True)
class LayerClip(Clip):
    """Each of n arrays to bound / √n (McMahan et al. 2018, "per-layer clipping"), so that the whole tree stays within
    the bound."""

    bound: float

    def __post_init__(self) -> None:
        _check(self.bound)

    def __call__(self, update: Tree) -> Clipped:
        """Scaled array by array; the norm is the whole tree's."""
        each = self.bound / sqrt(sum(1 for _ in tree.leaves(update)))
        ratios = tree.map_leaves(lambda leaf: (leaf * leaf).sum() ** 0.5 / each, update)
        clipped = tree.map_leaves(lambda leaf, ratio: leaf / ratio.clip(1.0), update, ratios)
        squares = sum(ratio * ratio for _, ratio in tree.leaves(ratios))
        outside = sum((ratio > 1.0) * 1.0 for _, ratio in tree.leaves(ratios))
        return Clipped(clipped, squares**0.5 * each, (outside == 0) * 1.0)


@dataclass(frozen=True)
class AdaptiveBound:
    """A bound that follows a quantile of the devices' norms: Andrew et al., "Differentially Private Learning with
    Adaptive Clipping", NeurIPS 2021, algorithm 1.

    `count_noise` is the standard deviation of noise on the number of devices within the bound, which is itself private
    (the paper uses a twentieth of the devices). Its cost is compensated by noise on the update with multiplier
    `multiplier(z)`, so that both together are as private as z.
    """

    bound: float = 0.1
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float = 0.0

    def __post_init__(self) -> None:
        _check(self.bound)
        if not (0 < self.quantile < 1 and self.rate > 0 and self.count_noise >= 0):
            raise FederatedError(
                "adaptive clipping: expected quantile in (0, 1), rate > 0, count_noise >= 0, "
                f"got {self.quantile}, {self.rate}, {self.count_noise}"
            )

    @property
    def clip(self) -> FlatClip:
        """This round's clipping."""
        return FlatClip(self.bound)

    def next(self, within: float, devices: int, normal: float) -> AdaptiveBound:
        """The next round's bound. `within`: how many of `devices` reported 1.0; `normal`: a standard normal sample."""
        share = (within + self.count_noise * normal) / devices
        return replace(self, bound=self.bound * exp(-self.rate * (share - self.quantile)))

    def multiplier(self, noise: float) -> float:
        """The noise multiplier of the update at which update and count together have multiplier `noise`.

        Andrew et al., theorem 1: z = (z_update^-2 + (2 count_noise)^-2)^-1/2. Raises FederatedError if the count's
        noise is too small for that.
        """
        if not noise:
            return 0.0
        if 2 * self.count_noise <= noise:
            raise FederatedError(
                f"adaptive clipping: count_noise {self.count_noise} is too little for noise multiplier {noise}; "
                f"it must be above {noise / 2}"
            )
        return float((noise**-2 - (2 * self.count_noise) ** -2) ** -0.5)
