"""Language and embedding models over HTTP: OpenAI's addresses, with replies as one object or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from edge.gateway.errors import GatewayError, told
from edge.gateway.exchange import Ask
from edge.gateway.gateway import Gateway
from edge.gateway.http.bodies import object_in
from edge.gateway.language.arrival import Arrival
from edge.gateway.language.asking import KINDS, Asking
from edge.gateway.language.embedding import Embedding
from edge.gateway.language.replies import error_of, event
from edge.gateway.operate.tls import certificate_name

__all__ = ["Texts"]

_EVENTS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""The last field keeps proxies from collecting events before they pass them on."""


_WAYS: Mapping[str, type[Arrival]] = {**dict.fromkeys(KINDS, Asking), "/v1/embeddings": Embedding}
"""By path: what answers a request."""


class Texts:
    """Handlers of aiohttp."""

    def __init__(self, gateway: Gateway, shared: Mapping[str, str]) -> None:
        """shared: header fields of every reply."""
        self._gateway, self._limits, self._shared = gateway, gateway.settings.limits, shared

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Of the addresses in `_WAYS`."""
        fields = {name.lower(): value for name, value in request.headers.items()}
        certificate = certificate_name(request.get_extra_info("peercert"))
        ask = Ask("", "", fields, memoryview(b""), request.remote or "", certificate)
        asking, status = _WAYS[request.path](self._gateway, ask, request.path), 499
        headers = {"X-Request-ID": asking.identity}
        stream: web.StreamResponse | None = None
        try:
            if getattr(request.protocol, "reserved", False):
                raise GatewayError(503, "the limit of open connections is reached", retry_after=1.0)
            self._gateway.admit_inference(ask)  # before any of the body is read
            await asking.begin(await self._body(request))
            if asking.stream:
                stream = web.StreamResponse(headers={**headers, **_EVENTS, **self._of_origin(request)})
                await self._streamed(request, stream, asking)
            else:
                reply = _json(await asking.whole(), 200, headers)
            status = 200
            return stream or reply
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # request: answered with this error
            status, text, retry = told(error)
            if status == 500 and not isinstance(error, GatewayError):
                self._gateway.bug(error, request.path, id=asking.identity)
            shown = error if isinstance(error, GatewayError) else GatewayError(status, text, retry_after=retry)
            if stream is not None and stream.prepared:
                await stream.write(event(error_of(shown)))
                await stream.write_eof()
                return stream
            return _refusal(shown, headers)
        finally:
            asking.end(status)

    async def _streamed(self, request: web.Request, reply: web.StreamResponse, asking: Arrival) -> None:
        await reply.prepare(request)
        async for data in asking.events():
            await reply.write(data)
        await reply.write_eof()

    async def _body(self, request: web.Request) -> dict[str, Any]:
        limits = self._limits
        with self._gateway.room.enter(request.remote or "", limits.body_seconds) as held:
            return await object_in(request, limits.body, limits.body_seconds, held)

    def _of_origin(self, request: web.Request) -> dict[str, str]:
        """Header fields of a stream, which cannot be added later."""
        given = request.headers.get("Origin")
        origin = self._gateway.allowed_origin(given)
        allowed = {"Access-Control-Allow-Origin": origin} if origin is not None else {}
        return {**self._shared, **({"Vary": "Origin"} if given else {}), **allowed}


def _json(found: Any, status: int, headers: Mapping[str, str]) -> web.Response:
    return web.Response(body=orjson.dumps(found), status=status, content_type="application/json", headers=headers)


def _refusal(error: GatewayError, headers: dict[str, str]) -> web.Response:
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="msedge"'
    return _json(error_of(error), error.status, headers)
