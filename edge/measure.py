"""Fair timing of several ways to run one model: interleaved in one process, compared pair by pair.

Contenders take turns A B A B …; a turn repeats its call until it lasts `TURN_SECONDS`. What disturbs the machine for
longer than a turn disturbs both, so the median of each round's ratio is steadier than the ratio of two medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

__all__ = ["Ratio", "Timing", "interleave", "ratio"]

TURN_SECONDS = 0.004
WARM_UP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one call: of the very first, and of each round after the warm-up."""

    first: float
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The typical call."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast we are as the peer: the median over rounds with the middle half's bounds."""

    median: float
    low: float
    high: float


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 25, seconds: float = 10.0
) -> dict[str, Timing]:
    """Time each contender's call. Stops after `rounds`, or after `seconds` once three rounds are done."""
    first = {name: _once(call) for name, call in contenders.items()}
    repeats = {name: _warm_up(call) for name, call in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    end = perf_counter() + seconds
    for done in range(rounds):
        if done >= 3 and perf_counter() > end:
            break
        for name, call in contenders.items():
            taken[name].append(_turn(call, repeats[name]))
    return {name: Timing(first[name], tuple(taken[name])) for name in contenders}


def ratio(ours: Timing, theirs: Timing) -> Ratio:
    """Above 1: ours is faster."""
    each = sorted(b / a for a, b in zip(ours.rounds, theirs.rounds, strict=True))
    return Ratio(statistics.median(each), _quantile(each, 0.25), _quantile(each, 0.75))


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[round(q * (len(ordered) - 1))]


def _once(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _warm_up(call: Callable[[], object]) -> int:
    """Run until caches and clocks have settled; how often to repeat the call in one turn."""
    spent, fastest = 0.0, float("inf")
    while spent < WARM_UP_SECONDS:
        took = _once(call)
        spent, fastest = spent + took, min(fastest, took)
    return max(1, round(TURN_SECONDS / max(fastest, 1e-7)))


def _turn(call: Callable[[], object], repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats
