"""All addresses outside the fast path, as an aiohttp application: one handler per entry of `pages.operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import orjson
from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

from edge.gateway.access.grants import Grant, matches
from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask, Form
from edge.gateway.explaining import parameters_of
from edge.gateway.gateway import AUDITED, NO_CUDA, Gateway
from edge.gateway.http.bodies import object_in, read_body
from edge.gateway.http.compression import compressed
from edge.gateway.http.crowd import Crowd
from edge.gateway.http.texts import Texts
from edge.gateway.infer import DEVICE, LABEL
from edge.gateway.language.adapters import parted
from edge.gateway.models.entry import Asleep
from edge.gateway.operate.room import Held
from edge.gateway.operate.tls import certificate_name
from edge.gateway.pages.operations import OPERATIONS, REQUEST_HEADERS, Operation
from edge.gateway.pages.page import Page, explore_page, status_page
from edge.gateway.protocol.body import BODY
from edge.gateway.protocol.predict import Predict, document_of
from edge.gateway.sequences.registry import Key
from edge.gateway.sequences.stream import Stream
from edge.gateway.shared.regions import wish_of

__all__ = ["JsonHandler", "behind_http", "make_app"]

Handler = Callable[[Any], Awaitable[web.StreamResponse]]
_EXPOSED = "Inference-Header-Content-Length, Retry-After, X-Request-ID"
"""Header fields of replies that pages of allowed origins may read."""
LARGE = 256 << 10
"""Bytes of a reply that the loop's thread compresses itself: a few milliseconds' work."""
SERVER = "msedge"
"""The `Server` header; without a version, which would help only attackers who look for old versions."""
SMALL = 1 << 20
"""Most bytes of a request other than an inference."""
SLICE = 8 << 10
"""Bytes that aiohttp parses before the chunks in them are counted: 2 ms of work at most."""
CHUNKS, CRUMB = 1000, 32
"""Chunks that a body may have in any case; more must have this many bytes on average, with their sizes."""
_LATE_BODY = b'{"error":"the request exceeded limits.header_seconds"}'
_LATE = (
    b"HTTP/1.1 408 Request Timeout\r\nServer: msedge\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_LATE_BODY), _LATE_BODY)
)
_ADMITTING = ("infer", "predict", "completions", "chat_completions", "embeddings")
"""Handlers that check the client's access themselves, as the body may name the model, or refusals have another form."""
_GRANT: ContextVar[Grant] = ContextVar("grant")
"""What the client of the present request may do."""
_REASONS = {405: "the method {method} is not allowed at this address", 404: "there is no resource at {path}"}


def make_app(gateway: Gateway) -> web.Application:
    """The application. Every error it answers with is `{"error": text}`."""
    app = web.Application(middlewares=[_errors(gateway)], client_max_size=0)
    made = _Handlers(gateway)
    for operation in OPERATIONS:
        handler = made.guarded(operation)
        for path in operation.paths:
            app.router.add_route(operation.method.upper(), path, handler)
            if operation.method == "get":
                app.router.add_route("HEAD", path, handler)
    return app


def _json(found: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(found), status=status, content_type="application/json", headers=headers)


def refusal(error: GatewayError) -> web.Response:
    """The reply for an error."""
    headers = {"Retry-After": str(max(1, round(error.retry_after)))} if error.retry_after is not None else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="msedge"'
    return _json({"error": str(error)}, error.status, headers)


