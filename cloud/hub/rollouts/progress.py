"""How far a rollout came, and when: curves of its members and of their verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Curves", "curves"]


class Curves(NamedTuple):
    """times: seconds since 1970, evenly spaced. members, good, bad: how many there were at each of them."""

    times: Sequence[float]
    members: Sequence[int]
    good: Sequence[int]
    bad: Sequence[int]


def curves(events: Iterable[tuple[float, str, str]], start: float, end: float, points: int = 120) -> Curves:
    """Curves from `start` to `end`. events: time, device and its verdict, "" when it joins, in order."""
    step = max(end - start, 1e-3) / (points - 1)
    times = [start + step * i for i in range(points)]
    last: dict[str, str] = {}
    counts = {"": 0, "good": 0, "bad": 0, "neutral": 0}
    rows: list[tuple[int, int, int]] = []
    for time, device, verdict in events:
        while len(rows) < points and time > times[len(rows)]:
            rows.append((len(last), counts["good"], counts["bad"]))
        if device in last:
            counts[last[device]] -= 1
        counts[verdict] += 1
        last[device] = verdict
    rows += [(len(last), counts["good"], counts["bad"])] * (points - len(rows))
    members, good, bad = zip(*rows, strict=True)
    return Curves(times, members, good, bad)
