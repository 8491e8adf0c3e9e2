"""Which bundles may be served: those that a trusted key has signed, from whatever source they come."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from edge.gateway.errors import GatewayError
from lite_runtime import bundle
from lite_runtime.bundle import keys
from lite_runtime.bundle.keys import PublicKey
from lite_runtime.bundle.signatures import signatures_of
from lite_runtime.errors import MsedgeError

__all__ = ["SOON", "Trust", "Untrusted"]

SOON = 14 * 86_400.0
"""Seconds before a key expires from which the log warns."""


class Untrusted(GatewayError):
    """A bundle that no trusted key has signed; it is judged again when the keys change."""


class Trust:
    """The public keys in some files. Raises GatewayError for files that are no keys, or that hold a key twice."""

    def __init__(self, paths: Sequence[str], clock: Callable[[], float] = time.time) -> None:
        self._paths, self._clock = paths, clock
        self._stamp = self._seen()
        self.keys = self._read()
        self.refused = 0
        """How many times a bundle was refused."""

    def check(self, data: memoryview | bytes, model: str, version: int) -> str:
        """The name of the key that has signed a bundle to be served as this. Raises Untrusted, with the reason, and
        BundleError for a damaged bundle."""
        try:
            return keys.check(bundle.opened(data), self.keys, self._clock(), model, version).name
        except keys.TrustError as error:
            raise self.refusal(model, version, str(error)) from None

    def refusal(self, model: str, version: int, reason: str) -> Untrusted:
        """The error for what may not be served, which is counted."""
        self.refused += 1
        return Untrusted(400, f"model {model!r}, version {version}: {reason}")

    def holds(self, data: memoryview | bytes) -> bool:
        """Whether a bundle that was trusted when it was loaded still is: a key that was removed is not trusted any
        more, while one that expired may go on serving what it has signed."""
        known = {key.key for key in self.keys}
        return any(one.key in known for one in signatures_of(bundle.opened(data)))

    def refresh(self) -> bool:
        """Read the files again if they changed; returns whether the keys did. Raises GatewayError, once per change, if
        they are invalid: then the earlier ones stay in use."""
        stamp = self._seen()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        before, self.keys = self.keys, self._read()
        return before != self.keys

    def expiring(self) -> list[PublicKey]:
        """Keys that have expired or soon will."""
        return [key for key in self.keys if key.expires - self._clock() < SOON]

    def _read(self) -> tuple[PublicKey, ...]:
        try:
            found = tuple(keys.public_key(path) for path in self._paths)
        except MsedgeError as error:
            raise GatewayError(500, f"trust.keys: {error}") from error
        for which in ("name", "key"):
            words = [getattr(key, which) for key in found]
            twice = next((word for word in words if words.count(word) > 1), None)
            if twice is not None:
                raise GatewayError(500, f"trust.keys: expected keys with different names, got {twice!r} twice")
        return found

    def _seen(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes when a file does."""
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino
