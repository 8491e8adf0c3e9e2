"""What a registry offers, as data: rows, each a version of a model and where its bundle is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from edge.gateway.models.names import shown

__all__ = ["Before", "Catalogue", "Fetched", "Row", "Rows"]

Before = Mapping[tuple[str, int], "Row"]
"""The last good row of every version, by name and version."""


class Row(Struct, frozen=True, kw_only=True):
    """A version in a registry.

    key: identifies the bundle's bytes, and may be a file's name. where: its address within the registry, without
    secrets unless it is a URL with a query. digest: the bundle's own, sha256: of the whole file; in hex, "" if the
    registry does not say. size: in bytes. config: as in `config.toml`.
    """

    name: str
    version: int
    key: str
    where: str
    digest: str = ""
    sha256: str = ""
    size: int | None = None
    config: Mapping[str, Any] | None = None

    @property
    def shown(self) -> str:
        """Where it is, as errors show it."""
        return shown(self.where.partition("?")[0])


class Rows(NamedTuple):
    """What a registry lists. problems: why rows cannot be used, or are not up to date, by model; "" for rows that name
    none."""

    rows: list[Row]
    problems: dict[str, str]


class Fetched(NamedTuple):
    """Content of a bundle from byte `start` on, which may be before the one that was asked for; `total`: bytes of the
    whole bundle, if they are known."""

    start: int
    total: int | None
    pieces: Iterator[bytes]


class Catalogue(Protocol):
    """A kind of registry. All methods block, and raise GatewayError.

    address: of the registry, with everything that distinguishes it. name: as logs, metrics and the status page show it.
    again: seconds after which a client should try again.
    """

    address: str
    name: str
    again: float

    def read(self, before: Before) -> Rows:
        """The present rows; `before`: the last good ones, which stay in the place of those that cannot be read."""
        ...

    def fetch(self, row: Row, start: int) -> AbstractContextManager[Fetched]:
        """The content of a row's bundle from a byte on."""
        ...