class JsonHandler(RequestHandler):
    """aiohttp's connection, with HTTP errors as JSON, and with limits for clients that are slow or send crumbs."""

    def __init__(self, *given: Any, crowd: Crowd, **words: Any) -> None:
        super().__init__(*given, **words)
        self._crowd = crowd
        self.peer, self.served, self.reserved = "", 0, False
        self.ended = False
        """Whether the connection must be closed after the current reply."""
        self._left, self._age = 0, 0.0
        """Bytes waiting for the client to read them, and seconds since they last became fewer."""
        self._partial: float | None = None
        """Since when a part of a head has been there, by the loop's clock."""
        self._chunks = self._came = 0
        """Of the current body: chunks, and bytes on the wire."""
        self._latest: Any = None
        """The body of the last request."""
        self._replies, self._closing = 0, False
        """Requests that were answered, and whether the last one asked for the connection to be closed."""

    @property
    def idle(self) -> bool:
        """See `crowd.Member`."""
        return self._request_count == self._replies and not self.unsent

    @property
    def unsent(self) -> int:
        """Bytes of replies that the client has not taken."""
        transport = self.transport
        return transport.get_write_buffer_size() if isinstance(transport, asyncio.WriteTransport) else 0

    def dismiss(self) -> None:
        """See `crowd.Member`."""
        if self.transport is not None:
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        self._crowd.leave(self)
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio allows it
        """As `Lane.eof_received`."""
        transport = self.transport
        whole = self._latest is not None and self._latest.is_eof()
        self.ended = whole and self._closing and self._request_count > self._replies
        return self.ended and transport is not None and transport.get_extra_info("sslcontext") is None

    def data_received(self, data: bytes) -> None:
        """Parse a little at a time, as a body in chunks of one byte costs a hundred times as much as others."""
        for at in range(0, len(data) or 1, SLICE):
            payload = self._payload()
            before = _chunks_of(payload)
            super().data_received(data[at : at + SLICE])
            if payload is None or payload is not self._payload():
                self._chunks = self._came = 0
                payload, before = self._payload(), 0
            self._chunks += _chunks_of(payload) - before
            self._came += len(data[at : at + SLICE])
            if self._chunks > CHUNKS and self._chunks * CRUMB > self._came and payload is not None:
                payload.set_exception(web.RequestPayloadError(f"expected chunks of {CRUMB} bytes and more on average"))
                self.ended = True
                self._drop_input()
                break
        if self._messages:
            message, self._latest = self._messages[-1]
            self._closing = bool(getattr(message, "should_close", False))
        if self._request_count > self._replies:
            self._partial = None
        elif data and self._partial is None:
            self._partial = asyncio.get_running_loop().time()

    def _payload(self) -> Any:
        """The body that is being received, or the last one."""
        if self._messages:
            return self._messages[-1][1]
        return self._current_request.content if self._current_request is not None else None

    def _drop_input(self) -> None:
        if isinstance(self.transport, asyncio.ReadTransport):
            self.transport.pause_reading()

    def sweep(self, seconds: float, patience: float, header_seconds: float) -> None:
        """Close the connection if the client has read nothing for more than `patience`, or has not completed a head
        within `header_seconds`; called every `seconds`."""
        transport = self.transport
        if not isinstance(transport, asyncio.WriteTransport):
            return
        left = transport.get_write_buffer_size()
        self._age = self._age + seconds if left and left == self._left else 0.0
        self._left = left
        if self._age > patience:
            transport.abort()
        elif self._partial is not None and asyncio.get_running_loop().time() - self._partial > header_seconds:
            transport.write(_LATE)
            transport.close()

    def answered(self) -> None:
        """A request is about to be answered."""
        self.served, self._replies = self.served + 1, self._replies + 1
        self._crowd.answered(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The reply to a request that could not be parsed."""
        if request.writer.output_size > 0:
            raise ConnectionError("the reply has already begun")
        text = "internal server error" if status >= 500 else f"expected HTTP/1.1, got: {_first_line(message)}"
        reply = _json({"error": text}, status, {"Server": SERVER})
        reply.force_close()
        return reply


def _chunks_of(payload: Any) -> int:
    """The chunks of a body that nobody has read yet; 0 if it is not chunked."""
    return len(getattr(payload, "_http_chunk_splits", None) or ())


def _first_line(message: str | None) -> str:
    return "".join(c for c in (message or "").partition("\n")[0] if c.isprintable())[:120]


def _errors(gateway: Gateway) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            origin = gateway.allowed_origin(request.headers.get("Origin"))
            if origin is not None and request.method == "OPTIONS":
                return _preflight(origin)
            reply = await handler(request)
        except GatewayError as error:
            reply = refusal(error)
        except web.HTTPException as error:
            text = _REASONS.get(error.status, error.reason or "").format(method=request.method, path=request.path)
            reply = _json({"error": text}, error.status)
            if "Allow" in error.headers:
                reply.headers["Allow"] = error.headers["Allow"]
        except asyncio.CancelledError:
            raise
        except Exception as error:  # request: answered with 500, logged
            gateway.bug(error, f"{request.method} {request.path}")
            reply = _json({"error": "internal server error; the gateway's log has the details"}, 500)
        if request.headers.get("Origin") and not reply.prepared:
            reply.headers["Vary"] = "Origin"
            if origin is not None:
                reply.headers["Access-Control-Allow-Origin"] = origin
                reply.headers["Access-Control-Expose-Headers"] = _EXPOSED
        protocol = request.protocol
        if isinstance(protocol, JsonHandler):
            protocol.answered()
        if gateway.leaving or (isinstance(protocol, JsonHandler) and protocol.ended):
            reply.force_close()
        if not reply.prepared:
            reply.headers["Server"] = SERVER
        return reply

    return middleware


def behind_http(gateway: Gateway, handler: Handler) -> Handler:
    """aiohttp's handler of all requests, with our replies for what aiohttp would answer before any middleware."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        version, expected = request._version, request.headers.get("Expect")
        if version not in (HttpVersion10, HttpVersion11):
            request._version = HttpVersion11  # repeated in the first line of the reply
            reply = _json({"error": f"expected HTTP/1.1, got HTTP/{version.major}.{version.minor}"}, 505)
        elif version == HttpVersion10 and "Transfer-Encoding" in request.headers:
            reply = _json({"error": "Transfer-Encoding: expected HTTP/1.1, got HTTP/1.0"}, 400)
        elif expected is not None and expected.strip().lower() != "100-continue":
            reply = _json({"error": f"Expect: expected 100-continue, got {expected[:40]!a}"}, 417)
        else:
            try:
                return await handler(request)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # request: answered with 500, logged
                gateway.bug(error, f"{request.method!a:.20} {request.path!a:.200}")
                reply = _json({"error": "internal server error; the gateway's log has the details"}, 500)
        reply.headers["Server"] = SERVER
        reply.force_close()
        return reply

    return handle


def _preflight(origin: str) -> web.Response:
    allowed = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, PUT",
        "Access-Control-Allow-Headers": ", ".join(("Authorization", "Content-Type", *REQUEST_HEADERS)),
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }
    return web.Response(status=204, headers=allowed)


