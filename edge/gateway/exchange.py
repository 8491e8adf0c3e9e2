"""An inference request and its reply, as they pass between the socket and the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Answer", "Ask", "Desk"]


class Ask(NamedTuple):
    """An infer request as received over HTTP. `fields`: header fields by name in lower case; `peer`: the client's
    address, "" if it has none; `body`: bytes without content coding, which do not change until the answer;
    `certificate`: the name in the client's verified certificate, "" without one."""

    model: str
    version: str
    fields: Mapping[str, str]
    body: memoryview
    peer: str
    certificate: str = ""


class Answer(NamedTuple):
    """A reply: its body in parts, the length of the JSON before binary data (None: all is JSON), further header
    fields."""

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
