"""What was verified is kept, and guesses are limited."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from edge.gateway.access.addresses import network
from edge.gateway.access.grants import Grant
from edge.gateway.errors import GatewayError

__all__ = ["Guesses", "Verified"]

_CACHED, _PEERS = 4096, 4096


class Guesses:
    """Counts invalid tokens by peer: after `free` of them, one attempt per `seconds` is allowed. A peer is an address;
    of IPv6 addresses only the first 64 bits count, as a client usually owns the rest. The least recently seen peers
    are forgotten."""

    def __init__(self, free: int = 10, seconds: float = 6.0) -> None:
        self.free, self.seconds = free, seconds
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, peer: str, now: float) -> float:
        """Seconds until the peer may try again; 0: now."""
        spent = self._spent(network(peer), now)
        return max(0.0, (spent - self.free + 1) * self.seconds)

    def failed(self, peer: str, now: float) -> None:
        """Count a failed attempt."""
        whose = network(peer)
        self._peers[whose] = self._spent(whose, now) + 1, now
        self._peers.move_to_end(whose)
        if len(self._peers) > _PEERS:
            self._peers.popitem(last=False)

    def _spent(self, whose: str, now: float) -> float:
        count, then = self._peers.get(whose, (0.0, now))
        return max(0.0, count - (now - then) / self.seconds)


class Verified:
    """Caches what was verified, by a hash with a secret key of this process: the next request with it costs one hash
    and one look-up, whose time reveals nothing, as clients cannot compute the hash. `guesses` limits invalid ones."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.guesses = Guesses()
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._good: dict[bytes, Grant] = {}

    def known(self, authorization: str | None) -> str:
        """The name of a client that was verified; "" if it was not."""
        grant = self._good.get(self._digest(authorization))
        return grant.name if grant is not None else ""

    def grant(self, authorization: str | None, peer: str) -> Grant:
        """The grant of a header `Authorization: Bearer TOKEN`. Raises GatewayError: 401 for a missing or invalid
        token, 429 if the peer has sent too many invalid ones."""
        digest = self._digest(authorization)
        grant, now = self._good.get(digest), self._clock()
        if grant is not None and now < grant.end:
            return grant
        if authorization is None:
            raise GatewayError(401, "expected a header 'Authorization: Bearer TOKEN', got none; this server's operator "
                               "creates tokens with `msedge token add`")  # fmt: skip
        grant = self._verified(authorization, now)
        if grant is None:
            if wait := self.guesses.wait(peer, now):
                raise GatewayError(429, "too many invalid tokens came from this address", retry_after=wait)
            self.guesses.failed(peer, now)
            raise GatewayError(401, "the token is not valid at this server, or it has expired")
        if len(self._good) >= _CACHED:
            self._good.clear()
        self._good[digest] = grant
        return grant

    def _digest(self, authorization: str | None) -> bytes:
        shown = (authorization or "").encode("utf-8", "surrogateescape")
        return blake2b(shown, digest_size=32, key=self._key).digest()

    def _verified(self, authorization: str, now: float) -> Grant | None:
        """The grant of a token; None if it is not valid."""
        raise NotImplementedError
