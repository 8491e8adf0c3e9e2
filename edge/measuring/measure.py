"""Fair timing of several runtimes on one model: interleaved in one process, compared in pairs.

Runtimes take turns A B A B …; a turn repeats its call until it lasts `TURN_SECONDS`. A disturbance that lasts longer
than a turn affects both, so the median of the ratios per round is steadier than the ratio of two medians.

Before a turn begins, we wait until the process is idle: workers of ONNX Runtime spin for 35 ms after a run, those of
others for less, and the next runtime would share the cores with them. Disabling the spinning instead cost ONNX Runtime
half of its speed on small models (dtln_model_1 with 2 threads: 32 µs spinning, 50 µs stopped). Then uncounted calls
wake the processors and the runtime's workers, and warm its caches.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time, sleep

__all__ = ["Ratio", "Timing", "interleave", "ratio"]

TURN_SECONDS = 0.004
WARM_UP_SECONDS = 0.05
WAKE_SECONDS = 0.01
"""Seconds of uncounted calls at the start of a turn. After tens of idle milliseconds the first call takes twice its
time."""
SLICE_SECONDS, SLICES = 0.02, 10
"""Length of a check whether the process still computes, and the number of checks before continuing anyway. The system
updates the CPU time of a thread on another processor only from time to time, 10 ms at the slowest: a shorter check
would miss a spinning worker."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one call, in each round after the warm-up."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over rounds."""
        return statistics.median(self.rounds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our speed relative to the peer's: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 25, seconds: float = 10.0
) -> dict[str, Timing]:
    """Time each contender's call. Stops after `rounds`, or after `seconds` once three rounds are done."""
    repeats = {name: _warm_up(call) for name, call in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    end = perf_counter() + seconds
    for done in range(rounds):
        if done >= 3 and perf_counter() > end:
            break
        for name, call in contenders.items():
            taken[name].append(_turn(call, repeats[name]))
    return {name: Timing(tuple(taken[name])) for name in contenders}


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
    """Run until caches and clock rates have settled; returns how often to repeat the call in one turn."""
    _fall_quiet()
    spent, fastest = 0.0, float("inf")
    while spent < WARM_UP_SECONDS:
        took = _once(call)
        spent, fastest = spent + took, min(fastest, took)
    return max(1, round(TURN_SECONDS / max(fastest, 1e-7)))


def _turn(call: Callable[[], object], repeats: int) -> float:
    _fall_quiet()
    end = perf_counter() + WAKE_SECONDS
    call()
    while perf_counter() < end:
        call()
    start = perf_counter()
    for _ in range(repeats):
        call()
    return (perf_counter() - start) / repeats


def _fall_quiet() -> None:
    """Wait until no thread of this process is computing."""
    for _ in range(SLICES):
        before = process_time()
        sleep(SLICE_SECONDS)
        if process_time() - before < SLICE_SECONDS / 10:
            return
