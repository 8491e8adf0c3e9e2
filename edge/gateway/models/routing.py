"""Routing: which version answers a request. Pure functions of the loaded versions.

A request may name a version in its path, or a label, in a header or in place of the version. A request with neither is
routed by the split; without a split, to the version labelled `stable`; without that label, to the newest version.
Labels are strict: if the version labelled `stable` is not loaded, no other version replaces it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import accumulate
from typing import NamedTuple

from edge.gateway.models.config import ModelConfig, Policy
from edge.gateway.models.names import version_of

__all__ = ["STABLE", "Plan", "Split", "dealt", "default", "labelled", "plan", "point_of"]

STABLE = "stable"
_GOLDEN = 0.6180339887498949
"""The fraction of the golden ratio: multiples of it, modulo 1, are spread more evenly than those of any other number,
so that of n requests without ids every version gets its share to within O(log n) requests (Knuth 6.4, theorem S)."""


class Plan(NamedTuple):
    """Versions to load, in this order: those of `named` always, others until `enough` of them are loaded."""

    order: tuple[int, ...]
    named: frozenset[int]
    enough: int


def plan(policy: Policy, there: Iterable[int], named: Iterable[int] = ()) -> Plan:
    """Which of the existing versions to load.

    named: versions that labels, split or shadow name. With the policy `latest`, an older version replaces each one that
    cannot be loaded.
    """
    found = set(there)
    if policy.kind == "specific":
        chosen = frozenset({*named, *policy.chosen})
        return Plan(tuple(sorted(chosen, reverse=True)), chosen, 0)
    asked, enough = frozenset(named), policy.latest if policy.kind == "latest" else len(found)
    return Plan(tuple(sorted(found | asked, reverse=True)), asked, enough)


def labelled(config: ModelConfig, loaded: Iterable[int]) -> dict[str, int]:
    """Label → version, for labels whose version is loaded."""
    there = set(loaded)
    if not there:
        return {}
    newest = max(there)
    found = {label: newest if version == "latest" else version for label, version in config.labels.items()}
    return {label: version for label, version in found.items() if version in there}


def default(config: ModelConfig, labels: Mapping[str, int], loaded: Iterable[int]) -> int | None:
    """The version for requests that name none, if there is no split; None if it is not loaded."""
    return labels.get(STABLE) if STABLE in config.labels else max(loaded, default=None)


def point_of(request_id: str) -> float:
    """A request id's point in [0, 1); the same in every process and at all times."""
    digest = blake2b(request_id.encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / (1 << 48)


class Split:
    """Shares of requests by version. Requests with the same id go to the same version; those without are distributed
    evenly.

    A larger weight of a version moves requests to it and, if it is the first or last one, none between other versions.
    """

    __slots__ = ("_bounds", "_last", "_next", "_versions", "shares")

    def __init__(self, weights: Mapping[int, float]) -> None:
        """weights: not negative, at least one above 0."""
        total = sum(weights.values())
        ordered = sorted((v, w / total) for v, w in weights.items() if w > 0)
        self.shares = dict(ordered)
        """Version → share of 1."""
        self._versions = [version for version, _ in ordered]
        self._bounds = list(accumulate(share for _, share in ordered))
        self._last = len(ordered) - 1
        self._next = 0.0

    @classmethod
    def of(cls, config: ModelConfig, labels: Mapping[str, int], loaded: Iterable[int]) -> Split | None:
        """The split among loaded versions; the default version gets the shares of the others. None without a split, or
        if the default version is needed and not loaded."""
        there, weights = set(loaded), dict[int, float]()
        fallback = default(config, labels, there)
        for name, weight in config.split.items():
            version = version_of(name) or labels.get(name)
            if version not in there:
                version = fallback
            if weight > 0:
                if version is None:
                    return None
                weights[version] = weights.get(version, 0.0) + weight
        return cls(weights) if weights else None

    def pick(self, request_id: str = "") -> int:
        """The version of a request."""
        if request_id:
            point = point_of(request_id)
        else:
            self._next = point = (self._next + _GOLDEN) % 1.0
        return self._versions[min(bisect_right(self._bounds, point), self._last)]


def dealt(fraction: float) -> Callable[[], bool]:
    """A function that returns true for that share of its calls, evenly: every k-th call for a share of 1/k."""
    owed = 0.0

    def due() -> bool:
        nonlocal owed
        owed += fraction
        if owed < 1.0:
            return False
        owed -= 1.0
        return True

    return due
