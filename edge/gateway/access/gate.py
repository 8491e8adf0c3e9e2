"""The rules of access: by token or signed claims, or from this machine only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from edge.gateway.access import tokens
from edge.gateway.access.addresses import is_loopback
from edge.gateway.access.grants import ANYBODY, Grant, Quotas
from edge.gateway.access.keyring import Keyring
from edge.gateway.errors import GatewayError
from edge.gateway.operate.settings import Access

if TYPE_CHECKING:
    from edge.gateway.access.issuer import Issuer

__all__ = ["Gate"]

_SETTINGS: Mapping[str, str] = {
    "manage": "access.management", "metrics": "access.metrics", "memory": "access.shared_memory",
}  # fmt: skip
"""The setting that is a scope's rule."""


class Gate:
    """The rules of `[serve.access]`: call `check` first for every request, and `refresh` about once a second."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.time) -> None:
        self.keyring = Keyring(access.tokens, clock) if access.tokens else None
        self.issuer = _issuer(access, clock)
        self.quotas = Quotas()
        infer = "token" if access.tokens or access.issuer else "open"
        memory = "local token" if access.shared_memory == "loopback" and infer == "token" else access.shared_memory
        self.rules: Mapping[str, str] = {
            "infer": infer, "manage": access.management, "metrics": access.metrics, "memory": memory,
        }  # fmt: skip

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
        if rule == "off":
            raise GatewayError(403, f"{scope}: disabled in this server's settings ({_SETTINGS[scope]})")
        if rule in ("loopback", "local token"):
            if forwarded:
                raise GatewayError(403, f"{scope}: allowed only for clients on this machine, not through a proxy")
            _demand_local(scope, peer, origin, host)
        return self._by_token(scope, peer, authorization) if rule in ("token", "local token") else ANYBODY

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

    def owner(self, authorization: str | None) -> str:
        """What tells a client that was admitted before from others: its name, and what vouches for it."""
        known = {"token": self.keyring, "claims": self.issuer}
        names = (f"{kind} {keyring.known(authorization)}" for kind, keyring in known.items()
                 if keyring is not None and keyring.known(authorization))  # fmt: skip
        return next(names, "")


def is_claim(authorization: str | None) -> bool:
    """Whether a header has signed claims (a JSON Web Token) rather than one of our tokens."""
    return authorization is not None and authorization.count(".") == 2 and f" {tokens.PREFIX}" not in authorization


def _issuer(access: Access, clock: Callable[[], float]) -> Issuer | None:
    if not access.issuer:
        return None
    from edge.gateway.access.issuer import Issuer

    return Issuer(access.issuer, access.audience, clock=clock)


def _demand_local(scope: str, peer: str, origin: str | None, host: str | None) -> None:
    if peer and not is_loopback(peer):
        more = "" if scope == "memory" else f'; {_SETTINGS[scope]} = "token" allows it for holders of tokens'
        raise GatewayError(403, f"{scope}: allowed only for clients on this machine, got {peer}{more}")
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