class _Handlers:
    """One method per operation, with its name in lower case and underscores."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._limits = gateway, gateway.settings.limits
        texts = Texts(gateway, {"Server": SERVER, "Access-Control-Expose-Headers": _EXPOSED})
        self.completions = self.chat_completions = self.embeddings = texts.answer

    def guarded(self, operation: Operation) -> Handler:
        """The operation's method, after a check of the client's access."""
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in operation.name)
        method: Handler = getattr(self, name)
        if name in _ADMITTING or not operation.scope:
            return method

        async def handler(request: web.Request) -> web.StreamResponse:
            model, what = request.match_info.get("name", ""), f"{request.method} {request.path}"
            grant = self._gateway.admit(request.headers, request.remote or "", operation.scope, model, what)
            _GRANT.set(grant)
            if operation.scope in AUDITED:
                region = request.match_info.get("region")
                about = {"model": model} if region is None else {"region": region}
                async with self._gateway.audited(operation.name, about, grant.name, self._peer(request)):
                    return await method(request)
            return await method(request)

        return handler

    async def infer(self, request: web.Request) -> web.StreamResponse:
        return await self._admitted(request, BODY)

    async def predict(self, request: web.Request) -> web.StreamResponse:
        if "Inference-Header-Content-Length" in request.headers:
            raise GatewayError(400, "Inference-Header-Content-Length: expected none, as /v1 has no binary data")
        return await self._admitted(request, Predict())

    async def explain(self, request: web.Request) -> web.Response:
        gateway = self._gateway
        try:
            if not gateway.settings.explaining.rows:
                raise GatewayError(501, "explanations are turned off here (explaining.rows)")
            if request.headers.get(DEVICE):
                raise GatewayError(400, "explain: personal versions are not explained; omit the device")
            with self._held(request) as held:
                body = memoryview(await read_body(request, self._limits.body, self._limits.body_seconds, held))
                document = await gateway.aside(document_of, body)
                async with gateway.held(*_named(request), request.headers.get(LABEL, "")) as served:
                    asked = await gateway.aside(partial(Predict().request, document), served.ports_for)
                    found = await gateway.explainer.explain(served, asked, parameters_of(document))
            payload = await gateway.aside(orjson.dumps, {"explanations": found})
            if len(payload) > self._limits.reply:
                raise GatewayError(413, f"the reply is larger than {self._limits.reply} bytes; ask for fewer rows")
            return web.Response(body=payload, content_type="application/json")
        except GatewayError as error:
            gateway.statistics.refused["explain", error.status] += 1
            raise

    async def _admitted(self, request: web.Request, form: Form) -> web.StreamResponse:
        """The reply to an inference request whose body has this form."""
        if getattr(request.protocol, "reserved", False):
            raise GatewayError(503, "the limit of open connections is reached", retry_after=1.0)
        fields = {name.lower(): value for name, value in request.headers.items()}
        certificate = certificate_name(request.get_extra_info("peercert"))
        empty = Ask(*_named(request), fields, memoryview(b""), request.remote or "", certificate, form)
        refusal = self._gateway.greet(empty)  # before any of the body is read
        if refusal is not None:
            return _response(refusal)
        with self._held(request) as held:
            return await self._infer(request, held, empty)

    def _held(self, request: web.Request) -> Held:
        """The share of the memory budget for a request's body."""
        return self._gateway.room.enter(request.remote or "", self._limits.body_seconds)

    def _peer(self, request: web.Request) -> str:
        """The client's address."""
        forwarded = request.headers.get("X-Forwarded-For") or request.headers.get("Forwarded")
        return self._gateway.peers.of(request.remote or "", forwarded)

    async def _infer(self, request: web.Request, held: Held, empty: Ask) -> web.StreamResponse:
        body = await read_body(request, self._limits.body, self._limits.body_seconds, held)
        ask = empty._replace(body=memoryview(body))
        found: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        cancel = self._gateway.infer(ask, partial(_settle, found))
        try:
            answer = await found
        except asyncio.CancelledError:
            cancel()
            raise
        coding, payload = "", b"".join(answer.parts)
        if answer.status == 200:
            pack = partial(compressed, accepted=request.headers.get("Accept-Encoding", ""))
            payload, coding = pack(payload) if len(payload) < LARGE else await self._gateway.aside(pack, payload)
        reply = _response(answer, payload, coding)
        if len(payload) < LARGE:
            return reply
        return await self._sent(request, reply, len(payload), held)

    async def _sent(self, request: web.Request, reply: web.Response, size: int, held: Held) -> web.StreamResponse:
        """Send a large reply, which counts in the memory budget until the client has taken it."""
        held.release()
        held.reach(size)
        transport = request.transport
        if transport is not None:
            held.on_evict(transport.abort)
        held.wait()
        await reply.prepare(request)
        await reply.write_eof()
        return reply

    async def sequence_state(self, request: web.Request) -> web.Response:
        key, stream = await self._sequence(request)
        state = await self._gateway.sequence_state(key, stream)
        return web.Response(body=state, content_type="application/octet-stream")

    async def restore_sequence(self, request: web.Request) -> web.Response:
        with self._held(request) as held:
            body = memoryview(await read_body(request, self._limits.body, self._limits.body_seconds, held))
            await self._gateway.restore_sequence(*await self._sequence(request), body)
        return web.Response(content_type="application/json")

    async def model_metadata(self, request: web.Request) -> web.Response:
        return _json(await self._awake(self._gateway.repository.metadata, request))

    async def model_ready(self, request: web.Request) -> web.Response:
        name, version = _named(request)
        self._gateway.demand_ready(name, version)
        return _json({"name": name, "ready": True})

    async def model_ready_v1(self, request: web.Request) -> web.Response:
        name, version = _named(request)
        name, person = parted(name)
        if person is not None:
            return _json(await self._adapted(request, name, person))
        self._gateway.demand_ready(name, version)
        return _json({"name": name, "ready": True, **self._gateway.language_model(name)})

    async def _adapted(self, request: web.Request, name: str, person: str) -> Mapping[str, Any]:
        """A model with an adapter. Raises GatewayError (404), the same for adapters of others and those that do not
        exist."""
        grant = self._gateway.admit(request.headers, request.remote or "", "infer", name)
        told = await self._gateway.adapted_models(name, grant, certificate_name(request.get_extra_info("peercert")))
        found = next((row for row in told if row["id"] == f"{name}:{person}"), None)
        if found is None:
            raise GatewayError(404, f"model {name!r:.80} has no adapter {person!r:.80} that you may use")
        return {"name": found["id"], "ready": True, **found}

    async def model_config(self, request: web.Request) -> web.Response:
        return _json(await self._awake(self._gateway.repository.configuration, request))

    async def model_statistics(self, request: web.Request) -> web.Response:
        return _json(self._gateway.model_statistics(*_named(request)))

    async def statistics(self, request: web.Request) -> web.Response:
        return _json(self._gateway.model_statistics("", ""))

    async def server(self, request: web.Request) -> web.Response:
        return _json(self._gateway.metadata())

    async def live(self, request: web.Request) -> web.Response:
        return _json({"live": True})

    async def ready(self, request: web.Request) -> web.Response:
        why = self._gateway.unready()
        if why:
            raise GatewayError(503, why)
        return _json({"ready": True})

    async def index(self, request: web.Request) -> web.Response:
        found = await self._object(request)
        ready = found.get("ready", False)
        if not isinstance(ready, bool):
            raise GatewayError(400, f"ready: expected true or false, got {ready!r}")
        rows, patterns = self._gateway.repository.index(ready_only=ready), _GRANT.get().models
        return _json([row for row in rows if matches(row["name"], patterns)])

    async def models(self, request: web.Request) -> web.Response:
        rows, patterns = self._gateway.repository.index(ready_only=True), _GRANT.get().models
        names = dict.fromkeys(row["name"] for row in rows if matches(row["name"], patterns))
        data = [told for name in names if (told := self._gateway.language_model(name))]
        certificate = certificate_name(request.get_extra_info("peercert"))
        for name in names:
            data += await self._gateway.adapted_models(name, _GRANT.get(), certificate)
        return _json({"models": list(names), "object": "list", "data": data})

    async def load(self, request: web.Request) -> web.Response:
        limits, name = self._limits, request.match_info["name"]
        with self._held(request) as held:
            await self._gateway.load(name, await object_in(request, limits.body, limits.body_seconds, held))
        return web.Response(content_type="application/json")

    async def unload(self, request: web.Request) -> web.Response:
        await self._gateway.unload(request.match_info["name"], await self._object(request), _GRANT.get())
        return web.Response(content_type="application/json")

    async def log_settings(self, request: web.Request) -> web.Response:
        return _json(self._gateway.adjust.log_settings())

    async def change_log_settings(self, request: web.Request) -> web.Response:
        _GRANT.get().demand_all()
        return _json(self._gateway.change_log(await self._object(request)))

    async def trace_settings(self, request: web.Request) -> web.Response:
        return _json(self._gateway.trace(request.match_info.get("name", ""), None))

    async def change_trace_settings(self, request: web.Request) -> web.Response:
        model = request.match_info.get("name", "")
        if not model:
            _GRANT.get().demand_all()
        return _json(self._gateway.trace(model, await self._object(request)))

    model_trace_settings, change_model_trace_settings = trace_settings, change_trace_settings

    async def shared_memory_status(self, request: web.Request) -> web.Response:
        return _json(self._gateway.regions.status(self._owner(request), request.match_info.get("region", "")))

    async def register_shared_memory(self, request: web.Request) -> web.Response:
        peername = request.get_extra_info("peername")
        port = peername[1] if isinstance(peername, tuple) else 0
        wish = wish_of(request.match_info["region"], await self._object(request))
        await self._gateway.regions.register(self._owner(request), wish, request.remote or "", port)
        return web.Response(content_type="application/json")

    async def unregister_shared_memory(self, request: web.Request) -> web.Response:
        self._gateway.regions.remove(self._owner(request), request.match_info.get("region", ""))
        return web.Response(content_type="application/json")

    async def cuda_memory_status(self, request: web.Request) -> web.Response:
        if request.match_info.get("region"):
            raise GatewayError(404, NO_CUDA)
        return _json([])

    async def register_cuda_memory(self, request: web.Request) -> web.Response:
        raise GatewayError(501, NO_CUDA)

    async def unregister_cuda_memory(self, request: web.Request) -> web.Response:
        return web.Response(content_type="application/json")

    async def metrics(self, request: web.Request) -> web.Response:
        text, kind = self._gateway.metrics(request.headers.get("Accept", ""))
        return web.Response(body=text, headers={"Content-Type": kind})

    async def status(self, request: web.Request) -> web.Response:
        return _json(self._gateway.status())

    async def status_page(self, request: web.Request) -> web.Response:
        return _page(status_page())

    async def document(self, request: web.Request) -> web.Response:
        return _json(self._gateway.document())

    async def document_page(self, request: web.Request) -> web.Response:
        return _page(explore_page())

    async def _sequence(self, request: web.Request) -> tuple[Key, Stream]:
        found = partial(self._gateway.sequence, identity=request.match_info["sequence"], owner=self._owner(request))
        key, stream = await self._awake(found, request)
        return key, stream

    def _owner(self, request: web.Request) -> str:
        """Who a request's sequences and regions belong to."""
        fields = {name.lower(): value for name, value in request.headers.items()}
        certificate = certificate_name(request.get_extra_info("peercert"))
        return self._gateway.owner(Ask("", "", fields, memoryview(b""), request.remote or "", certificate))

    async def _awake(self, ask: Callable[[str, str], Any], request: web.Request) -> Any:
        """Ask for a fact about a model that may have to be loaded again first."""
        name, version = _named(request)
        try:
            return ask(name, version)
        except Asleep:
            await self._gateway.repository.wake(name)
            return ask(name, version)

    async def _object(self, request: web.Request) -> dict[str, Any]:
        with self._held(request) as held:
            return await object_in(request, SMALL, self._limits.body_seconds, held)


def _response(answer: Answer, payload: bytes | None = None, coding: str = "") -> web.Response:
    """The reply for an answer; `payload`: its body, if it was changed."""
    headers = dict(answer.fields)
    content_type = "application/json"
    if answer.header_length is not None:
        headers["Inference-Header-Content-Length"] = str(answer.header_length)
        content_type = "application/octet-stream"
    if coding:
        headers["Content-Encoding"] = coding
    body = b"".join(answer.parts) if payload is None else payload
    return web.Response(body=body, status=answer.status, headers=headers, content_type=content_type)


def _named(request: web.Request) -> tuple[str, str]:
    """The model and the version or label ("": none) in a path."""
    found = request.match_info
    return found["name"], found.get("version", "") or found.get("label", "")


def _page(page: Page) -> web.Response:
    return web.Response(body=page.body, headers=page.headers)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    """Set the answer, unless the client has just left and the future is cancelled."""
    if not future.done():
        future.set_result(answer)
