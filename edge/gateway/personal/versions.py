"""Which devices have versions of their own, as the store says it: looked at every few seconds, never for a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from federated.errors import FederatedError
from federated.server.store import PersonalStore, Version

__all__ = ["Stamp", "Versions"]

Tell = Callable[[str, Mapping[str, Any]], None]
"""Told of what happens: an event's name and its facts."""
Stamp = tuple[int, float]
"""A version's number and when it was made: a device that was forgotten and comes again begins with number 1."""


class Versions:
    """The newest version by device.

    What a device withdraws is served for `refresh` seconds more at most: while the store cannot be read, nothing of it
    is known to be anybody's, and everybody is answered by the model for all.
    """

    def __init__(self, store: PersonalStore, *, refresh: float = 5.0, tell: Tell = lambda event, facts: None) -> None:
        self._store, self._refresh, self._tell = store, refresh, tell
        self.newest: Mapping[str, Stamp] = {}
        """By device; replaced as a whole by every look."""

    def look(self) -> None:
        """Read the store's index; on any thread but the event loop's."""
        try:
            self.newest = self._store.stamps()
        except FederatedError as error:
            self.newest = {}
            self._tell("personal_store_unreadable", {"error": str(error)})

    def load(self, device: str) -> Version | None:
        """The version to answer a device with; None where there is none that may be served. On any thread but the event
        loop's. Raises FederatedError for a store that cannot be read."""
        return self._store.get(device, serving=True)

    async def watch(self) -> None:
        """Look again and again; runs until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(self._refresh)
