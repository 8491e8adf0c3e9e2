"""The messages of the protocol, as protobuf's classes, made from `descriptors.binpb`.

They live in a descriptor pool of their own: clients in the same process, such as tritonclient, register messages with
the same names in protobuf's default pool, which accepts each name once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from edge.gateway.errors import GatewayError

__all__ = ["DESCRIPTORS", "HEALTH", "INFERENCE", "message", "parsed"]

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")
"""A FileDescriptorSet of inference.proto and health.proto."""
INFERENCE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
"""The services' names."""


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.Add(file)
    return pool


@cache
def message(name: str) -> Any:
    """The class of a message, by its name with or without `inference.`."""
    full = name if "." in name else f"inference.{name}"
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(full))


def parsed(name: str, data: bytes | memoryview) -> Any:
    """A message from its bytes; unknown fields are ignored. Raises GatewayError (400)."""
    try:
        return message(name).FromString(data)
    except (DecodeError, ValueError) as error:
        raise GatewayError(400, f"expected a message {name}, got bytes that are none: {error}") from None
