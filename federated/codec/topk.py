"""The largest elements: Aji & Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from federated.codec.base import Choice, Reader, Selection
from federated.codec.indices import pack_indices, unpack_indices
from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["TopK", "largest"]


@dataclass(frozen=True)
class TopK(Selection):
    """The `share` of elements that are largest in magnitude, at least one. Biased: use it with "feedback"."""

    name = "topk"
    unbiased = False
    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise FederatedError(f'codec "topk": expected a share in (0, 1], got {self.share}')

    def choose(self, vector: Array, rng: np.random.Generator, feedback: bool) -> Choice:
        """The header is the positions; their count follows from the share."""
        positions = largest(np.abs(vector), self._count(len(vector)))
        return Choice(pack_indices(positions, len(vector)), positions, vector[positions])

    def positions(self, reader: Reader, size: int) -> Array:
        """Their number follows from the share."""
        return unpack_indices(reader, self._count(size), size)

    def _count(self, size: int) -> int:
        return min(size, ceil(self.share * size))


def largest(keys: Array, count: int) -> Array:
    """Sorted int64 positions of the `count` largest keys."""
    if count >= len(keys):
        return np.arange(len(keys))
    return np.sort(np.argpartition(keys, len(keys) - max(count, 1))[len(keys) - count :])
