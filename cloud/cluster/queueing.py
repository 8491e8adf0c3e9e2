"""How many replicas a serving job needs: the Erlang C formula (Erlang, 1917)."""

from __future__ import annotations

import math

__all__ = ["late", "replicas"]

MOST = 1 << 14
"""The most replicas of a job."""


def late(count: int, load: float, seconds: float, latency: float) -> float:
    """The share of requests that take longer than `latency` with `count` replicas, each of which takes `seconds` for a
    request, one at a time; `load`: requests per second times `seconds`. Waiting times of a queue M/M/c, which are
    longer than those of requests that all take equally long."""
    if load <= 0.0:
        return 0.0 if seconds <= latency else 1.0
    if load >= count or seconds > latency:
        return 1.0
    blocked = 1.0  # Erlang B, by its recursion over servers
    for n in range(1, count + 1):
        blocked = load * blocked / (n + load * blocked)
    waits = blocked / (1.0 - load / count * (1.0 - blocked))
    return waits * math.exp(-(count - load) * (latency - seconds) / seconds)


def replicas(rate: float, seconds: float, latency: float, share: float) -> int:
    """The fewest replicas with which at most the rest of `share` of the requests takes longer than `latency`; 0 without
    requests, -1 if no number is enough."""
    if rate <= 0.0:
        return 0
    if seconds > latency or rate * seconds >= MOST:
        return -1
    low = math.floor(rate * seconds) + 1
    high = low
    while late(high, rate * seconds, seconds, latency) > 1.0 - share:
        low, high = high + 1, 2 * high
        if high > 2 * MOST:
            return -1
    while low < high:
        middle = (low + high) // 2
        if late(middle, rate * seconds, seconds, latency) > 1.0 - share:
            low = middle + 1
        else:
            high = middle
    return high
