"""Which version of a model may have answered, and when: pure rules over the times of loading and unloading.

Versions are swapped one after the other: version v is written (with its configuration), then a load request is sent,
then it is answered. After writing starts, v may answer, because the server also polls the folder; after the reply to
the load request, it must. The newest version is `canary`, the previous one `stable`; older ones are unloaded.
"""

from __future__ import annotations

from math import inf

__all__ = ["Ledger"]

STABLE, CANARY = "stable", "canary"


class Ledger:
    """Times of one clock. `written[v]`: just before v was written; `loaded[v]`: when its load request was answered."""

    def __init__(self) -> None:
        self.written: dict[int, float] = {}
        self.loaded: dict[int, float] = {}

    @property
    def newest(self) -> int:
        """The last version that was written."""
        return max(self.written)

    def may(self, version: int, role: str, begin: float, end: float) -> bool:
        """Whether a request sent at `begin` and answered at `end` may have been answered by a version.

        role: what the request named: `stable`, `canary`, a version's number, or "" for the split between the first two.
        """
        if version not in self.written or (role.isdecimal() and int(role) != version):
            return False
        came = {STABLE: self.written.get(version + 1, inf)}.get(role, self.written[version])
        went = self.loaded.get(version + 1 if role == CANARY else version + 2, inf)
        return came <= end and begin <= went

    def must(self, version: int, begin: float, end: float) -> bool:
        """Whether a version could be requested by its number during the whole time."""
        return self.loaded.get(version, inf) <= begin and end <= self.written.get(version + 2, inf)

    def settled(self, begin: float, end: float) -> int | None:
        """The canary's version, if no version was swapped in that time."""
        for version in sorted(self.loaded, reverse=True):
            if self.loaded[version] <= begin:
                return version if end <= self.written.get(version + 1, inf) else None
        return None
