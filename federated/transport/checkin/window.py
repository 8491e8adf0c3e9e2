"""What devices ask at a desk over HTTP: whatever server has found out who asks gives it the request and the name."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from federated.server.replies import Failure
from federated.transport.checkin.desk import MISSED, Desk, node_of
from lite_runtime.errors import MissingExtraError

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise MissingExtraError(error.name or "aiohttp", "serve", "devices check in at a server made with it") from error

__all__ = ["PATHS", "PROTOCOL", "WAIT", "Window", "refused"]

PROTOCOL = 1
WAIT = 30.0
"""The most seconds that a device waits for work in one request."""
_NOT_KEPT = {"Cache-Control": "no-store"}
_UNWANTED = "this reply is not wanted: the round is over, or another device has the ticket; ask for work again"
Asked = Callable[["Window", web.Request, str], Awaitable[web.StreamResponse]]


class Window:
    """A desk behind HTTP, on one event loop. heartbeat: seconds between two signs of life that devices are asked for.
    most: bytes of a reply."""

    def __init__(self, heartbeat: float, most: int) -> None:
        self.heartbeat, self.most = heartbeat, most
        self.desk = Desk(MISSED * heartbeat, wake=self._wake)
        self.over = False
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: dict[int, asyncio.Event] = {}

    def end(self) -> None:
        """On the loop: the run is over, and those who wait are told."""
        self.over = True
        self._arrived.set()
        for woken in self._woken.values():
            woken.set()

    def begin(self) -> None:
        """On the loop that will answer."""
        self._loop = asyncio.get_running_loop()

    def _wake(self, node: int) -> None:
        """From any thread: there is work for a node."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: self._woken[node].set() if node in self._woken else None)

    async def news(self) -> None:
        """On the loop: when a reply arrives, or it is over. What arrived before is not waited for."""
        self._arrived.clear()
        await self._arrived.wait()

    async def check_in(self, request: web.Request, device: str) -> web.StreamResponse:
        """Who the device is, and what is asked of it."""
        facts = {"protocol": PROTOCOL, "device": device, "heartbeat": self.heartbeat, "most": self.most}
        return web.json_response(facts)

    async def heartbeat_of(self, request: web.Request, device: str) -> web.StreamResponse:
        """A sign of life."""
        return web.Response(status=204)

    async def work(self, request: web.Request, device: str) -> web.StreamResponse:
        """The message that waits for a device, when there is one."""
        node = node_of(device)
        try:
            wait = min(max(float(request.query.get("wait", "0")), 0.0), WAIT)
        except ValueError:
            return refused(400, f"expected wait=SECONDS, got {request.query['wait'][:40]!r}")
        async with self._waiting(node) as woken:
            found = self.desk.work(node)
            if found is None and wait and not self.over:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), wait)
                found = self.desk.work(node)
        self.desk.seen(node)
        if self.over:
            self.desk.left(node)
            return refused(410, "the run is over")
        if found is None:
            return web.Response(status=204)
        ticket, message = found
        return web.Response(
            body=message, content_type="application/octet-stream", headers={"Msedge-Ticket": ticket, **_NOT_KEPT}
        )

    @contextlib.asynccontextmanager
    async def _waiting(self, node: int) -> AsyncIterator[asyncio.Event]:
        """The event that is set when there is work. An earlier request of the same device gives up its own."""
        earlier = self._woken.get(node)
        if earlier is not None:
            earlier.set()
        woken = self._woken[node] = asyncio.Event()
        try:
            yield woken
        finally:
            if self._woken.get(node) is woken:
                del self._woken[node]

    async def reply(self, request: web.Request, device: str) -> web.StreamResponse:
        """A device's reply."""
        node, ticket = node_of(device), request.match_info["ticket"]
        if not self.desk.wants(node, ticket):  # before its bytes are read
            return refused(409, _UNWANTED)
        content = bytearray()
        async for part in request.content.iter_any():
            content += part
            if len(content) > self.most:
                return refused(413, f"expected a reply of at most {self.most} bytes, got more")
        return self._taken(node, ticket, bytes(content))

    async def failure(self, request: web.Request, device: str) -> web.StreamResponse:
        """Why a device has no reply."""
        content = await request.content.read(4096)
        try:
            why = str(json.loads(content)["why"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return refused(400, 'expected {"why": TEXT} of at most 4096 bytes')
        return self._taken(node_of(device), request.match_info["ticket"], Failure(why[:500]))

    def _taken(self, node: int, ticket: str, reply: bytes | Failure) -> web.StreamResponse:
        self.desk.seen(node)
        if not self.desk.reply(node, ticket, reply):
            return refused(409, _UNWANTED)
        self._arrived.set()
        return web.Response(status=204)


PATHS: Mapping[tuple[str, str], Asked] = {
    ("POST", "/check-in"): Window.check_in,
    ("GET", "/work"): Window.work,
    ("POST", "/work/{ticket}"): Window.reply,
    ("POST", "/work/{ticket}/failure"): Window.failure,
    ("POST", "/heartbeat"): Window.heartbeat_of,
}
"""By method and path, below an address that the server chooses: who answers."""


def refused(status: int, text: str) -> web.Response:
    """An error as JSON."""
    return web.json_response({"error": text}, status=status, headers=_NOT_KEPT)
