"""Everything `msedge serve` can be told, as frozen data: what there is, what it may be, and what it is unless told.

A value's name is its place in the tree. `batching.rows` is `rows` in `[serve.batching]` of a file, the variable
MSEDGE_SERVE_BATCHING_ROWS, and the flag --batching-rows; `port` is `port` in `[serve]`, MSEDGE_SERVE_PORT and --port.
`sources.resolve` merges them.

In an annotation, `extra={"size": True}` stands for bytes, which may be written "64MiB", and `extra={"path": True}` for
the path of a file or folder, relative to the file that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from edge.gateway.errors import GatewayError
from federated.tables import Fraction, Reader, Table

__all__ = ["Access", "Batching", "Limits", "Logs", "Personal", "Repository", "Settings", "Tls", "Traces"]

_BYTES = "bytes, from 1 to 2^50, such as 65536 or '64MiB'"
_BYTES_OR_NONE = "bytes up to 2^50, such as '2GiB'; 0: no cap"

Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrNone = Annotated[int, Meta(ge=0, le=10**9)]
Seconds = Annotated[float, Meta(ge=0.001, le=10**7, description="seconds from 0.001 to 10,000,000")]
SecondsOrNone = Annotated[float, Meta(ge=0, le=10**7, description="seconds from 0 to 10,000,000")]
Size = Annotated[int, Meta(ge=1, le=1 << 50, description=_BYTES, extra={"size": True})]
SizeOrNone = Annotated[int, Meta(ge=0, le=1 << 50, description=_BYTES_OR_NONE, extra={"size": True})]
Path = Annotated[str, Meta(pattern=r"\A[^\0]*\Z", description="a path", extra={"path": True})]
_PATHS = "paths, NAME=path or http(s)://…"
Paths = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A[^\0]+\Z", description="a path, NAME=path or http(s)://…")], ...],
    Meta(description=_PATHS, extra={"path": True}),
]
_ORIGIN = "an origin such as https://app.example, not '*'"
Origins = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\Ahttps?://[!-)+\-.0-~]+\Z", description=_ORIGIN)], ...],
    Meta(description="a list of origins such as https://app.example"),
]
Host = Annotated[str, Meta(pattern=r"\A[\w!-~]+\Z", description="a host or an address")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port from 0 to 65,535 (0: any that is free)")]
Url = Annotated[str, Meta(pattern=r"\A(?:https?://|\Z)", description="an address http(s)://…, or none")]


class _Section(Table, frozen=True):
    """A section of the settings."""

    reader: ClassVar[Reader] = Reader(partial(GatewayError, 500), "see `msedge serve --print-config`")


class Repository(_Section, frozen=True):
    """Where models are and how long they stay."""

    cache: Path = ""
    """Folder for bundles that a registry sends; "": one of the user's cache."""
    poll: SecondsOrNone = 5.0
    """Seconds between looks at the folders for what changed; 0: never."""
    memory: SizeOrNone = 0
    """Bytes of weights and buffers beyond which the models used longest ago are unloaded; 0: no cap."""
    pinned: tuple[str, ...] = ()
    """Models that are never unloaded for want of memory."""


class Batching(_Section, frozen=True):
    """How much waits and how much is computed at once; a model's own file may say less."""

    rows: Count = 64
    """The most rows of one batch."""
    queue_rows: Count = 4096
    """Rows of one model that may wait; more are refused with 429."""
    queue_requests: Count = 4096
    """Requests of one model that may wait."""
    concurrency: CountOrNone = 0
    """Requests of one model that may be under way, waiting or computed; 0: any number."""
    timeout: SecondsOrNone = 30.0
    """Seconds until an answer is of no use, for requests that do not say; 0: never."""


class Limits(_Section, frozen=True):
    """What a client may ask of the gateway."""

    body: Size = 64 << 20
    """Bytes of a request, after decompression."""
    reply: Size = 256 << 20
    """Bytes of a reply."""
    header_seconds: Seconds = 10.0
    """For a request's line and headers to arrive."""
    body_seconds: Seconds = 60.0
    """For its body to arrive."""
    idle_seconds: Seconds = 75.0
    """That a connection may stay open between requests."""
    connections: Count = 4096
    """Open at once."""


class Tls(_Section, frozen=True):
    """HTTPS; files are read again when they change."""

    certificate: Path = ""
    """PEM: the server's certificate and those between it and the root; "": plain HTTP."""
    key: Path = ""
    """PEM: its private key, without a password."""
    client_ca: Path = ""
    """PEM: who signs clients' certificates; then every client must show one."""


class Access(_Section, frozen=True):
    """Who may do what. Health is open to all."""

    tokens: Path = ""
    """File of tokens (`msedge token add`); then every inference needs one with the scope `infer`."""
    management: Literal["loopback", "token", "off"] = "loopback"
    """Who may load and unload models: clients on this machine; holders of a token with `manage`; nobody."""
    metrics: Literal["open", "loopback", "token", "off"] = "open"
    """Who may read metrics and the status page; `token`: with the scope `metrics`."""
    cors: Origins = ()
    """Web pages of which origins a browser lets read answers."""


class Logs(_Section, frozen=True):
    """What is written to stderr."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Fraction = 0.0
    """Of the requests, how many leave a line. Those that end in a bug of ours always do."""


class Traces(_Section, frozen=True):
    """Spans for OpenTelemetry (extra `otel`)."""

    endpoint: Url = ""
    """Where they are sent, OTLP over HTTP, such as http://localhost:4318/v1/traces; "": nowhere."""
    share: Fraction = 0.01
    """Of the requests that do not say themselves, how many are traced."""


class Personal(_Section, frozen=True):
    """Devices' own versions."""

    store: Path = ""
    """File of federated sync (`[sync] store`); "": none are served."""
    devices: Count = 1024
    """Whose versions are held ready at once, of each model."""
    refresh: Seconds = 5.0
    """Seconds between looks at the store for newer versions."""


class Settings(_Section, frozen=True):
    """A gateway. `sources` says of every value that was told where, by name: "flag --port", "MSEDGE_SERVE_PORT"."""

    models: Paths = ()
    """Bundles, folders of models, registries."""
    host: Host = "127.0.0.1"
    port: Port = 8000
    threads: CountOrNone = 0
    """That compute; 0: as many as the machine has cores."""
    drain: SecondsOrNone = 30.0
    """Seconds that requests under way have to end after SIGTERM."""
    repository: Repository = Repository()
    batching: Batching = Batching()
    limits: Limits = Limits()
    tls: Tls = Tls()
    access: Access = Access()
    logs: Logs = Logs()
    traces: Traces = Traces()
    personal: Personal = Personal()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise GatewayError for values that contradict each other."""
        super().__post_init__()
        if bool(self.tls.certificate) != bool(self.tls.key):
            there, missing = ("certificate", "key") if self.tls.certificate else ("key", "certificate")
            raise GatewayError(500, f"tls.{missing}: expected a file, as tls.{there} has one, got none")
        if self.tls.client_ca and not self.tls.certificate:
            raise GatewayError(500, "tls.client_ca: expected tls.certificate and tls.key beside it, got neither")
        for key, who in (("management", self.access.management), ("metrics", self.access.metrics)):
            if who == "token" and not self.access.tokens:
                raise GatewayError(
                    500, f'access.{key}: "token" expects a file in access.tokens, got none; '
                    "`msedge token add NAME` makes one"
                )  # fmt: skip
