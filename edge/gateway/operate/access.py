"""Access control: tokens and their scopes, local clients, rate limits for guessed tokens."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import urlsplit

from edge.gateway.errors import GatewayError
from edge.gateway.operate import tokens
from edge.gateway.operate.settings import Access

__all__ = ["Gate", "Grant", "Guesses", "Keyring"]

_CACHED, _PEERS = 4096, 4096
_ANYBODY = "anybody"


class Grant(NamedTuple):
    """A verified token, valid until `end` (seconds since 1970)."""

    name: str
    scopes: frozenset[str]
    end: float


class Guesses:
    """Counts invalid tokens by peer: after `free` of them, one attempt per `seconds` is allowed. A peer is an address;
    of IPv6 addresses only the first 64 bits count, as a client usually owns the rest. The least recently seen peers
    are forgotten."""

    def __init__(self, free: int = 10, seconds: float = 6.0) -> None:
        self.free, self.seconds = free, seconds
        self._peers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, peer: str, now: float) -> float:
        """Seconds until the peer may try again; 0: now."""
        spent = self._spent(_network(peer), now)
        return max(0.0, (spent - self.free + 1) * self.seconds)

    def failed(self, peer: str, now: float) -> None:
        """Count a failed attempt."""
        network = _network(peer)
        self._peers[network] = self._spent(network, now) + 1, now
        self._peers.move_to_end(network)
        if len(self._peers) > _PEERS:
            self._peers.popitem(last=False)

    def _spent(self, network: str, now: float) -> float:
        count, then = self._peers.get(network, (0.0, now))
        return max(0.0, count - (now - then) / self.seconds)


class Keyring:
    """The tokens of a file. Call `refresh` often: it reads the file again when it has changed.

    A valid token is cached by a hash with a secret key of this process, so that the next request with it costs one hash
    and one look-up. The time of the look-up reveals nothing, as clients cannot compute the hash.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self.path, self.guesses = os.fspath(path), Guesses()
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._stamp: tuple[int, ...] | None = None
        self._tokens: Mapping[str, tokens.Token] = {}
        self._good: dict[bytes, Grant] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Read the file if it has changed; returns whether it had. Raises GatewayError, once per change, if it is not a
        valid file of tokens: then the earlier tokens stay valid until the file is corrected."""
        try:
            status = os.stat(self.path)
            stamp: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode)
        except OSError:
            stamp = ()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._tokens = {token.id: token for token in tokens.listed(self.path)}
        self._good.clear()
        return True

    def grant(self, authorization: str | None, peer: str) -> Grant:
        """The grant of a header `Authorization: Bearer TOKEN`. Raises GatewayError: 401 for a missing or invalid
        token, 429 if the peer has sent too many invalid ones."""
        shown = (authorization or "").encode("utf-8", "surrogateescape")
        digest = blake2b(shown, digest_size=32, key=self._key).digest()
        grant, now = self._good.get(digest), self._clock()
        if grant is not None and now < grant.end:
            return grant
        if authorization is None:
            raise GatewayError(401, "expected a header 'Authorization: Bearer TOKEN', got none; this server's operator "
                               "creates tokens with `msedge token add`")  # fmt: skip
        if wait := self.guesses.wait(peer, now):
            raise GatewayError(429, "too many invalid tokens came from this address", retry_after=wait)
        grant = self._verified(authorization, now)
        if grant is None:
            self.guesses.failed(peer, now)
            raise GatewayError(401, "the token is not valid at this server, or it has expired")
        if len(self._good) >= _CACHED:
            self._good.clear()
        self._good[digest] = grant
        return grant

    def _verified(self, authorization: str, now: float) -> Grant | None:
        scheme, _, text = authorization.partition(" ")
        prefix, _, rest = text.strip().partition("_")
        identity, _, secret = rest.partition("_")
        token = self._tokens.get(identity)
        if scheme.lower() != "bearer" or f"{prefix}_" != tokens.PREFIX or token is None:
            return None
        if not tokens.matches(token, secret) or now >= token.end:
            return None
        return Grant(token.name, frozenset(token.scopes), token.end)


class Gate:
    """The rules of `[serve.access]`: call `check` first for every request, and `refresh` about once a second."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.time) -> None:
        self.keyring = Keyring(access.tokens, clock) if access.tokens else None
        infer = "token" if access.tokens else "open"
        self.rules: Mapping[str, str] = {"infer": infer, "manage": access.management, "metrics": access.metrics}

    @property
    def open(self) -> bool:
        """Whether inferences need no token."""
        return self.rules["infer"] == "open"

    def refresh(self) -> bool:
        """See Keyring.refresh."""
        return self.keyring is not None and self.keyring.refresh()

    def check(
        self,
        scope: str,
        peer: str,
        authorization: str | None = None,
        origin: str | None = None,
        host: str | None = None,
        forwarded: str | None = None,
    ) -> str:
        """The name of the client. Raises GatewayError: 401, 403 or 429.

        scope: one of `tokens.SCOPES`. peer: the client's address, "" for a Unix socket. origin, host, forwarded: the
        request's headers, the last one Forwarded or X-Forwarded-For. They reveal requests that come from this machine
        but not from its owner: from web pages of other origins in a local browser, or through a local proxy.
        """
        rule = self.rules[scope]
        if rule == "token":
            return self._by_token(scope, peer, authorization)
        if rule == "off":
            raise GatewayError(403, f"{scope}: disabled in this server's settings")
        if rule == "loopback":
            if forwarded:
                raise GatewayError(403, f"{scope}: allowed only for clients on this machine, not through a proxy")
            _demand_local(scope, peer, origin, host)
        return _ANYBODY

    def _by_token(self, scope: str, peer: str, authorization: str | None) -> str:
        if self.keyring is None:  # settings demand a file of tokens where a rule is "token"
            raise GatewayError(500, f"{scope}: expected a file of tokens, got none; set access.tokens")
        grant = self.keyring.grant(authorization, peer)
        if scope not in grant.scopes:
            allowed = ", ".join(sorted(grant.scopes))
            raise GatewayError(403, f"the token of {grant.name!r} allows {allowed}, not {scope}")
        return grant.name


def _demand_local(scope: str, peer: str, origin: str | None, host: str | None) -> None:
    if peer and not _loopback(peer):
        raise GatewayError(403, f"{scope}: allowed only for clients on this machine, got {peer}; "
                           'access.management = "token" allows it for holders of tokens')  # fmt: skip
    # A web page can make its reader's browser send requests to 127.0.0.1, under that name or, with a name server of the
    # attacker (DNS rebinding), under any other: such requests have an Origin other than this server, or a Host other
    # than this machine.
    if origin is not None and origin.partition("://")[2] != host:
        raise GatewayError(403, f"{scope}: not allowed for web pages of {origin!r:.80}")
    name = _hostname(host or "localhost")
    if not (name == "localhost" or _loopback(name)):
        raise GatewayError(403, f"{scope}: expected a Host of this machine, such as localhost, got {host!r:.80}")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _loopback(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_loopback


def _network(peer: str) -> str:
    address = _address(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return address.packed[:8].hex()
    return str(address or peer)
