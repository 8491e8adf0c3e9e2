"""All settings of `msedge serve`, as frozen data: their names, allowed values and defaults.

A value's name is its place in the tree. `batching.rows` is `rows` in `[serve.batching]` of a file, the variable
MSEDGE_SERVE_BATCHING_ROWS, and the flag --batching-rows; `port` is `port` in `[serve]`, MSEDGE_SERVE_PORT and --port.
`sources.resolve` merges them.

In an annotation, `extra={"size": True}` marks a number of bytes, which may be written "64MiB", and
`extra={"path": True}` the path of a file or folder, relative to the file that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from edge.gateway.errors import GatewayError
from federated.tables import Fraction, Reader, Table

__all__ = [
    "REMOTE", "Access", "Batching", "Cache", "Grpc", "Limits", "Logs", "Personal", "Repository", "Sequences",
    "Settings", "Tls", "Traces", "Trust",
]  # fmt: skip

_BYTES = "bytes, from 1 to 2^50, such as 65536 or '64MiB'"
_BYTES_OR_NONE = "bytes up to 2^50, such as '2GiB'; 0: no cap"

Count = Annotated[int, Meta(ge=1, le=10**9)]
CountOrNone = Annotated[int, Meta(ge=0, le=10**9)]
Seconds = Annotated[float, Meta(ge=0.001, le=10**7, description="seconds from 0.001 to 10,000,000")]
SecondsOrNone = Annotated[float, Meta(ge=0, le=10**7, description="seconds from 0 to 10,000,000")]
Size = Annotated[int, Meta(ge=1, le=1 << 50, description=_BYTES, extra={"size": True})]
SizeOrNone = Annotated[int, Meta(ge=0, le=1 << 50, description=_BYTES_OR_NONE, extra={"size": True})]
Path = Annotated[str, Meta(pattern=r"\A[^\0]*\Z", description="a path", extra={"path": True})]
REMOTE = ("http://", "https://", "oci://", "s3://")
"""How the addresses of registries begin."""
_MODEL = "a path, NAME=path, or an address http(s)://…, oci://… or s3://…"
_MODELS = "paths, NAME=path, or addresses http(s)://…, oci://… or s3://…"
Models = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A[^\0]+\Z", description=_MODEL)], ...],
    Meta(description=_MODELS, extra={"path": True}),
]
Files = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A[^\0]+\Z", description="a path")], ...],
    Meta(description="a list of paths", extra={"path": True}),
]
_ORIGIN = "an origin such as https://app.example, not '*'"
Origins = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\Ahttps?://[!-)+\-.0-~]+\Z", description=_ORIGIN)], ...],
    Meta(description="a list of origins such as https://app.example"),
]
Host = Annotated[str, Meta(pattern=r"\A[\w!-~]+\Z", description="a host or an address")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port from 0 to 65,535 (0: any free port)")]
_PORT_OR_NONE = "a port from 0 to 65,535 (0: any free port), or -1: none"
PortOrNone = Annotated[int, Meta(ge=-1, le=65535, description=_PORT_OR_NONE)]
Url = Annotated[str, Meta(pattern=r"\A(?:https?://|\Z)", description="an address http(s)://…, or none")]


class _Section(Table, frozen=True):
    """A section of the settings."""

    reader: ClassVar[Reader] = Reader(partial(GatewayError, 500), "see `msedge serve --print-config`")


class Repository(_Section, frozen=True):
    """Where models are and how long they stay."""

    cache: Path = ""
    """Folder for bundles downloaded from a registry; "": a folder in the user's cache."""
    cache_bytes: SizeOrNone = 16 << 30
    """Most bytes of that folder; bundles that no registry lists any more are removed first. 0: no limit."""
    credentials: Path = ""
    """TOML file that says with which credentials and certificates to ask which registry."""
    poll: SecondsOrNone = 5.0
    """Seconds between checks of the folders for changes; 0: never."""
    memory: SizeOrNone = 0
    """Bytes of weights and buffers above which the least recently used models are unloaded; 0: no limit."""
    pinned: tuple[str, ...] = ()
    """Models that are never unloaded to save memory."""


