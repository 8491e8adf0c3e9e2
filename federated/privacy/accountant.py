"""Privacy accounting, in two ways: by privacy loss distributions (`pld`), and by Rényi differential privacy, summed
over rounds and converted to (epsilon, delta). Both give upper bounds, of which the smaller holds.

Mironov, "Rényi Differential Privacy", CSF 2017; Mironov, Talwar & Zhang, "Rényi Differential Privacy of the Sampled
Gaussian Mechanism", 2019; Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
proposition 12, for the conversion. Neighbouring runs differ in the presence of one device's data.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import expm1, inf, isfinite, log, log1p
from typing import Any, NamedTuple

import numpy as np

from federated.errors import FederatedError
from federated.privacy import pld
from federated.tree import Array

__all__ = ["ORDERS", "Accountant", "Spent", "epsilon_of", "noise_for", "renyi"]

ORDERS = np.array([*(1 + tenths / 10 for tenths in range(1, 100)), *range(11, 64), 128, 256, 512, 1024], np.float64)
"""The orders at which divergences are summed: dense where small epsilons are found, sparse up to a thousand."""


LARGEST_NOISE = 1e6
"""The largest multiplier that `noise_for` tries."""


class Spent(NamedTuple):
    """`rounds` rounds with Gaussian noise of `noise` times the clipping bound on the sum, each device taking part with
    probability `rate`, independently of the others and of other rounds (Poisson sampling).

    A selection of fixed size is different: account for it with rate 1, over the most rounds of any device.
    """

    noise: float
    rate: float
    rounds: int


@dataclass(frozen=True)
class Accountant:
    """What was spent, as data for a checkpoint."""

    spent: tuple[Spent, ...] = ()

    def charge(self, noise: float, rate: float = 1.0, rounds: int = 1) -> Accountant:
        """The account after `rounds` more. Raises FederatedError for a negative noise or a rate outside (0, 1]."""
        if not (noise >= 0 and isfinite(noise) and 0 < rate <= 1 and rounds >= 0):
            raise FederatedError(
                f"privacy: expected noise >= 0, rate in (0, 1], rounds >= 0, got {noise}, {rate}, {rounds}"
            )
        new = Spent(float(noise), float(rate), int(rounds))
        for at, each in enumerate(self.spent):
            if each[:2] == new[:2]:
                more = new._replace(rounds=each.rounds + new.rounds)
                return Accountant((*self.spent[:at], more, *self.spent[at + 1 :]))
        return Accountant((*self.spent, new)) if rounds else self

    def epsilon(self, delta: float) -> float:
        """The smaller of the two bounds at this delta; infinity if a round had no noise."""
        return min(self.bounds(delta).values())

    def bounds(self, delta: float, ways: Collection[str] = ("pld", "rdp")) -> dict[str, float]:
        """An upper bound of epsilon by each way, "pld" and "rdp" (over ORDERS)."""
        if not 0 < delta < 1:
            raise FederatedError(f"privacy: expected delta in (0, 1), got {delta}; take less than 1 / devices")
        made = {"pld": self._by_losses, "rdp": self._by_divergences}
        return {way: made[way](delta) for way in ways}

    def _by_losses(self, delta: float) -> float:
        return pld.epsilon(self.spent, delta)

    def _by_divergences(self, delta: float) -> float:
        spent = sum((each.rounds * renyi(each.noise, each.rate) for each in self.spent), 0 * ORDERS)
        return epsilon_of(spent, ORDERS, delta)

    def as_data(self) -> list[list[float]]:
        """For JSON."""
        return [list(each) for each in self.spent]

    @classmethod
    def from_data(cls, data: Sequence[Sequence[Any]]) -> Accountant:
        """The inverse of `as_data`. Raises FederatedError for anything else."""
        account = cls()
        for each in data:
            if len(each) != 3 or any(isinstance(part, bool) or not isinstance(part, int | float) for part in each):
                raise FederatedError(f"privacy account: expected [noise, rate, rounds], got {each!r}")
            account = account.charge(each[0], each[1], int(each[2]))
        return account


def noise_for(epsilon: float, delta: float, rate: float = 1.0, rounds: int = 1, whole: int = 0) -> float:
    """The noise multiplier with which `rounds` rounds, and `whole` more with rate 1, cost at most `epsilon`, to 0.1 %
    and never too small.

    Raises FederatedError if no multiplier up to a million is enough.
    """

    def account(noise: float) -> Accountant:
        return Accountant().charge(noise, rate, rounds).charge(noise, 1.0, whole)

    def enough(noise: float) -> bool:
        return account(noise).epsilon(delta) <= epsilon

    if not (epsilon > 0 and rounds >= 1):
        raise FederatedError(f"privacy: expected epsilon > 0 and rounds >= 1, got {epsilon}, {rounds}")
    if not enough(LARGEST_NOISE):
        raise FederatedError(f"privacy: no noise reaches epsilon {epsilon} at delta {delta}; allow larger ones")
    high = _least(lambda noise: account(noise).bounds(delta, ways=("rdp",))["rdp"] <= epsilon, 0.01, LARGEST_NOISE, 1.1)
    low = high / 1.5
    while low > 0.01 and enough(low):
        low, high = low / 1.5, low
    return _least(enough, max(low, 0.01), high, 1.001)


def _least(enough: Callable[[float], bool], low: float, high: float, ratio: float) -> float:
    """The least number that is enough, up to a ratio; `high` is."""
    while high / low > ratio:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=256)
def renyi(noise: float, rate: float) -> Array:
    """The divergence of one round at ORDERS, float64; infinity without noise."""
    if not noise:
        return np.full_like(ORDERS, inf)
    if rate == 1:
        return ORDERS / (2 * noise * noise)
    return np.array([_sampled(noise, rate, order) for order in ORDERS.tolist()])


def _sampled(noise: float, rate: float, order: float) -> float:
    """log E[(1 - q + q exp((2 x - 1) / 2 s²))^a] / (a - 1) over x ~ N(0, s²): Mironov et al. 2019, theorem 4.

    The trapezium rule, which for a function without singularities near the axis has error e^(-2 pi distance / step);
    the nearest one is at distance pi s². The integrand's mass is between those of the powers 0 and a, at 0 and at a.
    Accurate to 1e-10; the paper's series for fractional orders, as summed by dp-accounting 0.6, is 1 to 5 % high at
    orders below 2 and often does not converge.
    """
    variance = noise * noise
    step = min(noise / 8, variance / 4)
    x = np.arange(-12 * noise, order + 12 * noise, max(step, (order + 24 * noise) / 2**20))
    logs = order * np.logaddexp(log1p(-rate), log(rate) + (2 * x - 1) / (2 * variance)) - x * x / (2 * variance)
    top = float(logs.max())
    integral = top + log(float(np.exp(logs - top).sum())) + log(x[1] - x[0]) - 0.5 * log(2 * np.pi * variance)
    return max(0.0, integral) / (order - 1)


def epsilon_of(divergences: Array, orders: Array, delta: float) -> float:
    """Canonne et al., proposition 12, at the best of the orders: the epsilon of mechanisms with these divergences.

    0 if a divergence, which bounds the Kullback-Leibler divergence, keeps the outputs within delta of each other
    anyway.
    """
    if not np.isfinite(divergences).all():
        return inf
    if any(delta * delta + expm1(-divergence) > 0 for divergence in divergences.tolist()):
        return 0.0
    epsilons = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return max(0.0, float(epsilons.min()))
