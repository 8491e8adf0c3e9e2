"""Which models to unload to free memory: the least recently used ones without requests. Pure function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Resident", "victims"]


class Resident(NamedTuple):
    """A loaded model. `used`: time of its last request, in seconds; `free`: whether it may be unloaded now."""

    name: str
    nbytes: int
    used: float
    free: bool


def victims(residents: Iterable[Resident], cap: int, wanted: int) -> list[str] | None:
    """The models to unload so that `wanted` more bytes fit under `cap`, least recently used first, as few as possible;
    None if unloading all that may be unloaded is not enough."""
    everybody = list(residents)
    excess = sum(r.nbytes for r in everybody) + wanted - cap
    gone: list[str] = []
    for resident in sorted((r for r in everybody if r.free), key=lambda r: (r.used, r.name)):
        if excess <= 0:
            break
        gone.append(resident.name)
        excess -= resident.nbytes
    return gone if excess <= 0 else None