class Trust(_Section, frozen=True):
    """Which bundles may be served."""

    keys: Files = ()
    """Public keys (`msedge keygen`); if there are any, a bundle must be signed by one of them (extra `sign`)."""


class Batching(_Section, frozen=True):
    """Limits of queues and batches; a model's own file may set lower ones."""

    rows: Count = 64
    """The most rows of one batch."""
    queue_rows: Count = 4096
    """Rows of one model that may wait; more are refused with 429."""
    queue_requests: Count = 4096
    """Requests of one model that may wait."""
    concurrency: CountOrNone = 0
    """Requests of one model that may be waiting or computed at once; 0: any number."""
    timeout: SecondsOrNone = 30.0
    """Deadline in seconds of requests that set none; 0: none."""


class Cache(_Section, frozen=True):
    """Answers that are kept, for models with `response_cache = {enable = true}`."""

    bytes: SizeOrNone = 0
    """Most bytes of all answers; 0: none are kept."""


class Limits(_Section, frozen=True):
    """Limits for clients."""

    body: Size = 64 << 20
    """Most bytes of a request, after decompression."""
    reply: Size = 256 << 20
    """Most bytes of a reply."""
    header_seconds: Seconds = 10.0
    """Seconds within which a request's line and headers must arrive."""
    body_seconds: Seconds = 60.0
    """Seconds within which its body must arrive."""
    idle_seconds: Seconds = 75.0
    """Seconds that a connection may stay open between requests."""
    connections: Count = 4096
    """Most connections that may be open at once."""
    peer_connections: CountOrNone = 0
    """Most connections of one address, trusted proxies excepted; 0: half of all."""
    bodies: SizeOrNone = 0
    """Most bytes of all bodies and replies together; 0: 16 bodies, or a quarter of the memory that is left."""
    regions: Count = 64
    """Most regions of shared memory that may be registered at once."""
    region_bytes: Size = 1 << 30
    """Most bytes of all of them together."""


class Grpc(_Section, frozen=True):
    """gRPC, beside HTTP: at the same host, with the same limits, certificates and access control."""

    port: PortOrNone = -1
    """-1: no gRPC."""
    calls: Count = 4096
    """Most calls at once; a stream is one."""
    stream_requests: Count = 64
    """Requests of one stream that may wait for their replies; no more of it is read until then."""
    keepalive: Seconds = 60.0
    """Seconds without a message after which a client is pinged; one that does not answer is disconnected."""


class Language(_Section, frozen=True):
    """Language models."""

    tokens: CountOrNone = 0
    """Tokens that a model's caches hold, of all texts together; 0: four of its longest texts, but at most what a
    quarter of the memory holds."""
    texts: Count = 32
    """Texts of a model that are computed at once, unless its own file has `max_batch`."""
    adapters: Path = ""
    """Folder of adapters, MODEL/NAME.msstate, which clients ask for as MODEL:NAME; "": none."""
    adapters_loaded: Count = 16
    """Adapters of a model that are in memory at once; texts with further ones wait."""


class Tls(_Section, frozen=True):
    """HTTPS; changed files are read again."""

    certificate: Path = ""
    """PEM: the server's certificate and the intermediate ones; "": plain HTTP."""
    key: Path = ""
    """PEM: its private key, without a password."""
    client_ca: Path = ""
    """PEM: the authority of clients' certificates; if set, every client must present one."""


class Access(_Section, frozen=True):
    """Access control. Everyone may read the health of the server."""

    tokens: Path = ""
    """File of tokens (`msedge token add`); if set, every inference needs a token with the scope `infer`."""
    issuer: Url = ""
    """OpenID Connect: the issuer of signed tokens (JWT) that are accepted too; its keys are read from it."""
    audience: str = ""
    """The audience that such tokens must be made for; needed with `issuer`."""
    devices: Literal["token", "certificate"] = "token"
    """What says which device a client is: its token (`msedge token add --device`), or the name in its certificate."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks (10.0.0.0/8) of proxies that are trusted to name their clients in X-Forwarded-For."""
    management: Literal["loopback", "token", "off"] = "loopback"
    """Who may load and unload models: clients on this machine; holders of a token with `manage`; nobody."""
    metrics: Literal["open", "loopback", "token", "off"] = "open"
    """Who may read metrics and the status page; `token`: with the scope `metrics`."""
    shared_memory: Literal["off", "loopback"] = "off"
    """Who may register shared memory: clients on this machine, with a token of scope `memory` if there are tokens."""
    cors: Origins = ()
    """Origins of web pages that a browser allows to read replies (CORS)."""


