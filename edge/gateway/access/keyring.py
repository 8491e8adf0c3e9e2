"""Tokens of a file, read again when it changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from edge.gateway.access import tokens
from edge.gateway.access.grants import Grant
from edge.gateway.access.verified import Verified

__all__ = ["Keyring"]


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
