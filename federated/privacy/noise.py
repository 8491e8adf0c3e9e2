"""Unpredictable Gaussian noise, and how much of it a round needs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np

from federated import tree
from federated.errors import FederatedError
from federated.privacy.clipping import Clip
from federated.tree import Array, Tree

__all__ = ["GaussianNoise", "NoiseSource", "SecureSource", "SeededSource"]


class NoiseSource(ABC):
    """Standard normal numbers."""

    @abstractmethod
    def normal(self, size: int) -> Array:
        """float64 [size]."""


class SecureSource(NoiseSource):
    """From the operating system's generator, which cannot be reconstructed from the results, as NumPy's could.

    Box & Muller's transform. Each number is half the sum of four: the floats that a single transform can produce depend
    on the grid of its uniform inputs and reveal values (Mironov, "On Significance of the Least Significant Bits for
    Differential Privacy", CCS 2012); with sums of several, finding the inputs costs too much (Holohan & Braghin,
    "Secure Random Sampling in Differential Privacy", ESORICS 2021).
    """

    def normal(self, size: int) -> Array:
        """Uses 32 bytes of randomness per number; about 3 million numbers per second."""
        words = np.frombuffer(os.urandom(size * 32), np.uint64).reshape(4, size)
        uniform = ((words >> 11) + 0.5) * 2.0**-53
        radius = np.sqrt(-2 * np.log(uniform[:2]))
        angle = 2 * np.pi * uniform[2:]
        total: Array = (radius * np.cos(angle) + radius * np.sin(angle)).sum(axis=0) / 2
        return total


class SeededSource(NoiseSource):
    """NumPy's generator: repeatable, for tests and simulations. It gives no privacy."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def normal(self, size: int) -> Array:
        """The next of the seed's numbers."""
        return self._rng.standard_normal(size)


@dataclass(frozen=True)
class GaussianNoise:
    """The Gaussian mechanism over clipped updates: `multiplier` is the argument of `Accountant.charge`.

    "central": the server adds it to the sum, whose sensitivity to one device's presence is the clipping bound; devices
    must trust the server. "local": each device adds it to its own update; any two updates may differ by twice the
    bound. Every update has weight 1: other weights would exceed the bound.
    """

    clip: Clip
    multiplier: float
    where: Literal["central", "local"] = "central"

    def __post_init__(self) -> None:
        if not 0 <= self.multiplier < float("inf") or self.where not in ("central", "local"):
            raise FederatedError(
                f'privacy: expected a multiplier from 0 and "central" or "local", got {self.multiplier}, {self.where!r}'
            )

    def of_device(self, clipped: Tree, source: NoiseSource) -> Tree:
        """The noisy form of a clipped update, which a device sends."""
        if self.where == "central":
            return clipped
        return add_noise(clipped, 2 * self.multiplier * self.clip.bound, source)

    def of_mean(self, mean: Tree, devices: float, source: NoiseSource) -> Tree:
        """The mean with the server's noise. `devices`: the divisor of the sum; under Poisson sampling the expected
        number, rate * devices, since the actual number is private too."""
        if self.where == "local":
            return mean
        return add_noise(mean, self.multiplier * self.clip.bound / devices, source)


def add_noise(update: Tree, deviation: float, source: NoiseSource) -> Tree:
    """The tree plus independent noise of this standard deviation, its dtypes kept."""
    if not deviation:
        return update

    def noisy(leaf: Array) -> Array:
        noise = source.normal(leaf.size).reshape(leaf.shape)
        return (leaf + deviation * noise).astype(leaf.dtype)

    return tree.map_leaves(noisy, update)
