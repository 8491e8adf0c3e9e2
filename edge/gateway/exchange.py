"""An inference request and its reply, as they pass between the socket and the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from edge.gateway.ports import Ports
from edge.gateway.protocol.body import BODY
from edge.gateway.protocol.request import Request
from edge.gateway.protocol.response import Reply
from lite_runtime.graph import Array

__all__ = ["Answer", "Ask", "Desk", "Form"]


class Form(Protocol):
    """How a transport writes requests and replies; `fields` and `body` are those of an `Ask`."""

    def size(self, fields: Mapping[str, str], body: memoryview) -> int:
        """How many bytes `read` parses; tensors that are used in place do not count. Raises GatewayError (400)."""

    def read(self, fields: Mapping[str, str], body: memoryview, ports: Callable[[str], Ports]) -> Request:
        """The request, checked against the ports of its signature; any thread. Raises GatewayError: see
        `protocol.request.read`."""

    def write(
        self, model: str, version: str, request: Request, outputs: Mapping[str, Array], ports: Ports,
        notes: Mapping[str, Any], labels: Mapping[str, Sequence[str]],
    ) -> Reply:  # fmt: skip
        """The reply: see `protocol.response.write`."""

    def error(self, text: str) -> bytes:
        """The reply that says why there is none."""

    def call(self, model: str) -> tuple[str, str]:
        """What the log calls a request for a model: its method and path."""


class Ask(NamedTuple):
    """An infer request as received. `fields`: header fields (over gRPC: metadata) by name in lower case; `peer`: the
    client's address, "" if it has none; `body`: bytes without content coding, which do not change until the answer, and
    their `form`; `certificate`: the name in the client's verified certificate, "" without one; `deadline`: the time of
    `time.perf_counter` after which the transport needs no answer."""

    model: str
    version: str
    fields: Mapping[str, str]
    body: memoryview
    peer: str
    certificate: str = ""
    form: Form = BODY
    deadline: float = inf


class Answer(NamedTuple):
    """A reply: its status as of HTTP, its body in parts, the length of the JSON before binary data (None: all is JSON),
    further header fields."""

    status: int
    parts: Sequence[bytes | memoryview]
    header_length: int | None
    fields: Sequence[tuple[str, str]]


class Desk(Protocol):
    """Accepts inference requests."""

    def greet(self, ask: Ask) -> Answer | None:
        """The refusal of a request whose body was not read yet; None: it may be read."""

    def refusal(self, ask: Ask, error: Exception) -> Answer:
        """The reply to a request that is refused before its body is read."""
        ...

    def infer(self, ask: Ask, reply: Callable[[Answer], None]) -> Callable[[], None]:
        """Call `reply` exactly once, on the loop's thread, perhaps before this returns. The returned function cancels
        the request: `reply` is not called after that."""
