"""Who has which message: the state between a federation that sends and devices that ask. Safe for threads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock
from time import monotonic

from federated.server.replies import Failure

__all__ = ["MISSED", "Desk", "node_of"]

MISSED = 3
"""After so many heartbeats without a sign of life a device counts as gone."""


def node_of(device: str) -> int:
    """A device's node id: the same after a restart of either end."""
    return int.from_bytes(sha256(device.encode()).digest()[:8], "little") >> 1


@dataclass
class _Ticket:
    node: int
    message: bytes
    reply: bytes | Failure | None = None


class Desk:
    """Messages wait here until devices ask for them, and replies until the federation takes them.

    `absence`: seconds of silence after which a device is gone, and its open messages have failed. `wake` is called with
    a node for which there is work now.
    """

    def __init__(
        self,
        absence: float,
        clock: Callable[[], float] = monotonic,
        wake: Callable[[int], None] = lambda node: None,
    ) -> None:
        self.absence, self._clock, self.wake = absence, clock, wake
        self._seen: dict[int, float] = {}
        self._tickets: dict[str, _Ticket] = {}
        self._lock = Lock()

    def seen(self, node: int) -> None:
        """A sign of life."""
        with self._lock:
            self._seen[node] = self._clock()

    def left(self, node: int) -> None:
        """The device has said that it goes."""
        with self._lock:
            self._seen.pop(node, None)

    def present(self) -> list[int]:
        """Nodes that gave a sign of life lately, in order."""
        with self._lock:
            return sorted(node for node in self._seen if self._here(node))

    def _here(self, node: int) -> bool:
        return self._clock() - self._seen.get(node, float("-inf")) < self.absence

    def give(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Tickets of messages that now wait for their nodes. What a node had before and the federation has not taken is
        no longer wanted: a device works on one message at a time."""
        given = {}
        with self._lock:
            old = [name for name, ticket in self._tickets.items() if ticket.node in messages]
            for name in old:
                del self._tickets[name]
            for node, message in messages.items():
                name = secrets.token_hex(16)
                self._tickets[name] = _Ticket(node, message)
                given[name] = node
        for node in messages:
            self.wake(node)
        return given

    def work(self, node: int) -> tuple[str, bytes] | None:
        """The message that waits for a node, and its ticket."""
        with self._lock:
            for name, ticket in self._tickets.items():
                if ticket.node == node and ticket.reply is None:
                    return name, ticket.message
        return None

    def wants(self, node: int, name: str) -> bool:
        """Whether this node's reply for a ticket is still wanted."""
        with self._lock:
            ticket = self._tickets.get(name)
            return ticket is not None and ticket.node == node and ticket.reply is None

    def reply(self, node: int, name: str, reply: bytes | Failure) -> bool:
        """Keep a node's reply; False if it is not wanted."""
        with self._lock:
            ticket = self._tickets.get(name)
            if ticket is None or ticket.node != node or ticket.reply is not None:
                return False
            ticket.reply, ticket.message = reply, b""
            return True

    def take(self, names: Collection[str]) -> Iterator[tuple[str, bytes | Failure]]:
        """Replies that are there for these tickets, each once; a device that is gone has failed."""
        for name in names:
            with self._lock:
                ticket = self._tickets.get(name)
                found = ticket.reply if ticket is not None else Failure("the message was replaced by a newer one")
                if ticket is not None and found is None and not self._here(ticket.node):
                    found = Failure("the device is gone")
                if found is None:
                    continue
                self._tickets.pop(name, None)
            yield name, found
