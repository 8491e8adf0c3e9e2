"""Which devices have personal versions, according to the store; it is read every few seconds, never for a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from edge.gateway.errors import GatewayError
from federated.errors import FederatedError
from federated.server.store import PersonalReader, Version

__all__ = ["Stamp", "Versions"]

Tell = Callable[[str, Mapping[str, Any]], None]
"""A callback for events: their name and facts."""
Stamp = tuple[int, float]
"""A version's number and when it was made: a device that was removed and registers again starts with number 1."""


class Versions:
    """The newest version by device.

    A withdrawn version is served for at most `refresh` seconds more. While the store cannot be read, no version is
    known to be valid: requests that name a device are refused, `problem` says why, and `tell` is called once.
    """

    def __init__(self, store: PersonalReader, *, refresh: float = 5.0, tell: Tell = lambda event, facts: None) -> None:
        self._store, self._refresh, self._tell = store, refresh, tell
        self.newest: Mapping[str, Stamp] = {}
        """By device; the whole mapping is replaced each time the store is read."""
        self.problem = ""
        """Why the store could not be read the last time; "" if it could."""
        self.read = time.time()
        """When it was last read, in seconds since 1970."""

    def look(self) -> None:
        """Read the store's index; on any thread but the event loop's."""
        try:
            self.newest, self.read = self._store.stamps(), time.time()
        except FederatedError as error:
            if not self.problem:
                self._tell("personal versions cannot be read", {"reason": str(error)})
            self.problem = str(error)
        else:
            if self.problem:
                self._tell("personal versions can be read again", {"devices": len(self.newest)})
            self.problem = ""

    def demand(self) -> None:
        """Raise GatewayError (503) while the store cannot be read."""
        if self.problem:
            raise unreadable(self._refresh)

    def load(self, device: str) -> Version | None:
        """The version for a device's requests; None if there is none that may be served. On any thread but the event
        loop's. Raises GatewayError (503) for a store, or a version, that cannot be read."""
        try:
            return self._store.get(device, serving=True)
        except FederatedError as error:
            self._tell("a personal version cannot be read", {"device": device, "reason": str(error)})
            raise unreadable(self._refresh) from error

    async def watch(self) -> None:
        """Read the store periodically until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(self._refresh)


def unreadable(seconds: float) -> GatewayError:
    """What clients are told: the reason, which names files of the server, goes to the log and to `/status`."""
    text = "personal versions cannot be read at present; leave the device out to ask the common model"
    return GatewayError(503, text, retry_after=seconds)
