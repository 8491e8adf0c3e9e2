"""Which models make room: the longest unused ones that nobody waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Resident", "victims"]


class Resident(NamedTuple):
    """A loaded model. `used`: when a request last came for it, in seconds; `free`: whether it may go now."""

    name: str
    nbytes: int
    used: float
    free: bool


def victims(residents: Iterable[Resident], cap: int, wanted: int) -> list[str] | None:
    """Whom to unload so that `wanted` more bytes fit under `cap`, longest unused first, no more than it takes; None
    where all that may go would not make room enough."""
    everybody = list(residents)
    excess = sum(r.nbytes for r in everybody) + wanted - cap
    gone: list[str] = []
    for resident in sorted((r for r in everybody if r.free), key=lambda r: (r.used, r.name)):
        if excess <= 0:
            break
        gone.append(resident.name)
        excess -= resident.nbytes
    return gone if excess <= 0 else None
