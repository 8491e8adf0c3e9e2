"""The linear programs: closed forms, and a bound that no schedule beats."""

from __future__ import annotations

import pytest

from cloud.cluster.jobs import Option
from cloud.cluster.prices import Ask, makespan_prices, speed_prices

ROWS = (Option(0, 1, 1.0), Option(0, 4, 2.0), Option(1, 1, 0.5))


def test_many_equal_jobs_fill_both_pools() -> None:
    """10 devices at 1 step/s and 10 at half of it: 15 steps/s for 100 jobs of 30 steps."""
    found = makespan_prices([Ask(n, ROWS, 30.0) for n in range(100)], (10, 10))
    assert found.value == pytest.approx(100 * 30 / 15)
    assert found.pools[0] == pytest.approx(2 * found.pools[1], rel=0.1)


def test_a_long_job_gets_more_devices() -> None:
    """Alone on its fastest slice it takes 100 s, and its time has a price."""
    found = makespan_prices([Ask(0, ROWS, 200.0), *(Ask(n, ROWS, 1.0) for n in range(1, 9))], (10, 10))
    assert found.value == pytest.approx(100.0)
    assert [*found.jobs] == [0]


def test_of_equal_prices_the_pool_that_others_gain_less_by_is_cheaper() -> None:
    """The first job gains nothing from the first pool; the second does."""
    asks = [
        Ask(0, (Option(0, 8, 2.0), Option(1, 8, 2.0)), 500.0),
        Ask(1, (Option(0, 8, 8.0), Option(1, 8, 1.0)), 500.0),
    ]
    found = makespan_prices(asks, (8, 8))
    assert found.value == pytest.approx(250.0) and found.pools[0] > found.pools[1] > 0


def test_speed_by_weight() -> None:
    """One device: the heavier job has it, at a price between the two weights."""
    rows = (Option(0, 1, 3.0),)
    found = speed_prices([Ask(0, rows, 9.0, 1.0), Ask(1, rows, 9.0, 5.0)], (1,))
    assert found.value == pytest.approx(5.0)
    assert 1.0 <= found.pools[0] <= 5.01


def test_nothing_to_do() -> None:
    assert makespan_prices([], (4, 4)).value == 0.0
    assert speed_prices([Ask(0, ROWS, 0.0)], (4, 4)).value == 0.0
