"""Timing by turns, with a clock of our own making."""

from __future__ import annotations

import pytest

from edge import measure


class Clock:
    """Time that passes only when a contender works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> object:
        """A call that takes the first of `seconds` once, the second ever after."""
        first, steady = seconds[0], seconds[-1]
        calls = iter([first])

        def call() -> None:
            self.now += next(calls, steady)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measure, "perf_counter", clock)
    return clock


def test_first_calls_are_kept_apart_and_ratios_are_theirs_over_ours(clock: Clock) -> None:
    timings = measure.interleave({"ours": clock.takes(1.0, 0.01), "theirs": clock.takes(0.02)}, rounds=5)  # type: ignore[dict-item]
    assert timings["ours"].first == pytest.approx(1.0)
    assert timings["ours"].median == pytest.approx(0.01)
    found = measure.ratio(timings["ours"], timings["theirs"])
    assert found.median == pytest.approx(2.0) and found.low <= found.median <= found.high


def test_it_ends_in_time_but_not_before_three_rounds(clock: Clock) -> None:
    timings = measure.interleave({"slow": clock.takes(5.0)}, rounds=100, seconds=1.0)  # type: ignore[dict-item]
    assert len(timings["slow"].rounds) == 3


def test_short_calls_are_repeated_within_a_turn(clock: Clock) -> None:
    timings = measure.interleave({"short": clock.takes(1e-5)}, rounds=3)  # type: ignore[dict-item]
    assert timings["short"].median == pytest.approx(1e-5)
    assert clock.now >= 3 * measure.TURN_SECONDS
