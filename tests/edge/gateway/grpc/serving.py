"""A gateway's gRPC, and requests in protobuf's own classes, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from edge.gateway.grpc.messages import INFERENCE, message
from edge.gateway.grpc.server import GrpcServer
from edge.gateway.operate.tls import Certificates
from tests.edge.gateway.live import Live

__all__ = ["call", "caller", "channel", "listening", "simple_request"]


@contextmanager
def listening(live: Live, certificates: Certificates | None = None) -> Iterator[str]:
    """A gateway's gRPC on a port of its own: its address."""

    async def start() -> tuple[GrpcServer, str]:
        server = GrpcServer(live.gateway)
        host, port = await server.start("127.0.0.1", 0, certificates)
        return server, f"{host}:{port}"

    server, address = live.call(start())
    try:
        yield address
    finally:
        live.call(server.stop())


@contextmanager
def channel(address: str, **options: Any) -> Iterator[grpc.Channel]:
    """A connection of its own."""
    told = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1), *options.items()]
    with grpc.insecure_channel(address, options=told) as made:
        yield made


def caller(made: grpc.Channel, method: str, service: str = INFERENCE) -> Any:
    """A method that takes and returns bytes."""
    return made.unary_unary(f"/{service}/{method}")


def call(address: str, method: str, request: Any, **how: Any) -> Any:
    """Send a message or bytes to a method and read its reply."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    with channel(address) as made:
        reply = caller(made, method)(data, timeout=60, **how)
    return message(f"{method}Response").FromString(reply)


def simple_request(a: np.ndarray, b: np.ndarray, **fields: Any) -> Any:
    """A request to `simple`, with raw contents."""
    made = message("ModelInferRequest")(model_name="simple", **fields)
    for i, x in enumerate((a, b)):
        made.inputs.add(name=f"INPUT{i}", datatype="INT32", shape=x.shape)
        made.raw_input_contents.append(x.tobytes())
    return made
