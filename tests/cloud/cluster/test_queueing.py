"""Replicas by the Erlang C formula, checked against a simulated queue."""

from __future__ import annotations

import heapq
import random

import pytest

from cloud.cluster.queueing import late, replicas


def test_known_values() -> None:
    assert late(1, 0.5, 1.0, 1.0) == pytest.approx(0.5)  # M/M/1: a request waits with probability load
    assert late(2, 1.0, 1.0, 1.0) == pytest.approx(1 / 3)
    assert late(3, 3.0, 1.0, 9.0) == 1.0 and late(3, 1.0, 1.0, 0.5) == 1.0


@pytest.mark.parametrize(("count", "load", "latency"), [(2, 1.5, 2.5), (5, 4.0, 1.8)])
def test_against_a_simulated_queue(count: int, load: float, latency: float) -> None:
    """Services of random length wait as the formula says; constant ones, of which replicas are made, less."""
    draw = random.Random(1)
    for constant in (False, True):
        free, now, slow, most = [0.0] * count, 0.0, 0, 60_000
        for _ in range(most):
            now += draw.expovariate(load)
            begun = max(heapq.heappop(free), now)
            slow += begun - now > latency - 1.0
            heapq.heappush(free, begun + (1.0 if constant else draw.expovariate(1.0)))
        found = slow / most
        foretold = late(count, load, 1.0, latency)
        assert found < foretold if constant else found == pytest.approx(foretold, rel=0.15)


def test_fewest_replicas() -> None:
    assert replicas(0.0, 0.1, 1.0, 0.99) == 0
    assert replicas(5.0, 2.0, 1.0, 0.99) == -1
    for rate in (0.5, 3.0, 40.0, 900.0):
        count = replicas(rate, 0.1, 0.3, 0.99)
        assert late(count, rate * 0.1, 0.1, 0.3) <= 0.01 < late(count - 1, rate * 0.1, 0.1, 0.3)
