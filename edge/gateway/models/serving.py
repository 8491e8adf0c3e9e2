"""A version that serves, a bundle or an ensemble: who uses it, and until when."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from edge.gateway.models.config import ModelConfig

if TYPE_CHECKING:
    from edge.gateway.batching.runner import Runner
    from edge.gateway.job import Job

__all__ = ["Follower", "Serving"]

_SERIALS = count(1)


class Follower(Protocol):
    """An object that is called for every job that a version has answered."""

    def after(self, job: Job, submit: Callable[[Job, Runner], None], /) -> None:
        """Called for an answered job; `submit` accepts further work, computed when the machine is idle."""


class Serving:
    """One loaded version. After its creation it is used only on the event loop's thread."""

    __slots__ = (
        "_forget", "awaits", "closed", "config", "digest", "in_flight", "name", "resident", "retired", "serial",
        "shadow", "signer", "used", "version",
    )  # fmt: skip

    def __init__(
        self, name: str, version: int, config: ModelConfig, digest: str, forget: Callable[[Serving], None]
    ) -> None:
        """forget: called when it is retired and its last request was answered."""
        self.name, self.version, self.config, self.digest = name, str(version), config, digest
        self.serial = next(_SERIALS)
        """A number that no other version has, nor another way of computing this one."""
        self.resident = 0
        """Bytes that it holds without its runners."""
        self.signer = ""
        """The name of the trusted key that has signed it; "" if none has to."""
        self.awaits: tuple[str, ...] = ()
        """Kernel families that are being compiled for it, while it runs by reference."""
        self.shadow: Follower | None = None
        self.in_flight = 0
        self.used = perf_counter()
        self.retired = self.closed = False
        self._forget = forget

    @property
    def problem(self) -> str:
        """Why it cannot answer now, although it is loaded; "" if it can."""
        return ""

    @property
    def nbytes(self) -> int:
        """Approximate bytes that it holds."""
        return self.resident

    def check(self, config: ModelConfig) -> None:
        """Raise GatewayError (400) for settings that a version of this kind cannot have."""

    def renumber(self) -> None:
        """From now on, it computes in another way."""
        self.serial = next(_SERIALS)

    def acquire(self, now: float) -> None:
        """Count a request for this version, which stays loaded until `release`. now: `time.perf_counter()`."""
        self.in_flight += 1
        self.used = now

    def release(self) -> None:
        """The request was answered or cancelled."""
        self.in_flight -= 1
        if self.retired and not self.in_flight:
            self._close()

    def retire(self) -> None:
        """There are no new requests for this version: when the last one is answered, its memory is freed."""
        self.retired = True
        if not self.in_flight:
            self._close()

    def _close(self) -> None:
        self.closed = True
        self._forget(self)
        self.shadow = None
