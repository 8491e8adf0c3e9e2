"""Everything `msedge serve` can be told, as frozen data: what there is, what it may be, and what it is unless told.

A value's name is its place in the tree. `batching.rows` is `rows` in `[serve.batching]` of a file, the variable
MSEDGE_SERVE_BATCHING_ROWS, and the flag --batching-rows; `port` is `port` in `[serve]`, MSEDGE_SERVE_PORT and --port.
`sources.resolve` merges them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from edge.gateway.errors import GatewayError

__all__ = ["Access", "Batching", "Limits", "Logs", "Personal", "Repository", "Rule", "Settings", "Tls", "Traces"]


class Rule(NamedTuple):
    """What a value must be. `size`: bytes, for which "64MiB" may stand too; `path`: of a file or folder, relative to
    the file that names it."""

    expected: str
    holds: Callable[[Any], bool]
    size: bool = False
    path: bool = False


def _from(least: float, most: float, what: str) -> Rule:
    return Rule(f"{what} from {least:,} to {most:,}", lambda value: least <= value <= most)


def _origin(text: str) -> bool:
    scheme, _, rest = text.partition("://")
    return scheme in ("http", "https") and bool(rest) and rest.isprintable() and not set(rest) & set("/ *,")


Count = Annotated[int, _from(1, 10**9, "a whole number")]
CountOrNone = Annotated[int, _from(0, 10**9, "a whole number")]
Seconds = Annotated[float, _from(0.001, 10**7, "seconds")]
SecondsOrNone = Annotated[float, _from(0, 10**7, "seconds")]
Share = Annotated[float, _from(0, 1, "a share")]
Size = Annotated[int, Rule("bytes, from 1 to 2^50, such as 65536 or '64MiB'", lambda v: 1 <= v <= 1 << 50, size=True)]
SizeOrNone = Annotated[int, Rule("bytes up to 2^50, such as '2GiB'; 0: no cap", lambda v: 0 <= v <= 1 << 50, size=True)]
Path = Annotated[str, Rule("a path", lambda text: "\0" not in text, path=True)]
Paths = Annotated[
    tuple[str, ...], Rule("paths, NAME=path or http(s)://…", lambda v: all(v) and "\0" not in "".join(v), path=True)
]
Origins = Annotated[
    tuple[str, ...], Rule("origins such as https://app.example, none of them '*'", lambda v: all(map(_origin, v)))
]
Host = Annotated[str, Rule("a host or an address", lambda text: bool(text) and text.isprintable() and " " not in text)]
Url = Annotated[
    str,
    Rule("an address http(s)://…, or none", lambda text: not text or text.startswith(("http://", "https://"))),
]


@dataclass(frozen=True)
class Repository:
    """Where models are and how long they stay."""

    cache: Path = ""
    """Folder for bundles that a registry sends; "": one of the user's cache."""
    poll: SecondsOrNone = 5.0
    """Seconds between looks at the folders for what changed; 0: never."""
    memory: SizeOrNone = 0
    """Bytes of weights and buffers beyond which the models used longest ago are unloaded; 0: no cap."""
    pinned: tuple[str, ...] = ()
    """Models that are never unloaded for want of memory."""


@dataclass(frozen=True)
class Batching:
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


@dataclass(frozen=True)
class Limits:
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


@dataclass(frozen=True)
class Tls:
    """HTTPS; files are read again when they change."""

    certificate: Path = ""
    """PEM: the server's certificate and those between it and the root; "": plain HTTP."""
    key: Path = ""
    """PEM: its private key, without a password."""
    client_ca: Path = ""
    """PEM: who signs clients' certificates; then every client must show one."""


@dataclass(frozen=True)
class Access:
    """Who may do what. Health is open to all."""

    tokens: Path = ""
    """File of tokens (`msedge token add`); then every inference needs one with the scope `infer`."""
    management: Literal["loopback", "token", "off"] = "loopback"
    """Who may load and unload models: clients on this machine; holders of a token with `manage`; nobody."""
    metrics: Literal["open", "loopback", "token", "off"] = "open"
    """Who may read metrics and the status page; `token`: with the scope `metrics`."""
    cors: Origins = ()
    """Web pages of which origins a browser lets read answers."""


@dataclass(frozen=True)
class Logs:
    """What is written to stderr."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Share = 0.0
    """Of the requests, how many leave a line. Those that end in a bug of ours always do."""


@dataclass(frozen=True)
class Traces:
    """Spans for OpenTelemetry (extra `otel`)."""

    endpoint: Url = ""
    """Where they are sent, OTLP over HTTP, such as http://localhost:4318/v1/traces; "": nowhere."""
    share: Share = 0.01
    """Of the requests that do not say themselves, how many are traced."""


@dataclass(frozen=True)
class Personal:
    """Devices' own versions."""

    store: Path = ""
    """File of federated sync (`[sync] store`); "": none are served."""
    devices: Count = 1024
    """Whose versions are held ready at once, of each model."""
    refresh: Seconds = 5.0
    """Seconds between looks at the store for newer versions."""


@dataclass(frozen=True)
class Settings:
    """A gateway. `sources` says of every value that was told where, by name: "flag --port", "MSEDGE_SERVE_PORT"."""

    models: Paths = ()
    """Bundles, folders of models, registries."""
    host: Host = "127.0.0.1"
    port: Annotated[int, _from(0, 65535, "a port (0: any that is free)")] = 8000
    threads: CountOrNone = 0
    """That compute; 0: as many as the machine has cores."""
    drain: SecondsOrNone = 30.0
    """Seconds that requests under way have to end after SIGTERM."""
    repository: Repository = field(default_factory=Repository)
    batching: Batching = field(default_factory=Batching)
    limits: Limits = field(default_factory=Limits)
    tls: Tls = field(default_factory=Tls)
    access: Access = field(default_factory=Access)
    logs: Logs = field(default_factory=Logs)
    traces: Traces = field(default_factory=Traces)
    personal: Personal = field(default_factory=Personal)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Raise GatewayError for values that contradict each other."""
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
