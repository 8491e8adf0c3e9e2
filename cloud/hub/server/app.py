"""Requests of devices over HTTP, and what all requests share: limits, bodies, errors.

    POST /v1/enrol       Enrolment -> 201 Enrolled
    POST /v1/session     Greeting without an answer -> 200 Challenge; with one -> 200 Session
    POST /v1/check-in    Report -> 200 Reply; ?wait=SECONDS: later, when there is news
    POST /v1/telemetry   Batch, gzip or not -> 204
    GET  /repository/…   a file, or the bytes that Range asks for
    GET  /v1/health      200 when the hub works, 503 while its database does not

Devices prove themselves by "Authorization: Bearer TOKEN" of their session, people by that of theirs. Errors are
{"error": TEXT}; 429 and 503 have Retry-After.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import zlib
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, IPv6Network

from aiohttp import web

from cloud.hub.database.tokens import Token
from cloud.hub.errors import DatabaseError, HubError, StorageError
from cloud.hub.server.fleet import Known
from cloud.hub.server.hub import Busy, Hub, Refused
from cloud.hub.server.limits import Buckets
from cloud.hub.server.observing import Observer
from cloud.hub.server.sessions import ANSWER
from lite_runtime.updates import checkin, enrolment, telemetry
from lite_runtime.updates.fields import ProtocolError

__all__ = ["Devices", "Handler", "Only", "address_of", "answered", "bearer", "body_of", "error"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Only = Callable[..., Callable[[Callable[[web.Request, Token], Awaitable[web.StreamResponse]]], Handler]]
"""By scopes: makes a handler that people with a token of one of them reach."""
BODY = 30.0
"""Seconds in which a body has to arrive."""
WAIT = 60.0
"""Most seconds that a check-in waits for news."""
BUSY = 5
"""Seconds after which whoever was told to come again does so."""
_FRESH = {"Cache-Control": "no-store"}
_TOLD = ("Allow", "Content-Range", "Retry-After")
"""Fields of an error that say more than its status."""


def error(status: int, text: str, again: float = 0.0) -> web.Response:
    """An answer that says what is wrong."""
    headers = {**_FRESH, "Retry-After": str(math.ceil(again))} if again else _FRESH
    return web.json_response({"error": text}, status=status, headers=headers)


def answered(message: bytes, status: int = 200) -> web.Response:
    """A message of `lite_runtime.updates` as an answer."""
    return web.Response(body=message, status=status, content_type="application/json", headers=_FRESH)


def bearer(request: web.Request) -> str:
    """The token in a request's header; "" without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def address_of(request: web.Request, proxies: tuple[str, ...]) -> str:
    """The client's address: the peer's, or what a trusted proxy says of it. Of an address of IPv6 the network: whoever
    has one has all 2^64 of it."""
    found = request.remote or ""
    if found in proxies and (said := request.headers.get("X-Forwarded-For")):
        found = said.rpartition(",")[2].strip()
    if ":" in found:
        with contextlib.suppress(ValueError):
            address = IPv6Address(found.partition("%")[0])
            return str(address.ipv4_mapped or IPv6Network((address, 64), strict=False))
    return found


async def body_of(request: web.Request, most: int) -> bytes:
    """A request's body, inflated if it says so. Raises Refused for more than `most` bytes, before or after."""
    if (request.content_length or 0) > most:
        raise Refused(413, f"expected a body of at most {most} bytes, got {request.content_length}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY):
            async for part in request.content.iter_any():
                size += len(part)
                if size > most:
                    raise Refused(413, f"expected a body of at most {most} bytes, got more")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"expected the body within {BODY:g} s") from None
    raw, coding = b"".join(parts), request.headers.get("Content-Encoding", "identity")
    if coding == "identity":
        return raw
    if coding != "gzip":
        raise Refused(415, f"expected a body as it is or gzip, got {coding[:40]!r}")
    stream = zlib.decompressobj(31)
    try:
        made = stream.decompress(raw, most + 1)
    except zlib.error as problem:
        raise Refused(400, f"expected gzip: {problem}") from None
    if len(made) > most:
        raise Refused(413, f"expected at most {most} bytes after inflating, got more")
    if not stream.eof or stream.unused_data:
        raise Refused(400, "expected one gzip stream, got one cut short, or bytes after its end")
    return made


