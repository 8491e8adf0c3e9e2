"""Access control: who a client is, by token or signed claims, and what it may do; local clients; guessed tokens."""

from __future__ import annotations

import ipaddress
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from edge.gateway.errors import GatewayError
from edge.gateway.operate import tokens
from edge.gateway.operate.settings import Access

if TYPE_CHECKING:
    from edge.gateway.operate.issuer import Issuer

__all__ = ["ANYBODY", "Gate", "Grant", "Guesses", "Keyring", "Quotas", "Verified", "is_loopback", "matches"]

_CACHED, _PEERS = 4096, 4096


class Grant(NamedTuple):
    """What a verified client may do, until `end` (seconds since 1970). models, devices: patterns: `tokens.Token`."""

    name: str
    scopes: frozenset[str]
    end: float
    models: tuple[str, ...] = ("*",)
    devices: tuple[str, ...] = ()
    rate: float | None = None

    def demand_model(self, model: str) -> None:
        """Raise GatewayError (403) for a model that the grant does not name, whether it exists or not."""
        if self.models != ("*",) and not matches(model, self.models):
            raise GatewayError(403, f"{self.name!r} may not use model {model!r:.80}")

    def demand_all(self) -> None:
        """Raise GatewayError (403) for a grant of some models, where a change concerns all of them."""
        if self.models != ("*",):
            raise GatewayError(403, f"{self.name!r} may use some models only, and this setting is that of all")

    def demand_device(self, device: str) -> None:
        """Raise GatewayError (403) for a device that the grant does not name, whether it exists or not."""
        if not matches(device, self.devices):
            raise GatewayError(403, f"{self.name!r} may not ask as device {device!r:.80}; `msedge token add --device`"
                               " says which devices a token stands for")  # fmt: skip


ANYBODY = Grant("anybody", frozenset(), inf, ("*",), ("*",))
"""A client of a gateway, or of an operation, that asks nobody who they are."""


@lru_cache(maxsize=65536)
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns (with * and ?) is that of a name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Quotas:
    """Requests per second by client: a client may save up one second's requests, or at least one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By name: requests left, and when."""

    def take(self, grant: Grant) -> None:
        """Count a request. Raises GatewayError (429) if there are too many."""
        if grant.rate is None:
            return
        now, most = self._clock(), max(1.0, grant.rate)
        left, then = self._left.get(grant.name, (most, now))
        left = min(most, left + (now - then) * grant.rate)
        if left < 1:
            self._left[grant.name] = left, now
            raise GatewayError(429, f"{grant.name!r} may send {grant.rate:g} requests per second",
                               retry_after=(1 - left) / grant.rate)  # fmt: skip
        self._left[grant.name] = left - 1, now


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


class Keyring(Verified):
    """The tokens of a file. Call `refresh` often: it reads the file again when it has changed."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self.path = os.fspath(path)
        self._stamp: tuple[int, ...] | None = None
        self._tokens: Mapping[str, tokens.Token] = {}
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

    def _verified(self, authorization: str, now: float) -> Grant | None:
        scheme, _, text = authorization.partition(" ")
        prefix, _, rest = text.strip().partition("_")
        identity, _, secret = rest.partition("_")
        token = self._tokens.get(identity)
        if scheme.lower() != "bearer" or f"{prefix}_" != tokens.PREFIX or token is None:
            return None
        if not tokens.matches(token, secret) or now >= token.end:
            return None
        return Grant(token.name, frozenset(token.scopes), token.end, token.models, token.devices, token.rate)


class Gate:
    """The rules of `[serve.access]`: call `check` first for every request, and `refresh` about once a second."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.time) -> None:
        self.keyring = Keyring(access.tokens, clock) if access.tokens else None
        self.issuer = _issuer(access, clock)
        self.quotas = Quotas()
        infer = "token" if access.tokens or access.issuer else "open"
        self.rules: Mapping[str, str] = {"infer": infer, "manage": access.management, "metrics": access.metrics}

    @property
    def open(self) -> bool:
        """Whether inferences need no token."""
        return self.rules["infer"] == "open"

    def refresh(self) -> bool:
        """See Keyring.refresh and Issuer.refresh."""
        if self.issuer is not None:
            self.issuer.refresh()
        return self.keyring is not None and self.keyring.refresh()

    def check(
        self,
        scope: str,
        peer: str,
        authorization: str | None = None,
        origin: str | None = None,
        host: str | None = None,
        forwarded: str | None = None,
    ) -> Grant:
        """What the client may do. Raises GatewayError: 401, 403 or 429.

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
        return ANYBODY

    def _by_token(self, scope: str, peer: str, authorization: str | None) -> Grant:
        keyring: Keyring | Issuer | None = self.keyring
        if self.issuer is not None and (keyring is None or is_claim(authorization)):
            keyring = self.issuer
        if keyring is None:  # settings demand a file of tokens, or an issuer, where a rule is "token"
            raise GatewayError(500, f"{scope}: expected a file of tokens, got none; set access.tokens")
        grant = keyring.grant(authorization, peer)
        if scope not in grant.scopes:
            allowed = ", ".join(sorted(grant.scopes)) or "nothing"
            raise GatewayError(403, f"the token of {grant.name!r} allows {allowed}, not {scope}")
        return grant

    def who(self, authorization: str | None) -> str:
        """The name of a client that was admitted before, for the log."""
        for keyring in (self.keyring, self.issuer):
            if keyring is not None and (name := keyring.known(authorization)):
                return name
        return ANYBODY.name if self.open else ""


def is_claim(authorization: str | None) -> bool:
    """Whether a header has signed claims (a JSON Web Token) rather than one of our tokens."""
    return authorization is not None and authorization.count(".") == 2 and f" {tokens.PREFIX}" not in authorization


def _issuer(access: Access, clock: Callable[[], float]) -> Issuer | None:
    if not access.issuer:
        return None
    from edge.gateway.operate.issuer import Issuer

    return Issuer(access.issuer, access.audience, clock=clock)


def _demand_local(scope: str, peer: str, origin: str | None, host: str | None) -> None:
    if peer and not is_loopback(peer):
        raise GatewayError(403, f"{scope}: allowed only for clients on this machine, got {peer}; "
                           'access.management = "token" allows it for holders of tokens')  # fmt: skip
    # A web page can make its reader's browser send requests to 127.0.0.1, under that name or, with a name server of the
    # attacker (DNS rebinding), under any other: such requests have an Origin other than this server, or a Host other
    # than this machine.
    if origin is not None and origin.partition("://")[2] != host:
        raise GatewayError(403, f"{scope}: not allowed for web pages of {origin!r:.80}")
    name = _hostname(host or "localhost")
    if not (name == "localhost" or is_loopback(name)):
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


def is_loopback(text: str) -> bool:
    """Whether an address is this machine's own."""
    address = _address(text)
    return address is not None and address.is_loopback


def _network(peer: str) -> str:
    address = _address(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return address.packed[:8].hex()
    return str(address or peer)
