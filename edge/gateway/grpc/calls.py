"""What every call needs: who calls, and how it is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc

__all__ = ["Caller", "caller_of", "code_of", "refuse"]

_CODES: Mapping[int, grpc.StatusCode] = {
    200: grpc.StatusCode.OK,
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,  # as gRPC itself answers for messages that are too large
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_LONGEST = 1000
"""Characters of an error text: it is sent as metadata, of which clients accept 8 KiB."""


class Caller(NamedTuple):
    """fields: the call's metadata as text, by name in lower case; peer: the client's address; deadline: the time of
    `time.perf_counter` at which the call ends, infinite if the client set none; certificate: the name in the client's
    verified certificate, "" without one; port: the client's, 0 without one."""

    fields: Mapping[str, str]
    peer: str
    deadline: float
    certificate: str = ""
    port: int = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The metadata under the names of HTTP's header fields, as `Gateway.admit` reads them."""
        return {name.title(): value for name, value in self.fields.items()}


def caller_of(context: Any) -> Caller:
    """The client of a call."""
    fields = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    left = context.time_remaining()
    deadline = float("inf") if left is None else perf_counter() + left
    address, port = _address(context.peer())
    return Caller(fields, address, deadline, _certificate(context.auth_context()), port)


def _certificate(found: Mapping[str, Sequence[bytes]]) -> str:
    """As `operate.tls.certificate_name`, from gRPC's words."""
    kinds = {*found.get("peer_dns", ()), *found.get("peer_uri", ())}
    names = [name for name in found.get("x509_subject_alternative_name", ()) if name in kinds]
    return next(iter([*names, *found.get("x509_common_name", ())]), b"").decode(errors="replace")


def _address(peer: str) -> tuple[str, int]:
    """The address and port in gRPC's "ipv4:127.0.0.1:50000" or "ipv6:%5B::1%5D:50000"; any other text as it is: the
    empty text would mean a client of this machine."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer or "unknown", 0
    address, _, port = unquote(rest).rpartition(":")
    return address.strip("[]"), int(port) if port.isdecimal() else 0


def code_of(status: int) -> grpc.StatusCode:
    """gRPC's code for a status of HTTP, as Triton uses them."""
    return _CODES.get(status, grpc.StatusCode.INTERNAL)


async def refuse(context: Any, status: int, text: str, fields: Sequence[tuple[str, str]] = ()) -> None:
    """End a call with an error. fields: header fields of the reply over HTTP, which become trailing metadata."""
    trailing = [(name.lower(), value) for name, value in fields]
    waits = [value for name, value in trailing if name == "retry-after"]
    if waits:
        trailing.append(("grpc-retry-pushback-ms", f"{waits[0]}000"))
    await context.abort(code_of(status), text[:_LONGEST], tuple(trailing))
