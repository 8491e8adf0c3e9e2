"""Where an update comes from: what is signed, and the bytes that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from edge.agent.fetching import Fetch
from lite_runtime.updates.places import delta_target, file_of_piece, file_of_target
from lite_runtime.updates.release import Channel, Release

__all__ = ["Repository", "Source", "Trusted"]


class Trusted(Protocol):
    """What is signed in a repository: `edge.agent.trust.Trust`."""

    def refresh(self) -> None:
        """Bring what is trusted up to date. Raises AgentError; what was trusted before stays trusted."""
        ...

    def release(self, application: str, version: str) -> Release:
        """A version of an application. Raises AgentError."""
        ...

    def channel(self, application: str, name: str) -> Channel:
        """The versions that may run. Raises AgentError."""
        ...

    def delta(self, old: str, new: str) -> tuple[int, str] | None:
        """Bytes and SHA-256 of a delta between two files, named by their SHA-256; None if there is none."""
        ...


class Source(Trusted, Protocol):
    """What an update needs: what is signed, and pieces and deltas by their digest. Their bytes are not to be believed:
    whoever reads them checks their size and digest."""

    def piece(self, sha256: str, start: int = 0) -> Iterator[bytes]:
        """A piece from a byte on. Raises FetchError, also between parts."""
        ...

    def delta_content(self, old: str, new: str, sha256: str, start: int = 0) -> Iterator[bytes]:
        """The delta with this SHA-256 from a byte on. Raises FetchError, also between parts."""
        ...


class Repository:
    """A repository as the hub lays it out, over HTTPS or in a folder: both are trusted for the same signatures."""

    def __init__(self, trust: Trusted, fetch: Fetch) -> None:
        self._fetch = fetch
        self.refresh, self.release, self.channel, self.delta = trust.refresh, trust.release, trust.channel, trust.delta

    def piece(self, sha256: str, start: int = 0) -> Iterator[bytes]:
        """See `Source`."""
        return self._fetch.open(file_of_piece(sha256), start)

    def delta_content(self, old: str, new: str, sha256: str, start: int = 0) -> Iterator[bytes]:
        """See `Source`."""
        return self._fetch.open(file_of_target(delta_target(old, new), sha256), start)
