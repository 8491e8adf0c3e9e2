"""Which devices have personal versions, according to the store; it is read every few seconds, never for a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from federated.errors import FederatedError
from federated.server.store import PersonalStore, Version

__all__ = ["Stamp", "Versions"]

Tell = Callable[[str, Mapping[str, Any]], None]
"""A callback for events: their name and facts."""
Stamp = tuple[int, float]
"""A version's number and when it was made: a device that was removed and registers again starts with number 1."""


class Versions:
    """The newest version by device.

    A withdrawn version is served for at most `refresh` seconds more. While the store cannot be read, no version is
    known to be valid, and all requests are answered by the common model.
    """

    def __init__(self, store: PersonalStore, *, refresh: float = 5.0, tell: Tell = lambda event, facts: None) -> None:
        self._store, self._refresh, self._tell = store, refresh, tell
        self.newest: Mapping[str, Stamp] = {}
        """By device; the whole mapping is replaced each time the store is read."""

    def look(self) -> None:
        """Read the store's index; on any thread but the event loop's."""
        try:
            self.newest = self._store.stamps()
        except FederatedError as error:
            self.newest = {}
            self._tell("personal_store_unreadable", {"error": str(error)})

    def load(self, device: str) -> Version | None:
        """The version for a device's requests; None if there is none that may be served. On any thread but the event
        loop's. Raises FederatedError for a store that cannot be read."""
        return self._store.get(device, serving=True)

    async def watch(self) -> None:
        """Read the store periodically until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(self._refresh)
