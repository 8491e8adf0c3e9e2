"""What a verified client may do, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from typing import NamedTuple

from edge.gateway.errors import GatewayError

__all__ = ["ANYBODY", "Grant", "Quotas", "matches"]


class Grant(NamedTuple):
    """What a verified client may do, until `end` (seconds since 1970). models, devices: patterns: `tokens.Token`."""

    name: str
    scopes: frozenset[str]
    end: float
    models: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = ()
    rate: float | None = None

    def demand_model(self, model: str) -> None:
        """Raise GatewayError (403) for a model that the grant does not name, whether it exists or not."""
        if self.models != ("*",) and not matches(model, self.models):
            raise GatewayError(403, f"{self.name!r} may not use model {model!r:.80}")

    def demand_all(self) -> None:
        """Raise GatewayError (403) for a grant of some models, where a change concerns all of them."""
        if self.models != ("*",):
            raise GatewayError(403, f"{self.name!r} may use some models only, and this setting is that of all")

    def demand_device(self, device: str) -> None:
        """Raise GatewayError (403) for a device that the grant does not name, whether it exists or not."""
        if not matches(device, self.devices):
            raise GatewayError(403, f"{self.name!r} may not ask as device {device!r:.80}; `msedge token add --device`"
                               " says which devices a token stands for")  # fmt: skip


ANYBODY = Grant("anybody", frozenset(), inf, ("*",), ("*",))
"""A client of a gateway, or of an operation, that asks nobody who they are."""


@lru_cache(maxsize=65536)
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns (with * and ?) is that of a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Quotas:
    """Requests per second by client: a client may save up one second's requests, or at least one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By name: requests left, and when."""

    def take(self, grant: Grant) -> None:
        """Count a request. Raises GatewayError (429) if there are too many."""
        if grant.rate is None:
            return
        now, most = self._clock(), max(1.0, grant.rate)
        left, then = self._left.get(grant.name, (most, now))
        left = min(most, left + (now - then) * grant.rate)
        if left < 1:
            self._left[grant.name] = left, now
            raise GatewayError(429, f"{grant.name!r} may send {grant.rate:g} requests per second",
                               retry_after=(1 - left) / grant.rate)  # fmt: skip
        self._left[grant.name] = left - 1, now