class Devices:
    """What devices ask of a hub. observer: counts requests."""

    def __init__(self, hub: Hub, observer: Observer | None = None) -> None:
        self.hub, self.observer = hub, observer
        told = hub.settings
        self._visitors = Buckets(told.visitors, told.visitors * told.burst, time.monotonic)
        self._newcomers = Buckets(told.visitors / 20, told.visitors, time.monotonic)
        self._asks = Buckets(told.rate, told.rate * told.burst, time.monotonic)
        self._files = Buckets(told.files, told.files * told.burst, time.monotonic)

    def routes(self) -> list[web.RouteDef]:
        """The paths that devices ask for, without files."""
        return [
            web.post("/v1/enrol", self._enrol),
            web.post("/v1/session", self._session),
            web.post("/v1/check-in", self._check_in),
            web.post("/v1/telemetry", self._telemetry),
            web.get("/v1/health", self._health),
        ]

    @web.middleware
    async def outermost(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts requests, of an address too, and says errors as JSON."""
        began = time.monotonic()
        response = await self._answered(request, handler)
        if self.observer is not None:
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else "none"
            self.observer.request(path, response.status, time.monotonic() - began)
        return response

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if again := self._visitors.take(address_of(request, self.hub.settings.proxies)):
            return error(429, "too many requests from this address", again)
        try:
            return await handler(request)
        except web.HTTPException as found:
            made = error(found.status, found.reason)
            made.headers.update({name: found.headers[name] for name in _TOLD if name in found.headers})
            return made
        except Refused as found:
            return error(found.status, str(found))
        except ProtocolError as found:
            return error(400, str(found))
        except (Busy, DatabaseError, StorageError) as found:
            return error(503, str(found), BUSY)
        except HubError as found:
            return error(409, str(found))

    def device(self, request: web.Request) -> tuple[Known, float]:
        """Whose session a request is of, and for how many seconds it is still good. Raises Refused."""
        found = self.hub.sessions.device(bearer(request))
        if found is None:
            raise Refused(401, "expected the token of a session: POST /v1/session")
        known = self.hub.known(found[0])
        self._certified(request, known.id)
        return known, found[1]

    def _certified(self, request: web.Request, device: str) -> None:
        """Where devices must show certificates: it is this device's."""
        names = _shown(request) if self.hub.settings.clients else [device]
        if names != [device]:
            raise Refused(403, f"expected the certificate of device {device}, got {', '.join(names) or 'none'}")

    def files(self, request: web.Request) -> None:
        """Let a device read a file. Raises Refused, and HTTPTooManyRequests as `pace` does."""
        self.pace(self.device(request)[0])

    def pace(self, known: Known) -> None:
        """Let a device read a file, or have a request of a task. Raises HTTPTooManyRequests."""
        _paced(self._files.take(known.id))

    def asks(self, known: Known) -> None:
        """Let a device ask for something new. Raises HTTPTooManyRequests."""
        _paced(self._asks.take(known.id))

    async def _enrol(self, request: web.Request) -> web.StreamResponse:
        if again := self._newcomers.take(address_of(request, self.hub.settings.proxies)):
            return error(429, "too many enrolments from this address", again)
        asked = enrolment.read_enrolment(await body_of(request, enrolment.MAX_BYTES))
        return answered(enrolment.written(await self.hub.enrol(asked)), 201)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        asked = enrolment.read_greeting(await body_of(request, enrolment.MAX_BYTES))
        if again := self._asks.take(f"session {asked.device}"):
            return error(429, "too many sessions of this device", again)
        known = self.hub.known(asked.device)
        if asked.challenge:  # its signature says as much as a certificate of the same key
            bare = self.hub.settings.clients and _shown(request) != [known.id]
            return answered(enrolment.written(await self.hub.greet(asked, bare)))
        return answered(enrolment.written(enrolment.Challenge(self.hub.sessions.challenge(known.id), ANSWER)))

    async def _check_in(self, request: web.Request) -> web.StreamResponse:
        known, left = self.device(request)
        if again := self._asks.take(known.id):
            return error(429, "this device checks in too often", again)
        words = request.query.get("wait", "0")
        try:
            wait = float(words)
        except ValueError:
            wait = math.nan
        if not math.isfinite(wait):  # the loop's timers would lose their order by a time that is no number
            return error(400, f"expected wait=SECONDS, got {words[:40]!r}")
        wait = min(max(wait, 0.0), WAIT)
        told = checkin.read_report(await body_of(request, checkin.MAX_BYTES))
        return answered(checkin.written(await self.hub.check_in(known, told, wait, left)))

    async def _telemetry(self, request: web.Request) -> web.StreamResponse:
        known, _ = self.device(request)
        await self.hub.told(known, telemetry.read_batch(await body_of(request, telemetry.MAX_BYTES)))
        return web.Response(status=204)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        if not self.hub.works:
            raise Busy("the database cannot be used now, or the hub stops")
        return web.json_response({"hub": self.hub.id, "time": self.hub.clock()}, headers=_FRESH)


def _paced(again: float) -> None:
    if again:
        raise web.HTTPTooManyRequests(headers={"Retry-After": str(math.ceil(again))})


def _shown(request: web.Request) -> list[str]:
    """The names in the certificate that a client has shown; TLS has checked who signed it."""
    shown = request.transport.get_extra_info("peercert") if request.transport is not None else None
    return [text for part in (shown or {}).get("subject", ()) for kind, text in part if kind == "commonName"]
