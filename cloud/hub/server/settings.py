"""What a hub is told: a TOML file with one section [hub], or options of the command."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar

from msgspec import Meta

from cloud.hub.errors import HubError
from federated.tables import Count, Positive, Reader, Table

__all__ = ["Settings", "read_settings"]

_READER = Reader(HubError, "docs/updates.md has the keys")
_Seconds = Annotated[float, Meta(gt=0, le=1e7, description="seconds, above 0")]


class Settings(Table, frozen=True):
    """The keys of [hub].

    address: HOST:PORT to listen on; port 0 finds a free one. database: a path, or postgresql://…. repository: the
    folder or s3://… that has the signed files; "": none are served. certificate, key: PEM files; without them only
    this machine's own addresses may be listened on. clients: devices must show the certificate of their key.
    proxies: addresses of proxies, whose X-Forwarded-For is believed.

    interval: seconds between two check-ins of a device; longer if more than `capacity` a second would come. watch: the
    same, while a rollout waits for the device's result. waiting: how many may wait for news at once. session,
    certified: for how long a session and a certificate are good.

    rate, files: requests and files a second of one device; each may save up `burst` seconds of them. visitors: requests
    a second of one address. events: of one device, an hour. telemetry: whether batches are taken. keep: days after
    which events and telemetry are removed. collector: where OpenTelemetry's metrics are sent by HTTP; "": nowhere.
    """

    reader: ClassVar[Reader] = _READER
    address: str = "127.0.0.1:8643"
    database: str = "hub.sqlite"
    repository: str = ""
    certificate: str = ""
    key: str = ""
    clients: bool = False
    proxies: tuple[str, ...] = ()
    interval: _Seconds = 300.0
    watch: _Seconds = 30.0
    capacity: Positive = 200.0
    waiting: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    session: _Seconds = 3600.0
    certified: _Seconds = 90 * 86_400.0
    rate: Positive = 1.0
    files: Positive = 200.0
    burst: _Seconds = 20.0
    visitors: Positive = 200.0
    events: Positive = 1000.0
    telemetry: bool = False
    keep: Count = 90
    collector: str = ""


class _File(Table, frozen=True):
    reader: ClassVar[Reader] = _READER
    hub: Settings


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """The settings in a file. Raises HubError, which names the key."""
    return _READER.read(_File, _READER.file(path), f"{os.fspath(path)}: ").hub
