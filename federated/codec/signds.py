"""SignDS: some positions and one sign, chosen so that they hide which elements were really large.

Jiang, Zhou & Grossklags, "SignDS-FL: Local Differentially Private Federated Learning with Sign-based Dimension
Selection", ACM TIST 13(5), 2022. A sign s is drawn. The `share` of elements with the largest s * value are the top. The
exponential mechanism then picks a set of positions: sets with at least a threshold of positions in the top are
e^epsilon times as likely as the others. The sets' likelihoods have the same sum for any data, so one report is
epsilon-differentially private for the device that sends it, without a norm to clip.

Most sets above the threshold are barely above it: a threshold of 60 % makes 60 % of the positions right, however large
epsilon is (of 99 out of 2,000 at epsilon 100, 60 are right and 39 wrong; 33 that must all be right are right). Hence
the threshold and the number of positions are both chosen here, for the most right positions less wrong ones.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

import numpy as np

from federated.codec.base import Choice, Reader, Selection, Values
from federated.codec.indices import pack_indices, unpack_indices
from federated.codec.topk import largest
from federated.errors import FederatedError
from federated.tree import Array

__all__ = ["Sign", "SignDS"]


@dataclass(frozen=True)
class SignDS(Selection):
    """`step`: the change of a selected element, up or down. `seeded` 1: randomness comes from the round's generator,
    which the server can reproduce; repeatable, for simulations, and not private. 0: from the operating system's."""

    name = "signds"
    unbiased = False
    share: float = 0.01
    epsilon: float = 100.0
    step: float = 0.001
    seeded: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.share <= 0.5 and 0 < self.epsilon < 700 and 0 < self.step < 1e30):
            raise FederatedError(
                'codec "signds": expected share in (0, 0.5], epsilon in (0, 700) and step > 0, '
                f"got {self.share}, {self.epsilon}, {self.step}"
            )

    @property
    def values(self) -> Sign:
        """The part that writes its values."""
        return Sign(self.step)

    def choose(self, vector: Array, rng: np.random.Generator, feedback: bool) -> Choice:
        """The header is the positions."""

        def words(number: int) -> Array:
            data = rng.bytes(8 * number) if self.seeded else os.urandom(8 * number)
            return np.frombuffer(data, "<u8")

        size, (toss, lot) = len(vector), words(2).tolist()
        sign = 1 - 2 * (toss & 1)
        count, _, chances = self._plan(size)
        hits = min(count, int(np.searchsorted(np.cumsum(chances), (lot >> 11) * 2.0**-53, side="right")))
        inside = np.zeros(size, bool)
        inside[largest(sign * vector, self._top(size))] = True
        top, others = np.flatnonzero(inside), np.flatnonzero(~inside)
        # The positions of the largest random words are a random subset.
        chosen = top[largest(words(len(top)), hits)], others[largest(words(len(others)), count - hits)]
        positions = np.sort(np.concatenate(chosen))
        return Choice(pack_indices(positions, size), positions, np.full(count, sign * self.step, np.float32))

    def positions(self, reader: Reader, size: int) -> Array:
        """Their number follows from the parameters."""
        return unpack_indices(reader, self._plan(size)[0], size)

    def _top(self, size: int) -> int:
        return min(max(1, round(self.share * size)), size)

    def _plan(self, size: int) -> tuple[int, int, Array]:
        return _plan(size, self._top(size), self.epsilon)


@dataclass(frozen=True)
class Sign(Values):
    """One byte, 1 or 0: all values are `step` or -`step`."""

    name = "sign"
    step: float = 1.0

    def pack(self, values: Array, counts: Array, rng: np.random.Generator) -> bytes:
        """The sign of the first."""
        return bytes([int(values[0] > 0)])

    def unpack(self, reader: Reader, counts: Array) -> Array:
        """Refuses any other byte."""
        sign = reader.take(1, "a sign")[0]
        if sign > 1:
            raise FederatedError(f"payload damaged: expected a sign of 0 or 1, got {sign}")
        return np.full(int(counts.sum()), self.step if sign else -self.step, np.float32)


@lru_cache(maxsize=16)
def _plan(size: int, top: int, epsilon: float) -> tuple[int, int, Array]:
    """How many positions to send, the threshold, and the probabilities float64 [count + 1] that 0, 1, … are in the
    top."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size + 1)))])

    def choose(n: int, k: Array) -> Array:
        inside = (k >= 0) & (k <= n)
        k = k.clip(0, n)
        return np.where(inside, factorials[n] - factorials[k] - factorials[n - k], -np.inf)

    def chances(count: int, threshold: int) -> Array:
        hits = np.arange(count + 1)
        logs = choose(top, hits) + choose(size - top, count - hits) + epsilon * (hits >= threshold)
        scaled: Array = np.exp(logs - logs.max())
        return scaled / scaled.sum()

    def gain(plan: tuple[int, int]) -> float:
        return float(chances(*plan) @ (2 * np.arange(plan[0] + 1) - plan[0]))

    # The gain changes slowly with both: try counts in steps of some 10 %, thresholds in tenths of the count.
    counts = sorted({min(top, max(1, int(1.1**exponent))) for exponent in range(256)})
    plans = [(count, ceil(tenths * count / 10)) for count in counts for tenths in range(5, 11)]
    count, threshold = max(plans, key=gain)
    return count, threshold, chances(count, threshold)
