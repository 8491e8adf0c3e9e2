"""The listening socket of gRPC.

gRPC's library reads and writes HTTP/2 on threads of its own; calls are coroutines on the gateway's event loop, whose
thread owns all state (grpc.aio). The other arrangement, threads of a `grpc.Server` that hand each call over to the
loop, was no faster even without handing over: echoes of 200 bytes to three clients took 335 to 370 µs of processor time
each with grpc.aio, 305 to 310 with threads, at 2,100 to 2,500 a second.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.gateway import Gateway
from edge.gateway.operate.settings import Settings
from edge.gateway.operate.tls import Certificates
from lite_runtime.errors import MissingExtraError

# The library's own messages: a client that fails a handshake could fill the log with them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import grpc

    from edge.gateway.grpc.health import Health
    from edge.gateway.grpc.service import Service
except ModuleNotFoundError as error:
    package = "protobuf" if (error.name or "").startswith("google") else "grpcio"
    raise MissingExtraError(package, "grpc", "grpc.port needs it") from error

__all__ = ["GrpcServer"]

GRACE = 0.3
"""Seconds that calls are still accepted, and refused with a reason, when the server shuts down."""
LINGER = 1.0
"""Seconds that answered calls have to be written after that."""
PONG = 10.0
"""Seconds within which a client must answer a ping."""
METADATA = 16 << 10
"""Bytes of a call's metadata."""
MARGIN = 1 << 20
"""Bytes of a reply's message beside its tensors."""


class GrpcServer:
    """A gateway's gRPC; all methods on the event loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._server: Any = None

    async def start(self, host: str, port: int, certificates: Certificates | None = None) -> tuple[str, int]:
        """Start to listen; returns the address. Raises GatewayError if the address cannot be used."""
        settings = self._gateway.settings
        self._service, self._health = Service(self._gateway), Health(self._gateway)
        server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=settings.grpc.calls)
        server.add_generic_rpc_handlers((self._service.handler(), self._health.handler()))
        where = f"{f'[{host}]' if ':' in host else host}:{port}"
        try:
            found = (
                server.add_insecure_port(where)
                if certificates is None
                else server.add_secure_port(where, _credentials(certificates))
            )
        except RuntimeError as error:
            raise GatewayError(
                500, f"cannot listen at {where} for gRPC: the address is in use or not of this machine; choose another"
                " --grpc-port or --host"
            ) from error  # fmt: skip
        await server.start()
        self._server = server
        self._watch = asyncio.get_running_loop().create_task(self._service.reads.watch())
        self._gateway.calls_evicted = lambda: self._service.reads.evicted
        return host, found

    async def drain(self, seconds: float) -> bool:
        """Accept no more calls and finish the current ones; returns whether all requests were answered in time."""
        gateway, loop = self._gateway, asyncio.get_running_loop()
        end = loop.time() + seconds
        self._health.leave()
        await asyncio.sleep(min(GRACE, seconds))
        self._service.leave()
        while gateway.under_way and loop.time() < end:
            await asyncio.sleep(0.01)
        answered = not gateway.under_way
        await self._server.stop(LINGER)
        return answered

    async def stop(self) -> None:
        """Close all connections; does nothing if the server was never started."""
        if self._server is not None:
            self._watch.cancel()
            await self._server.stop(None)


def _options(settings: Settings) -> list[tuple[str, int]]:
    """gRPC's channel arguments, from the same limits as HTTP's."""
    limits = settings.limits
    return [
        ("grpc.so_reuseport", 0),  # a second server at the address is an error, not a share of its connections
        ("grpc.max_receive_message_length", min(limits.body, 2**31 - 1)),  # also after decompression
        ("grpc.max_send_message_length", min(limits.reply + MARGIN, 2**31 - 1)),
        ("grpc.max_metadata_size", METADATA),
        ("grpc.absolute_max_metadata_size", METADATA),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", settings.grpc.calls),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.header_seconds)),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.idle_seconds)),
        ("grpc.keepalive_time_ms", _milliseconds(settings.grpc.keepalive)),
        ("grpc.keepalive_timeout_ms", _milliseconds(PONG)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(PONG)),  # alone decides with grpcio 1.85; a minute by default
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _milliseconds(PONG)),
    ]


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1000), 2**31 - 1)


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials that follow changes of the files: gRPC asks for them at every handshake."""
    told = certificates.files

    def current() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        if told is certificates.files:
            return None
        told = certificates.files
        return _configuration(told)

    return grpc.dynamic_ssl_server_credentials(_configuration(told), current, bool(told.client_ca))


def _configuration(files: Any) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_ca or None)
