"""One element of a BYTES tensor as the file it holds."""

from __future__ import annotations

import binascii
from typing import Any

from edge.gateway.errors import GatewayError

__all__ = ["raw"]


def raw(item: Any, base64: bool, what: str) -> bytes:
    """The bytes of an element; of its Base64 where that is declared. Raises GatewayError (400)."""
    if base64:
        try:
            return binascii.a2b_base64(item, strict_mode=True)
        except (ValueError, TypeError) as error:
            raise GatewayError(400, f"expected {what} in Base64, got other text: {error}") from None
    if isinstance(item, str):
        raise GatewayError(
            400, f"expected {what} as bytes, got text; send the input as binary data (binary_data_size), or as the raw"
            " body with Inference-Header-Content-Length: 0"
        )  # fmt: skip
    return bytes(item)
