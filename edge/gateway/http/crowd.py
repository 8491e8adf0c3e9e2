"""All connections: how many there may be, by address too, and which idle one is closed to let a new one in."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from edge.gateway.operate.settings import Limits

__all__ = ["RESERVE", "Crowd", "Member"]

RESERVE = 64
"""Connections beyond the limit, for health checks and operators: no inference is answered on them."""
TRIES = 64
"""How many connections are looked at to find an idle one."""


class Member(Protocol):
    """A connection."""

    peer: str
    """The address that it came from."""
    served: int
    """Requests that were answered on it."""
    reserved: bool
    """Whether it is beyond the limit."""

    @property
    def idle(self) -> bool:
        """Whether no request is being processed, and no complete one waits."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes of replies that the client has not taken."""
        ...

    def dismiss(self) -> None:
        """Close it."""


class Crowd:
    """The connections, in the order of their last request; those without a request come first in being closed.

    exempt: addresses that may hold any number: proxies, behind which clients have addresses of their own.
    """

    def __init__(self, limits: Limits, exempt: Callable[[str], bool] = lambda peer: False) -> None:
        self._most, self._exempt = limits.connections, exempt
        self._each = limits.peer_connections or max(1, limits.connections // 2)
        self._new: OrderedDict[Member, None] = OrderedDict()
        """Connections on which nothing was answered yet."""
        self._known: OrderedDict[Member, None] = OrderedDict()
        self._peers: Counter[str] = Counter()
        self.evicted = 0
        """Idle connections that were closed so far to let others in."""

    def __len__(self) -> int:
        return len(self._new) + len(self._known)

    def members(self) -> list[Member]:
        """All of them."""
        return [*self._new, *self._known]

    def join(self, member: Member) -> str:
        """Count a new connection; "" or why it is refused. Sets `reserved`."""
        self._new[member] = None
        self._peers[member.peer] += 1
        if self._peers[member.peer] > self._each and not self._exempt(member.peer):
            if not self._dismiss(member, member.peer):
                return "your address has too many open connections"
        elif len(self) > self._most and not self._dismiss(member, ""):
            member.reserved = True
            if len(self) > self._most + RESERVE:
                return "the limit of open connections is reached"
        return ""

    def replace(self, old: Member, new: Member) -> None:
        """A connection goes on as another object."""
        new.reserved, new.served = old.reserved, old.served
        self.leave(old)
        self._new[new] = None
        self._peers[new.peer] += 1

    def answered(self, member: Member) -> None:
        """A request was answered on it."""
        if self._new.pop(member, 0) is None:
            self._known[member] = None
        elif member in self._known:
            self._known.move_to_end(member)

    def leave(self, member: Member) -> None:
        """It is closed."""
        if self._new.pop(member, 0) is None or self._known.pop(member, 0) is None:
            self._peers[member.peer] -= 1
            if not self._peers[member.peer]:
                del self._peers[member.peer]

    def _dismiss(self, new: Member, peer: str) -> bool:
        """Close the connection (of one peer, if named) that has been idle for the longest; False if there is none."""
        for members in (self._new, self._known):
            of_peer = (member for member in members if not peer or member.peer == peer)
            for member in islice(of_peer, TRIES):
                if member is not new and member.idle:
                    self.evicted += 1
                    member.dismiss()
                    self.leave(member)
                    return True
        return False
