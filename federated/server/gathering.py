"""Messages to many nodes and their replies, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, Protocol

from federated.server.replies import Failure

__all__ = ["Answering", "Carried", "Exchange", "gather"]


class Exchange(Protocol):
    """The transport of messages. It has its own clock: a simulation's time need not be real time."""

    def nodes(self) -> Collection[int]:
        """Nodes that are present now."""

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Send messages to nodes; returns a ticket for each that could be sent, with its node."""

    def poll(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | Failure]]:
        """Replies for these tickets that arrived and were not taken before. In a simulation a device works when its
        reply is taken."""

    def now(self) -> float:
        """Seconds since some moment; monotonic."""

    def wait(self, seconds: float) -> None:
        """Wait at most this long."""


class Answering(Protocol):
    """The other end: a device, or an aggregator."""

    def answer(self, message: bytes) -> bytes:
        """The reply."""


class Carried(NamedTuple):
    """The bytes sent to devices and received from them."""

    bytes_down: int
    bytes_up: int


def gather(
    exchange: Exchange,
    kind: str,
    messages: Mapping[int, bytes],
    deadline: float,
    take: Callable[[int, bytes | Failure], bytes | None],
) -> Carried:
    """Send to all, and process replies until all have answered or the deadline has passed. What `take` returns is sent
    to that node, and another reply is expected."""
    until = exchange.now() + deadline
    open_ = exchange.send(kind, messages)
    down, up = sum(map(len, messages.values())), 0
    while open_:
        for ticket, reply in exchange.poll(list(open_)):
            up += 0 if isinstance(reply, Failure) else len(reply)
            node = open_.pop(ticket)
            again = take(node, reply)
            if again is not None:
                down += len(again)
                open_ |= exchange.send(kind, {node: again})
        left = until - exchange.now()
        if not open_ or left <= 0:
            break
        exchange.wait(min(left, 0.25))
    return Carried(down, up)
