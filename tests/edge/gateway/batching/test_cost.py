"""Learned times, and the batch sizes that follow from them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.batching.cost import Cost
from edge.gateway.batching.cover import CALL, Covers

TIMES = st.dictionaries(st.integers(1, 9), st.floats(1e-5, 1e-1), min_size=1, max_size=5)


@given(TIMES, st.integers(1, 30))
def test_a_cover_is_the_least_there_is(seconds: dict[int, float], rows: int) -> None:
    @cache
    def least(n: int) -> float:
        return 0.0 if n <= 0 else min(seconds[size] + CALL + least(n - size) for size in seconds)

    covers = Covers(seconds)
    cover = covers[rows]
    assert cover.seconds == pytest.approx(sum(seconds[size] for size in cover.sizes))
    assert sum(cover.sizes) >= rows
    assert sum(cover.sizes[:-1]) < rows, "only the last is padded"
    if rows <= 2 * max(seconds):
        assert cover.seconds + CALL * len(cover.sizes) == pytest.approx(least(rows))
    else:  # all but the end is the best size: never worse than that alone
        assert cover.seconds <= -(-rows // covers.best) * (seconds[covers.best] + CALL) * (1 + 1e-9)


@given(TIMES.filter(lambda seconds: 1 in seconds), st.integers(1, 100))
def test_never_slower_than_one_by_one(seconds: dict[int, float], rows: int) -> None:
    assert Covers(seconds)[rows].seconds <= rows * (seconds[1] + CALL) * (1 + 1e-9)


def test_covers_of_many_rows_are_quick_to_find() -> None:
    covers = Covers({size: 1e-3 * size + 1e-2 for size in (1, 2, 4, 8, 16, 32, 64)})
    assert sum(covers[1_000_000].sizes) == 1_000_000
    assert len(covers._table) <= 129


def test_nothing_known() -> None:
    cost = Cost()
    assert cost.predict(3) is None and cost.row is None and cost.line() is None and cost.call(1) is None
    assert cost.cover(3) == () and cost.best == 1 and cost.sizes == ()


@given(st.floats(0, 1e-2), st.floats(1e-5, 1e-1))
def test_the_line_of_a_line(a: float, b: float) -> None:
    cost = Cost()
    for size in (1, 2, 4, 8):
        cost.observe(size, a * size + b)
    line = cost.line()
    assert line is not None and line.a >= 0 and line.b >= 0
    assert cost.call(5) == pytest.approx(5 * a + b, rel=1e-6)


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-6, 1.0), min_size=1, max_size=6))
def test_a_line_never_falls_and_never_starts_below_nothing(seconds: dict[int, float]) -> None:
    cost = Cost()
    for size, took in seconds.items():
        cost.observe(size, took)
    line = cost.line()
    assert line is not None and line.a >= 0 and line.b >= 0 and line.a + line.b > 0


def test_outliers_hardly_count() -> None:
    cost, rng = Cost(), np.random.default_rng(0)
    for _ in range(2000):
        cost.observe(1, 1e-3 * (50.0 if rng.random() < 0.02 else 1.0))
    assert cost.predict(1) == pytest.approx(1e-3, rel=0.05)


def test_a_first_run_that_was_cold_is_forgotten() -> None:
    cost = Cost()
    cost.observe(1, 50e-3)
    for _ in range(30):
        cost.observe(1, 1e-3)
    assert cost.predict(1) == pytest.approx(1e-3, rel=0.1)


def test_a_machine_that_becomes_slower_changes_times_but_not_choices() -> None:
    cost = Cost()
    for size in (1, 2, 4, 8):
        cost.observe(size, 1e-3 * size)
    for _ in range(200):
        cost.observe(1, 2e-3)
    assert cost.predict(1) == pytest.approx(2e-3, rel=0.01)
    assert cost.call(8) == pytest.approx(16e-3, rel=0.15)
    assert cost.best == 1


def test_the_smallest_of_equally_good_sizes() -> None:
    cost = Cost()
    for size in (1, 2, 4, 8, 16):
        cost.observe(size, 1e-3 * max(size, 4))
    assert cost.best == 4
    assert cost.cover(3) == (4,), "one padded batch of 4 takes less than three of 1"
    assert cost.row == pytest.approx(1e-3)


def test_impossible_times_are_ignored() -> None:
    cost = Cost()
    cost.observe(1, 0.0)
    cost.observe(0, 1.0)
    assert cost.sizes == ()
