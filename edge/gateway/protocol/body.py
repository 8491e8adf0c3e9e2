"""Requests and replies as bodies of HTTP: JSON, perhaps followed by bytes, or the bytes of the only input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Ports
from edge.gateway.protocol.request import Request, read
from edge.gateway.protocol.response import Reply, write
from lite_runtime.graph import Array

__all__ = ["BODY", "Body"]

_LENGTH = "inference-header-content-length"
_RAW = ("image/", "audio/")
"""Media types of bodies that are the bytes of the only input, without the protocol's JSON."""


class Body:
    """See `exchange.Form`."""

    def size(self, fields: Mapping[str, str], body: memoryview) -> int:
        """Bytes of JSON."""
        length = _header_length(fields)
        return len(body) if length is None else length

    def read(self, fields: Mapping[str, str], body: memoryview, ports: Callable[[str], Ports]) -> Request:
        """The request in the body."""
        request = read(body, _header_length(fields), ports)
        if not request.parameters and request.binary and "application/json" in fields.get("accept", ""):
            request.binary = False  # a raw body does not select outputs
        return request

    def write(
        self, model: str, version: str, request: Request, outputs: Mapping[str, Array], ports: Ports,
        notes: Mapping[str, Any], labels: Mapping[str, Sequence[str]],
    ) -> Reply:  # fmt: skip
        """The reply's body."""
        return write(model, version, request, outputs, ports, notes, labels)

    def error(self, text: str) -> bytes:
        """`{"error": text}`."""
        return orjson.dumps({"error": text})

    def call(self, model: str) -> tuple[str, str]:
        """Method and path."""
        return "POST", f"/v2/models/{model}/infer"


BODY = Body()


def _header_length(fields: Mapping[str, str]) -> int | None:
    """The number of bytes of JSON according to the header. Raises GatewayError (400) if it is not a number."""
    text = fields.get(_LENGTH)
    if text is None:
        return 0 if fields.get("content-type", "").lower().startswith(_RAW) else None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise GatewayError(400, f"Inference-Header-Content-Length: expected a number of bytes, got {text[:40]!r}")
    return int(text)
