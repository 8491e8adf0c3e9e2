"""A model's configuration beside its bundle: `config.toml`, or the JSON of a load request.

    versions = "all"                            # or "latest", {latest = 2}, [1, 3]
    labels = {stable = 3, canary = "latest"}
    split = {stable = 0.9, canary = 0.1}        # of requests that name no version: shares by label or version
    shadow = {version = "canary", fraction = 0.2}
    max_batch = 32
    ladder = [1, 4, 16, 32]                     # batch sizes to try
    queue_rows = 512
    concurrency = 256                           # requests waiting or computed at once
    timeout = 0.5                               # deadline in seconds of requests that set none
    priority = 1
    memory = 200_000_000                        # bytes that one inference may hold
    pinned = true                               # never unloaded to save memory
    response_cache = {enable = true}            # answers are kept for requests with the same inputs

A load request may also use keys of Triton's configuration (`version_policy`, `max_batch_size`,
`dynamic_batching.preferred_batch_size`), so that the result of `get_model_config` can be changed and sent back. Its
other keys describe the model and must match it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, field, structs

from edge.gateway.batching.queue import IDLE
from edge.gateway.errors import GatewayError
from edge.gateway.models.names import LABEL, VERSION, shown, version_of
from federated.tables import Reader, Table

__all__ = ["ModelConfig", "Policy", "Shadowing", "parse_config", "parse_override"]

MOST_BATCH = 4096


class Policy(NamedTuple):
    """Which versions are loaded: the newest `latest` ones that can be loaded, all of them, or `chosen`."""

    kind: Literal["latest", "all", "specific"] = "latest"
    latest: int = 1
    chosen: tuple[int, ...] = ()


_NEWEST = Policy()


class Shadowing(NamedTuple):
    """The version (a number or a label) that gets a copy of this share of requests; its answers are not returned."""

    version: str
    fraction: float


@dataclass(frozen=True)
class ModelConfig:
    """One model's configuration, validated. None: the gateway's setting."""

    versions: Policy = _NEWEST
    labels: Mapping[str, int | Literal["latest"]] = dataclasses.field(default_factory=dict)
    split: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Weights by label or version, for requests that name neither."""
    shadow: Shadowing | None = None
    queue_rows: int | None = None
    """Rows that may wait."""
    concurrency: int | None = None
    """Requests that may wait or be computed at once."""
    timeout: float | None = None
    """Deadline in seconds of requests that set none."""
    priority: int = 0
    """Priority of requests that set none: 1 goes first, 0 is the middle."""
    max_batch: int | None = None
    ladder: tuple[int, ...] = ()
    """Batch sizes to try, of which those that increase throughput are compiled; (): powers of two."""
    memory: int | None = None
    """Bytes that one inference may hold."""
    pinned: bool = False
    response_cache: bool = False
    """Whether answers are kept for requests with the same inputs."""
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """The description of the model itself in a load request, such as its inputs; it must match the bundle."""

    def made_as(self, other: ModelConfig) -> bool:
        """Whether a version loaded for one configuration can be used for the other."""
        return (self.max_batch, self.ladder, self.memory) == (other.max_batch, other.ladder, other.memory)

    @property
    def named(self) -> frozenset[str]:
        """Versions, as numbers, and labels that routing refers to."""
        shadow = (self.shadow.version,) if self.shadow is not None else ()
        return frozenset((*self.split, *shadow))


# -- the format of a file ----------------------------------------------------------------------------------------------

_Version = Annotated[int, Meta(ge=1, le=10**18 - 1, description="a version from 1")]
_Batch = Annotated[int, Meta(ge=1, le=MOST_BATCH)]
_BatchOrNone: Any = Annotated[int, Meta(ge=0, le=MOST_BATCH)]
_Label = Annotated[
    str,
    Meta(
        pattern=f"{LABEL[:-1]}\\Z",
        description="a label of up to 64 letters, digits and _ . -, beginning with a letter or _",
    ),
]
_Selector = Annotated[
    str, Meta(pattern=f"{LABEL[:-1]}\\Z|{VERSION[:-1]}\\Z", description="a label, or a version from 1")
]


class _Latest(Table, frozen=True):
    latest: Annotated[int, Meta(ge=1, le=1000)]


class _Shadow(Table, frozen=True):
    version: _Version | _Selector
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0


class _ResponseCache(Table, frozen=True):
    enable: bool = False


