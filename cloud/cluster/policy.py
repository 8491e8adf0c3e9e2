"""What the scheduler strives for: which slice suits a job, and who comes first. Rules without a state.

Both policies score a job's options by the prices of `prices.py`. "makespan": the time until everything is done; jobs
that would end last come first (longest processing time first; Graham, 1969). "speed": the sum of weighted speeds; who
had least service, by powers of two, comes first (Tiresias' discretised least attained service; Gu et al., NSDI 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from cloud.cluster.jobs import Option, Training
from cloud.cluster.prices import Ask, Prices, makespan_prices, speed_prices
from cloud.cluster.state import Gang

__all__ = ["POLICIES", "Policy", "Rank", "Scores", "pressing"]

Rank = tuple[float, ...]
"""Smaller comes first."""
Row = tuple[float, int, Option]


class Policy(Protocol):
    """`good`: an option whose score is more than that above the best one's waits for a better slice, as long as others
    want it; `slack`: so much worse may the present slice be before it is worth a move."""

    good: float
    slack: float

    def prices(self, asks: Sequence[Ask], capacity: Sequence[int]) -> Prices:
        """Of units and of long jobs' time."""
        ...

    def score(self, option: Option, ask: Ask, prices: Prices) -> float:
        """Smaller is better."""
        ...

    def rank(self, gang: Gang, ask: Ask, prices: Prices, quantum: float) -> Rank:
        """Among jobs of one priority."""
        ...


class _Makespan:
    good, slack = math.log(1.3), math.log(1.15)

    def prices(self, asks: Sequence[Ask], capacity: Sequence[int]) -> Prices:
        return makespan_prices(asks, capacity)

    def score(self, option: Option, ask: Ask, prices: Prices) -> float:
        """The price of a step, as a logarithm."""
        spent = float(prices.pools[option.pool]) * option.size + prices.jobs.get(ask.number, 0.0) + prices.time
        return math.log(spent / option.speed)

    def rank(self, gang: Gang, ask: Ask, prices: Prices, quantum: float) -> Rank:
        critical = ask.number in prices.jobs
        runs = gang.status == "running"
        return (0.0, -ask.least, 0.0) if critical else (1.0, 0.0 if runs else 1.0, gang.job.arrives)


class _Speed:
    good, slack = 0.25, 0.1

    def prices(self, asks: Sequence[Ask], capacity: Sequence[int]) -> Prices:
        return speed_prices(asks, capacity)

    def score(self, option: Option, ask: Ask, prices: Prices) -> float:
        """The price less the gain, for a weight of 1."""
        gain = ask.weight * option.speed / max(other.speed for other in ask.options)
        return (float(prices.pools[option.pool]) * option.size - gain) / ask.weight

    def rank(self, gang: Gang, ask: Ask, prices: Prices, quantum: float) -> Rank:
        served = math.floor(math.log2(1.0 + gang.attained / (ask.weight * quantum)))
        return float(served), 0.0 if gang.status == "running" else 1.0, gang.job.arrives


POLICIES: Mapping[str, Policy] = MappingProxyType({"makespan": _Makespan(), "speed": _Speed()})


def pressing(gang: Gang, ask: Ask, now: float, margin: float) -> bool:
    """Whether a job has to have its slices now to end by its deadline, which it still can."""
    job = gang.job
    if not isinstance(job, Training) or not job.deadline:
        return False
    left = job.deadline - now - ask.least
    return 0.0 <= left <= margin


class Scores:
    """Options of jobs by one set of prices, best first; jobs that are alike share what is computed."""

    def __init__(self, policy: Policy, prices: Prices) -> None:
        self.policy, self.prices = policy, prices
        self._known: dict[tuple[int, float], list[Row]] = {}

    def rows(self, ask: Ask) -> list[Row]:
        """(score, number, option), ascending."""
        if ask.number in self.prices.jobs:
            return self._rows(ask)
        key = id(ask.options), ask.weight
        if key not in self._known:
            self._known[key] = self._rows(ask)
        return self._known[key]

    def _rows(self, ask: Ask) -> list[Row]:
        score, prices = self.policy.score, self.prices
        return sorted((score(option, ask, prices), n, option) for n, option in enumerate(ask.options))

    def preferences(self, gang: Gang, ask: Ask, now: float) -> list[tuple[Option, bool]]:
        """A job's options, best first, and whether each is good. Before a deadline those that are fast enough come
        first; the present slice comes first if no other is better by more than moving costs."""
        scored, job = self.rows(ask), gang.job
        best = scored[0][0]
        if isinstance(job, Training) and job.deadline > now:
            most = job.deadline - now - job.starting - job.saving
            fast = [row for row in scored if ask.remaining / row[2].speed <= most]
            slow = [row for row in scored if ask.remaining / row[2].speed > most]
            best = fast[0][0] if fast else best
            scored = fast + sorted(slow, key=lambda row: -row[2].speed)
        most = best + self.policy.good
        found = [(option, score <= most) for score, _, option in scored]
        own = gang.option
        if gang.status == "running" and own is not None and isinstance(job, Training):
            present = next(score for score, _, option in scored if option is own or option == own)
            moving = (job.starting + job.saving) / max(ask.remaining / own.speed, 1.0)
            if present <= best + self.policy.slack + moving:
                found = [(own, True), *(row for row in found if row[0] is not own)]
        return found
