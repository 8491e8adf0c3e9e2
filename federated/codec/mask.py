"""A random share of the elements, drawn from a seed that is sent instead of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from federated.codec.base import Choice, Reader, Selection
from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["Mask"]


@dataclass(frozen=True)
class Mask(Selection):
    """Each element is sent with probability `keep`, divided by it so that the expectation is the vector (Konečný et al.
    2016, "random mask"). With error feedback values are sent undivided."""

    name = "mask"
    unbiased = True
    keep: float = 0.4

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise FederatedError(f'codec "mask": expected a share in (0, 1] to keep, got {self.keep}')

    def choose(self, vector: Array, rng: np.random.Generator, feedback: bool) -> Choice:
        """The header is the seed, 8 bytes."""
        header = rng.bytes(8)
        positions = self.positions(Reader(header), len(vector))
        values = vector[positions]
        return Choice(header, positions, values if feedback else values / np.float32(self.keep))

    def positions(self, reader: Reader, size: int) -> Array:
        """Drawn again from the seed. PCG64's raw output is defined by its specification, independently of NumPy's
        version."""
        seed = int.from_bytes(reader.take(8, "a mask's seed"), "little")
        raw = np.random.PCG64(seed).random_raw((size + 1) // 2)
        drawn = np.asarray(raw, "<u8").view("<u4")[:size]
        return np.flatnonzero(drawn < np.uint64(round(self.keep * 2**32)))