class _File(Table, frozen=True):
    """The format of `ModelConfig` in a file."""

    versions: (
        Literal["latest", "all"]
        | Annotated[_Latest, Meta(description="{latest = N}")]
        | Annotated[list[_Version], Meta(min_length=1, description="a list of versions")]
    ) = "latest"
    labels: Mapping[_Label, _Version | Literal["latest"]] = field(default_factory=dict)
    split: Mapping[_Selector, Annotated[float, Meta(ge=0, le=1e9)]] = field(default_factory=dict)
    shadow: _Shadow | None = None
    queue_rows: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    priority: Annotated[int, Meta(ge=0, le=IDLE - 1)] = 0
    max_batch: _Batch | None = None
    ladder: Annotated[list[_Batch], Meta(max_length=32, description="a list of up to 32 sizes")] = field(
        default_factory=list
    )
    memory: Annotated[int, Meta(ge=1, le=1 << 50)] | None = None
    pinned: bool = False
    response_cache: _ResponseCache = _ResponseCache()


_READ = Reader(partial(GatewayError, 400), "", shown)


def parse_config(document: Mapping[str, Any], where: str) -> ModelConfig:
    """A configuration in msedge's own format. Raises GatewayError (400) that names `where` and the key."""
    for key, value in document.items():
        _READ.need(value is not None, f"{where}: {key}", "a value; omit the key for the default", value)
    file = _READ.read(_File, document, f"{where}: ")
    _READ.need(not file.split or any(file.split.values()), f"{where}: split", "at least one share above 0", file.split)
    made = ModelConfig(**{
        **structs.asdict(file),
        "versions": _policy(file.versions),
        "labels": MappingProxyType(dict(file.labels)),
        "split": MappingProxyType(dict(file.split)),
        "shadow": Shadowing(str(file.shadow.version), file.shadow.fraction) if file.shadow is not None else None,
        "ladder": tuple(sorted({*file.ladder})),
        "response_cache": file.response_cache.enable,
    })  # fmt: skip
    for name in sorted(made.named):
        known = version_of(name) is not None or name in made.labels
        _READ.need(known, where, f"labels that `labels` defines ({', '.join(sorted(made.labels)) or 'none'})", name)
    return made


def _policy(versions: str | _Latest | list[int]) -> Policy:
    if isinstance(versions, _Latest):
        return Policy("latest", versions.latest)
    if isinstance(versions, list):
        return Policy("specific", 0, tuple(sorted({*versions})))
    return Policy("all") if versions == "all" else _NEWEST


# -- Triton's keys -----------------------------------------------------------------------------------------------------


def _object(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _READ.wrong(key, "a table", value)
    return value


def _whole(value: Any) -> Any:
    """A whole number that is written as text, as Triton's own examples do; everything else as it is."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10 else value


def _policy_of(key: str, value: Any) -> Any:
    table = _object(key, value)
    if set(table) == {"all"}:
        return "all"
    if set(table) == {"latest"}:
        return {"latest": _whole(_object(f"{key}.latest", table["latest"]).get("num_versions", 1))}
    if set(table) == {"specific"}:
        found = _object(f"{key}.specific", table["specific"]).get("versions")
        if isinstance(found, list):  # 64-bit integers are strings in the JSON of protocol buffers
            return [version_of(v) if isinstance(v, str) else v for v in found]
    raise _READ.wrong(key, '{"latest": {"num_versions": N}}, {"all": {}} or {"specific": {"versions": […]}}', value)


_DESCRIBED = (
    "name platform backend input output batch_input batch_output instance_group default_model_filename"
    " cc_model_filenames metric_tags parameters model_warmup optimization ensemble_scheduling"
).split()
"""Triton's keys that only describe a model: they are compared with the model, and refused if they differ."""


def parse_override(text: Any, where: str) -> ModelConfig:
    """A load request's `config`: a JSON object as text, with msedge's keys, Triton's, or both.

    Raises GatewayError (400). Keys that describe the model itself are kept in `described`, for comparison.
    """
    if not isinstance(text, str):
        raise _READ.wrong(where, "the text of a JSON object", text)
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise GatewayError(400, f"{where}: expected JSON, got other text: {str(error)[:120]}") from None
    ours: dict[str, Any] = {}
    described: dict[str, Any] = {}
    for key, value in _object(where, document).items():
        if key in _DESCRIBED:
            described[key] = value
        elif key == "version_policy":
            ours["versions"] = _policy_of(f"{where}: {key}", value)
        elif key == "max_batch_size":
            size = _READ.read(_BatchOrNone, _whole(value), f"{where}: {key}")
            ours |= {"max_batch": size} if size else {}
            described |= {} if size else {key: 0}
        elif key == "dynamic_batching":
            batching = dict(_object(f"{where}: {key}", value))
            sizes = batching.pop("preferred_batch_size", [])
            ours |= {"ladder": [_whole(size) for size in sizes] if isinstance(sizes, list) else sizes}
            described |= {key: batching} if any(batching.values()) else {}
        else:
            ours[key] = value
    return replace(parse_config(ours, where), described=described)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("duplicate key in an object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
