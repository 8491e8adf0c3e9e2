"""Timing in alternating turns, with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edge.measuring import measure


class Clock:
    """Simulated time, which passes only while a contender works, while its workers spin, and during sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.computed = 0.0
        self.spinning = 0.0
        """Seconds that idle workers will still keep a processor busy."""

    def __call__(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.computed

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        spun = min(seconds, self.spinning)
        self.spinning -= spun
        self.computed += spun

    def takes(self, *seconds: float, spins: float = 0.0) -> Callable[[], None]:
        """A call that takes the first of `seconds` once, the second ever after; its workers spin on for `spins`."""
        first, steady = seconds[0], seconds[-1]
        calls = iter([first])

        def call() -> None:
            # On a processor shared with a spinning worker, half the time is available.
            self.now += next(calls, steady) * (2 if self.spinning and not spins else 1)
            self.spinning = max(spins, self.spinning)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure, "perf_counter", clock)
    monkeypatch.setattr(measure, "process_time", clock.process_time)
    monkeypatch.setattr(measure, "sleep", clock.sleep)
    return clock


def test_ratios_are_theirs_over_ours(clock: Clock) -> None:
    timings = measure.interleave({"ours": clock.takes(1.0, 0.01), "theirs": clock.takes(0.02)}, rounds=5)
    assert timings["ours"].median == pytest.approx(0.01)
    found = measure.ratio(timings["ours"], timings["theirs"])
    assert found.median == pytest.approx(2.0) and found.low <= found.median <= found.high


def test_it_ends_in_time_but_not_before_three_rounds(clock: Clock) -> None:
    timings = measure.interleave({"slow": clock.takes(5.0)}, rounds=100, seconds=1.0)
    assert len(timings["slow"].rounds) == 3


def test_short_calls_are_repeated_within_a_turn(clock: Clock) -> None:
    timings = measure.interleave({"short": clock.takes(1e-5)}, rounds=3)
    assert timings["short"].median == pytest.approx(1e-5)
    assert clock.now >= 3 * measure.TURN_SECONDS


def test_workers_that_still_spin_are_not_measured(clock: Clock) -> None:
    contenders = {"ours": clock.takes(0.01), "spinner": clock.takes(0.01, spins=0.035)}
    timings = measure.interleave(contenders, rounds=5)
    assert timings["ours"].median == pytest.approx(0.01)


def test_waiting_for_idle_workers_has_a_limit(clock: Clock) -> None:
    timings = measure.interleave({"restless": clock.takes(0.01, spins=1e9)}, rounds=3)
    assert len(timings["restless"].rounds) == 3
