"""The methods of GRPCInferenceService, as a table: their names, what a client must be allowed, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import grpc
import orjson
from google.protobuf import json_format

from edge.gateway.access.grants import Grant, matches
from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.gateway import AUDITED, NO_CUDA, Gateway
from edge.gateway.grpc.calls import Caller, caller_of, refuse
from edge.gateway.grpc.inference import TYPED, open_request, parted
from edge.gateway.grpc.messages import INFERENCE, message, parsed
from edge.gateway.grpc.reading import Reads
from edge.gateway.grpc.stream import Stream
from edge.gateway.infer import LARGE
from edge.gateway.models.entry import Asleep
from edge.gateway.operate.room import Held
from edge.gateway.shared.regions import wish_of

__all__ = ["METHODS", "Method", "Service"]

_GRANT: ContextVar[Grant] = ContextVar("grant")
"""What the client of the present call may do."""
_CALLER: ContextVar[Caller] = ContextVar("caller")
"""The client of the present call."""
_INTERNAL = "internal server error; the gateway's log has the details"


class Method(NamedTuple):
    """A method with one request and one reply. `scope`: as in `pages.operations`; `answer`: makes the reply."""

    name: str
    scope: str
    answer: Callable[[Gateway, Any], Awaitable[Any]]


class Service:
    """The methods for one gateway; everything on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._limits = gateway, gateway.settings.limits
        self._streams: set[Stream] = set()
        self.reads = Reads(gateway.short_of_memory, gateway.give_back)

    def handler(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`; messages are bytes."""
        # A method with one request is registered as one with a stream of them, so that a client's access is checked
        # before its message is read, and the message has to arrive in time.
        unary, both = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        found = {method.name: unary(self._guarded(partial(self._plain, method))) for method in METHODS}
        found["ModelInfer"] = unary(self._guarded(self._infer))
        found["ModelStreamInfer"] = both(self._guarded(self._stream))
        return grpc.method_handlers_generic_handler(INFERENCE, found)

    def leave(self) -> None:
        """Streams end after the requests that they have received."""
        for stream in tuple(self._streams):
            stream.leave()

    def _guarded(self, answer: Callable[[Caller, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(_: Any, context: Any) -> Any:
            try:
                return await answer(caller_of(context), context)
            except GatewayError as error:
                after = error.retry_after
                fields = [("retry-after", str(max(1, round(after))))] if after is not None else []
                await refuse(context, error.status, str(error), fields)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:  # request: answered with INTERNAL, logged
                self._gateway.bug(error, "gRPC")
                await refuse(context, 500, _INTERNAL)

        return handle

    async def _plain(self, method: Method, caller: Caller, context: Any) -> bytes:
        if method.scope:
            self._gateway.admit(caller.headers, caller.peer, method.scope, what=method.name)
        with self._held(caller) as held:
            request = parsed(f"{method.name}Request", await self._received(context, held))
            model = _model_of(request) if method.scope != "memory" else ""
            _CALLER.set(caller)
            if method.scope:
                grant = self._gateway.admit(caller.headers, caller.peer, method.scope, model, method.name)
                _GRANT.set(grant)
            if method.scope in AUDITED:
                about = {"region": request.name} if method.scope == "memory" else {"model": model}
                async with self._gateway.audited(method.name, about, grant.name, self._gateway.client(_ask(caller))):
                    reply = await method.answer(self._gateway, request)
            else:
                reply = await method.answer(self._gateway, request)
        made: bytes = reply.SerializeToString()
        return made

    def _held(self, caller: Caller) -> Held:
        """The share of the memory budget for a message."""
        return self._gateway.room.enter(caller.peer, self._limits.body_seconds)

    async def _received(self, context: Any, held: Held) -> bytes:
        data = await self.reads.next(context, self._limits.body_seconds)
        if data is None:
            raise GatewayError(400, "expected one message, got none")
        held.reach(len(data))
        return data

    # -- inference -----------------------------------------------------------------------------------------------------

    async def _infer(self, caller: Caller, context: Any) -> bytes:
        self._admit(caller)
        with self._held(caller) as held:
            try:
                ask = await self._opened(caller, await self._received(context, held), held)
            except GatewayError as error:
                self._gateway.statistics.refused["infer", error.status] += 1
                raise
            found: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            cancel = self._gateway.infer(ask, partial(_settle, found))
            try:
                answer = await found
            except asyncio.CancelledError:
                cancel()
                raise
        if answer.status != 200:
            await refuse(context, answer.status, b"".join(answer.parts).decode(), answer.fields)
        context.set_trailing_metadata(tuple((name.lower(), value) for name, value in answer.fields))
        return b"".join(answer.parts)

    async def _stream(self, caller: Caller, context: Any) -> None:
        self._admit(caller)
        stream = Stream(self._gateway, context, caller, partial(self._opened, caller, stream=True), self.reads)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)

    def _admit(self, caller: Caller) -> None:
        """Refuse a client before its message is read."""
        try:
            self._gateway.admit_inference(_ask(caller))
        except GatewayError as error:
            self._gateway.statistics.refused["infer", error.status] += 1
            raise

    async def _opened(self, caller: Caller, data: bytes, held: Held, *, stream: bool = False) -> Ask:
        """A message as a request; a large one, tensors left out, is parsed on another thread."""
        found = parted(data)
        held.reach(len(data) + TYPED * len(found.rest))
        make = partial(open_request, data, to=_ask(caller), stream=stream)
        return make(found) if len(found.rest) <= LARGE else await self._gateway.aside(make, found)


def _ask(caller: Caller) -> Ask:
    """A request of which nothing has been read yet."""
    fields, peer, deadline, certificate, _ = caller
    return Ask("", "", fields, memoryview(b""), peer, certificate, deadline=deadline)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    """Set the answer, unless the client has just left and the future is cancelled."""
    if not future.done():
        future.set_result(answer)


def _model_of(request: Any) -> str:
    """The model that a request names; "" if it names none."""
    return str(getattr(request, "model_name", "") or getattr(request, "name", ""))


# -- what the plain methods answer -------------------------------------------------------------------------------------


async def _server_live(gateway: Gateway, request: Any) -> Any:
    return message("ServerLiveResponse")(live=True)


async def _server_ready(gateway: Gateway, request: Any) -> Any:
    return message("ServerReadyResponse")(ready=not gateway.unready())


async def _model_ready(gateway: Gateway, request: Any) -> Any:
    try:
        gateway.demand_ready(request.name, request.version)
    except GatewayError:
        return message("ModelReadyResponse")(ready=False)
    return message("ModelReadyResponse")(ready=True)


async def _server_metadata(gateway: Gateway, request: Any) -> Any:
    return message("ServerMetadataResponse")(**gateway.metadata())


async def _model_metadata(gateway: Gateway, request: Any) -> Any:
    found = await _awake(gateway, gateway.repository.metadata, request)
    return _message("ModelMetadataResponse", {key: value for key, value in found.items() if key != "signatures"})


async def _model_config(gateway: Gateway, request: Any) -> Any:
    return _message("ModelConfigResponse", {"config": _config(await _awake(gateway, gateway.repository.configuration,
                                                                           request))})  # fmt: skip


async def _model_statistics(gateway: Gateway, request: Any) -> Any:
    return _message("ModelStatisticsResponse", gateway.model_statistics(request.name, request.version))


async def _repository_index(gateway: Gateway, request: Any) -> Any:
    _one_repository(request)
    rows, patterns = gateway.repository.index(ready_only=request.ready), _GRANT.get().models
    return _message("RepositoryIndexResponse", {"models": [row for row in rows if matches(row["name"], patterns)]})


async def _repository_model_load(gateway: Gateway, request: Any) -> Any:
    _one_repository(request)
    await gateway.load(request.model_name, {"parameters": _values(request.parameters)})
    return message("RepositoryModelLoadResponse")()


async def _repository_model_unload(gateway: Gateway, request: Any) -> Any:
    _one_repository(request)
    await gateway.unload(request.model_name, {"parameters": _values(request.parameters)}, _GRANT.get())
    return message("RepositoryModelUnloadResponse")()


async def _log_settings(gateway: Gateway, request: Any) -> Any:
    given = {name: _single(value) for name, value in request.settings.items()}
    if given:
        _GRANT.get().demand_all()
    found = gateway.change_log(given) if given else gateway.adjust.log_settings()
    reply = message("LogSettingsResponse")()
    for name, value in found.items():
        setattr(reply.settings[name], _LOG_FIELDS[type(value)], value if type(value) is not float else str(value))
    return reply


async def _trace_setting(gateway: Gateway, request: Any) -> Any:
    given = {name: list(setting.value) or None for name, setting in request.settings.items()}
    if given and not request.model_name:
        _GRANT.get().demand_all()
    found = gateway.trace(request.model_name, {key: _lone(value) for key, value in given.items()} if given else None)
    reply = message("TraceSettingResponse")()
    for name, value in found.items():
        reply.settings[name].value.extend(value if isinstance(value, list) else [value])
    return reply


def _owner(gateway: Gateway) -> str:
    return gateway.owner(_ask(_CALLER.get()))


async def _shared_memory_status(gateway: Gateway, request: Any) -> Any:
    reply = message("SystemSharedMemoryStatusResponse")()
    for region in gateway.regions.status(_owner(gateway), request.name):
        made = reply.regions[region["name"]]
        made.name, made.key, made.offset, made.byte_size = region.values()
    return reply


async def _shared_memory_register(gateway: Gateway, request: Any) -> Any:
    caller = _CALLER.get()
    wish = wish_of(request.name, {"key": request.key, "offset": request.offset, "byte_size": request.byte_size})
    await gateway.regions.register(_owner(gateway), wish, caller.peer, caller.port)
    return message("SystemSharedMemoryRegisterResponse")()


async def _shared_memory_unregister(gateway: Gateway, request: Any) -> Any:
    gateway.regions.remove(_owner(gateway), request.name)
    return message("SystemSharedMemoryUnregisterResponse")()


async def _cuda_status(gateway: Gateway, request: Any) -> Any:
    if request.name:
        raise GatewayError(404, NO_CUDA)
    return message("CudaSharedMemoryStatusResponse")()


async def _cuda_register(gateway: Gateway, request: Any) -> Any:
    raise GatewayError(501, NO_CUDA)


async def _cuda_unregister(gateway: Gateway, request: Any) -> Any:
    return message("CudaSharedMemoryUnregisterResponse")()


_LOG_FIELDS = {bool: "bool_param", int: "uint32_param", str: "string_param", float: "string_param"}


def _single(value: Any) -> Any:
    """The value of a setting; None if it has none, which resets it."""
    kind = value.WhichOneof("parameter_choice")
    return getattr(value, kind) if kind is not None else None


def _lone(value: list[str] | None) -> Any:
    return value[0] if value is not None and len(value) == 1 else value


METHODS = (
    Method("ServerLive", "", _server_live),
    Method("ServerReady", "", _server_ready),
    Method("ModelReady", "", _model_ready),
    Method("ServerMetadata", "", _server_metadata),
    Method("ModelMetadata", "infer", _model_metadata),
    Method("ModelConfig", "infer", _model_config),
    Method("ModelStatistics", "metrics", _model_statistics),
    Method("RepositoryIndex", "infer", _repository_index),
    Method("RepositoryModelLoad", "manage", _repository_model_load),
    Method("RepositoryModelUnload", "manage", _repository_model_unload),
    Method("LogSettings", "manage", _log_settings),
    Method("TraceSetting", "manage", _trace_setting),
    Method("SystemSharedMemoryStatus", "memory", _shared_memory_status),
    Method("SystemSharedMemoryRegister", "memory", _shared_memory_register),
    Method("SystemSharedMemoryUnregister", "memory", _shared_memory_unregister),
    Method("CudaSharedMemoryStatus", "memory", _cuda_status),
    Method("CudaSharedMemoryRegister", "memory", _cuda_register),
    Method("CudaSharedMemoryUnregister", "memory", _cuda_unregister),
)
"""All methods but the two that infer."""


async def _awake(gateway: Gateway, ask: Callable[[str, str], Any], request: Any) -> Any:
    """Ask for a fact about a model that may have to be loaded again first."""
    try:
        return ask(request.name, request.version)
    except Asleep:
        await gateway.repository.wake(request.name)
        return ask(request.name, request.version)


def _message(name: str, words: Mapping[str, Any]) -> Any:
    """A reply from the same words that HTTP sends as JSON; what the message has no field for is left out."""
    return json_format.ParseDict(dict(words), message(name)(), ignore_unknown_fields=True)


def _config(words: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for ModelConfig: settings that Triton does not have become parameters, JSON as text; of two ways
    of scheduling, one can be named."""
    fields = message("ModelConfig").DESCRIPTOR.fields_by_name
    made = {key: value for key, value in words.items() if key in fields}
    rest = {key: value for key, value in words.items() if key not in fields}
    steps = words.get("ensemble_scheduling", {}).get("step", [])
    if any("model_label" in step for step in steps):
        rest["model_labels"] = [step.get("model_label", "") for step in steps]
    ours = {key: {"string_value": orjson.dumps(value).decode()} for key, value in rest.items()}
    if "sequence_batching" in made:
        made.pop("dynamic_batching", None)
    return {**made, "parameters": ours}


def _one_repository(request: Any) -> None:
    if request.repository_name:
        raise GatewayError(501, "repository_name: not supported; leave it empty")


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in parameters.items()}
    return {key: getattr(parameters[key], kind) for key, kind in kinds.items() if kind is not None}
