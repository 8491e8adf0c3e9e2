"""Reading messages of calls. Until a message is whole, gRPC's library holds its bytes, outside the gateway's memory
budget and of unknown number: when the process runs short of memory, calls whose message has not come for a while give
way, those that wait for a stream's next message among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Any

import grpc

from edge.gateway.errors import GatewayError

__all__ = ["Reads", "receive"]

GRACE = 0.2
"""Seconds that a message may take in any case."""
LOOK = 0.02
"""Seconds between looks at the memory: clients on a fast network fill a hundred MiB in five times as long."""


async def receive(context: Any, seconds: float) -> bytes | None:
    """The next message of a call; None if the client sends no more. Raises GatewayError (408) if it takes longer than
    `seconds`."""
    return await Reads(lambda: False).next(context, seconds)


class Reads:
    """Reads in progress. short: whether the process is short of memory; free: returns freed memory to the system, on
    any thread. `watch` is a task of the server."""

    def __init__(self, short: Callable[[], bool], free: Callable[[], object] = lambda: None) -> None:
        self._short, self._free = short, free
        self._open: dict[asyncio.Timeout, float] = {}
        """Since when, oldest first."""
        self.evicted = 0
        """Calls that gave way."""

    async def next(self, context: Any, seconds: float) -> bytes | None:
        """As `receive`; seconds may be infinite. Raises GatewayError (503) for a call that gives way."""
        now, limit = asyncio.get_running_loop().time(), asyncio.timeout(seconds if isfinite(seconds) else None)
        try:
            async with limit:
                self._open[limit] = now
                found = await context.read()
        except TimeoutError:
            if limit not in self._open:
                raise GatewayError(503, "the server is short of memory, and no message came for a while; try again",
                                   retry_after=1.0) from None  # fmt: skip
            raise GatewayError(408, f"the message was not received within {seconds:g} s") from None
        finally:
            self._open.pop(limit, None)
        return None if found is grpc.aio.EOF else found

    async def watch(self) -> None:
        """Let calls give way, for ever."""
        while True:
            await asyncio.sleep(LOOK)
            if self._open and self._short() and self.relieve():
                await asyncio.sleep(LOOK)  # in which the library drops what had come
                await asyncio.to_thread(self._free)

    def relieve(self) -> int:
        """Let calls give way; returns how many did."""
        now = asyncio.get_running_loop().time()
        late = [limit for limit, since in self._open.items() if now - since > GRACE]
        for limit in late:
            del self._open[limit]
            limit.reschedule(now)
        self.evicted += len(late)
        return len(late)
