"""A request for an inference between the socket and the model: what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

__all__ = ["Answer", "Ask", "Desk"]


class Ask(NamedTuple):
    """An infer request as HTTP brings it. `fields`: header fields by name in small letters; `peer`: the client's
    address, "" where it has none; `body`: identity-coded bytes, which stay as they are until the answer."""

    model: str
    version: str
    fields: Mapping[str, str]
    body: memoryview
    peer: str


class Answer(NamedTuple):
    """A reply: its body in parts, bytes of JSON before binary data (None: all is JSON), and further header fields."""

    status: int
    parts: Sequence[bytes | memoryview]
    header_length: int | None
    fields: Sequence[tuple[str, str]]


class Desk(Protocol):
    """Where requests are taken."""

    def infer(self, ask: Ask, reply: Callable[[Answer], None]) -> Callable[[], None]:
        """Answer by `reply`, exactly once and on the loop's thread, perhaps before this returns; what it returns
        cancels: no reply comes after that."""
