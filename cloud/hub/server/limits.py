"""How often somebody may ask: token buckets, for a bounded number of names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Buckets"]

_MOST = 100_000
"""Names that are remembered; the one that asked least lately is forgotten, and has a full bucket again."""


class Buckets:
    """Each name may ask `rate` times a second, and save up `most` times."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float], names: int = _MOST) -> None:
        self._rate, self._most, self._clock, self._names = rate, max(most, 1.0), clock, names
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, name: str, count: float = 1.0) -> float:
        """0.0 if the name may ask, which is then counted; else the seconds until it may."""
        now = self._clock()
        left, then = self._left.pop(name, (self._most, now))
        left = min(self._most, left + max(now - then, 0.0) * self._rate)  # a clock that was set back takes nothing
        lacking = count - left
        self._left[name] = (left if lacking > 0 else left - count, now)
        if len(self._left) > self._names:
            self._left.popitem(last=False)
        return lacking / self._rate if lacking > 0 else 0.0

    def __len__(self) -> int:
        return len(self._left)
