"""Reading sources of models, each on a thread of its own, so that a slow one delays neither the others nor the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NamedTuple

from edge.gateway.apart import Workers
from edge.gateway.errors import GatewayError
from edge.gateway.sources.listing import Listing, Source

__all__ = ["SourceState", "Watch"]

Scan = Mapping[str, Listing]


class SourceState(NamedTuple):
    """A place that the gateway reads, as metrics and the status page show it.

    name: a path or an address, without secrets. state: "ok"; "stale": what was read before is used, for `reason`;
    "unread": it is being read for the first time; "unreachable": it could not be read yet, for `reason`. age: seconds
    since it was last read.
    """

    name: str
    state: str
    age: float
    reason: str


class Watch:
    """One source, and its last listings. All methods are called on the event loop's thread."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: Scan | None = None
        """The last listings; None if it was never read."""
        self.error: GatewayError | None = None
        """Why the last scan failed."""
        self._read = time.time()
        self._worker = Workers("msedge-source", 1)
        self._scanning: asyncio.Future[Scan] | None = None

    async def look(self, seconds: float | None) -> None:
        """Scan the source, or join the scan that is running; returns after `seconds` even if it has not finished (None:
        waits). A scan that finishes later sets `found` all the same."""
        if self._scanning is None:
            self._scanning = asyncio.wrap_future(self._worker.submit(self.source.scan))
            self._scanning.add_done_callback(self._scanned)
        await asyncio.wait([self._scanning], timeout=seconds)

    @property
    def state(self) -> SourceState:
        """Its present state."""
        source = self.source
        reason = str(self.error) if self.error is not None else source.problem
        if self.found is None:
            state = "unreachable" if reason else "unread"
            return SourceState(source.name, state, time.time() - self._read, reason or "it is being read")
        return SourceState(source.name, "stale" if reason else "ok", time.time() - (source.read or self._read), reason)

    def _scanned(self, done: asyncio.Future[Scan]) -> None:
        self._scanning = None
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.found, self.error, self._read = done.result(), None, time.time()
        else:
            self.error = error if isinstance(error, GatewayError) else GatewayError(500, repr(error))