class Logs(_Section, frozen=True):
    """What is written to stderr."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Fraction = 0.0
    """Share of requests that are logged. Internal errors are always logged."""


class Traces(_Section, frozen=True):
    """Spans for OpenTelemetry (extra `otel`)."""

    endpoint: Url = ""
    """Address that receives them, OTLP over HTTP, such as http://localhost:4318/v1/traces; "": no traces."""
    share: Fraction = 0.01
    """Share of requests that are traced, of those whose headers do not decide it."""


class Sequences(_Section, frozen=True):
    """Sequences: requests that continue one another, for models that keep state."""

    most: Count = 1024
    """Sequences at once; a request that begins one more is refused with 429."""
    memory: Size = 256 << 20
    """Bytes of their state."""
    idle: Seconds = 60.0
    """Seconds without a request after which a sequence is forgotten."""


class Personal(_Section, frozen=True):
    """Personal versions of devices."""

    store: Path = ""
    """File of federated sync (`[sync] store`); "": none are served."""
    devices: Count = 1024
    """Devices whose versions are kept in memory at once, per model."""
    refresh: Seconds = 5.0
    """Seconds between checks of the store for newer versions."""


class Explaining(_Section, frozen=True):
    """Explanations of answers, `/v1/models/NAME:explain`."""

    rows: CountOrNone = 2048
    """The most rows of a model that one request may cost; 0: no explanations."""
    seconds: Seconds = 20.0
    """The longest that one request may take."""
    at_once: Count = 1
    """Explanations that are made at once."""
    waiting: Count = 16
    """Explanations at once, those that wait included; more are refused with 429."""


class Settings(_Section, frozen=True):
    """All settings. `sources`: the origin of every value that is not a default: "flag --port", "MSEDGE_SERVE_PORT"."""

    models: Models = ()
    """Bundles, folders of models, registries."""
    host: Host = "127.0.0.1"
    port: Port = 8000
    threads: CountOrNone = 0
    """Threads that compute; 0: one per core."""
    drain: SecondsOrNone = 30.0
    """Seconds that current requests have to finish after SIGTERM."""
    repository: Repository = Repository()
    trust: Trust = Trust()
    batching: Batching = Batching()
    cache: Cache = Cache()
    limits: Limits = Limits()
    grpc: Grpc = Grpc()
    language: Language = Language()
    tls: Tls = Tls()
    access: Access = Access()
    logs: Logs = Logs()
    traces: Traces = Traces()
    explaining: Explaining = Explaining()
    personal: Personal = Personal()
    sequences: Sequences = Sequences()
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise GatewayError for values that contradict each other."""
        super().__post_init__()
        if bool(self.tls.certificate) != bool(self.tls.key):
            there, missing = ("certificate", "key") if self.tls.certificate else ("key", "certificate")
            raise GatewayError(500, f"tls.{missing}: expected a file, as tls.{there} has one, got none")
        if self.tls.client_ca and not self.tls.certificate:
            raise GatewayError(500, "tls.client_ca: expected tls.certificate and tls.key beside it, got neither")
        if bool(self.access.issuer) != bool(self.access.audience):
            raise GatewayError(500, "access: expected issuer and audience together, got one of them")
        if self.access.devices == "certificate" and not self.tls.client_ca:
            raise GatewayError(500, 'access.devices: "certificate" expects tls.client_ca, got none')
        for key, who in (("management", self.access.management), ("metrics", self.access.metrics)):
            if who == "token" and not (self.access.tokens or self.access.issuer):
                raise GatewayError(
                    500, f'access.{key}: "token" expects a file in access.tokens, or access.issuer, got none; '
                    "`msedge token add NAME` creates one"
                )  # fmt: skip
