"""gRPC's health checking protocol, version 1: the server under the name "" or that of its service, and every model
under its own name.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from edge.gateway.errors import GatewayError
from edge.gateway.gateway import Gateway
from edge.gateway.grpc.calls import refuse
from edge.gateway.grpc.messages import HEALTH, INFERENCE, message, parsed
from edge.gateway.grpc.reading import receive

__all__ = ["Health"]

LOOK = 0.5
"""Seconds between looks for a change that watching clients are told of."""
_SERVING, _NOT_SERVING, _UNKNOWN = 1, 2, 3


class Health:
    """The service; needs no token, as over HTTP."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._leaving = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """For `grpc.aio.Server.add_generic_rpc_handlers`; messages are bytes."""
        return grpc.method_handlers_generic_handler(HEALTH, {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        })  # fmt: skip

    def leave(self) -> None:
        """Watching clients are told that the server is not serving, and their calls end."""
        self._leaving.set()

    async def _check(self, _: Any, context: Any) -> bytes:
        name = await self._asked(context)
        found = self._status(name)
        if found == _UNKNOWN:
            await refuse(context, 404, f"there is no model {name[:100]!r}")
        return _reply(found)

    async def _watch(self, _: Any, context: Any) -> None:
        name, told = await self._asked(context), 0
        while True:
            leaving = self._leaving.is_set()
            found = self._status(name)
            if found != told:
                await context.write(_reply(found))
                told = found
            if leaving:
                return
            try:
                async with asyncio.timeout(LOOK):
                    await self._leaving.wait()
            except TimeoutError:
                continue

    async def _asked(self, context: Any) -> str:
        try:
            data = await receive(context, self._gateway.settings.limits.body_seconds)
            return str(parsed("grpc.health.v1.HealthCheckRequest", data or b"").service)
        except GatewayError as error:
            await refuse(context, error.status, str(error))
            raise

    def _status(self, name: str) -> int:
        gateway = self._gateway
        if name in ("", INFERENCE, HEALTH):
            return _NOT_SERVING if gateway.unready() else _SERVING
        try:
            ready = gateway.repository.ready(name)
        except GatewayError:
            return _UNKNOWN
        return _SERVING if ready and not gateway.leaving else _NOT_SERVING


def _reply(status: int) -> bytes:
    made: bytes = message("grpc.health.v1.HealthCheckResponse")(status=status).SerializeToString()
    return made
