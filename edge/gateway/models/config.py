"""What is said of one model beside its bundle: `config.toml`, or the JSON of a load request.

    versions = "all"                            # or "latest", {latest = 2}, [1, 3]
    labels = {stable = 3, canary = "latest"}
    split = {stable = 0.9, canary = 0.1}        # of requests that name no version: shares by label or version
    shadow = {version = "canary", fraction = 0.2}
    max_batch = 32
    ladder = [1, 4, 16, 32]                     # sizes of batches worth a trial
    queue_rows = 512
    concurrency = 256                           # requests in queue and work at once
    timeout = 0.5                               # seconds, of requests that name no time of their own
    priority = 1
    memory = 200_000_000                        # bytes that one inference may hold
    pinned = true                               # never unloaded to save memory

A load request may also use the words of Triton's configuration (`version_policy`, `max_batch_size`,
`dynamic_batching.preferred_batch_size`), so that what `get_model_config` gives can be handed back changed. What else
that says must be so: it describes the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from edge.gateway.batching.queue import IDLE
from edge.gateway.errors import GatewayError
from edge.gateway.models.names import LABEL, shown, version_of

__all__ = ["ModelConfig", "Policy", "Shadowing", "parse_config", "parse_override"]

MOST_BATCH = 4096
_LABEL = re.compile(LABEL)


class Policy(NamedTuple):
    """Which of the versions there are get loaded: the newest `latest` ones that load, all of them, or `chosen`."""

    kind: Literal["latest", "all", "specific"] = "latest"
    latest: int = 1
    chosen: tuple[int, ...] = ()


_NEWEST = Policy()


class Shadowing(NamedTuple):
    """The version (a number or a label) that gets a copy of this share of requests; nobody sees what it answers."""

    version: str
    fraction: float


@dataclass(frozen=True)
class ModelConfig:
    """One model's configuration, every value checked. None: the gateway's own setting."""

    versions: Policy = _NEWEST
    labels: Mapping[str, int | Literal["latest"]] = field(default_factory=dict)
    split: Mapping[str, float] = field(default_factory=dict)
    """Weights by label or version, of requests that name neither."""
    shadow: Shadowing | None = None
    queue_rows: int | None = None
    """Rows that may wait."""
    concurrency: int | None = None
    """Requests that may wait or be computed at once."""
    timeout: float | None = None
    """Seconds, of requests that name none."""
    priority: int = 0
    """Of requests that name none: 1 goes first, 0 is the middle."""
    max_batch: int | None = None
    ladder: tuple[int, ...] = ()
    """Sizes of batches worth a trial, those that pay are compiled; (): powers of two."""
    memory: int | None = None
    """Bytes that one inference may hold."""
    pinned: bool = False
    described: Mapping[str, Any] = field(default_factory=dict)
    """What a load request said of how the model is (its inputs, say): it must be so."""

    def made_as(self, other: ModelConfig) -> bool:
        """Whether what was loaded for one does for the other."""
        return (self.max_batch, self.ladder, self.memory) == (other.max_batch, other.ladder, other.memory)

    @property
    def named(self) -> frozenset[str]:
        """Versions, as numbers, and labels that routing speaks of."""
        shadow = (self.shadow.version,) if self.shadow is not None else ()
        return frozenset((*self.split, *shadow))


# -- one key at a time -------------------------------------------------------------------------------------------------


def _refuse(key: str, expected: str, got: object) -> GatewayError:
    return GatewayError(400, f"{key}: expected {expected}, got {shown(got)}")


def _whole(least: int, most: int) -> Callable[[str, Any], int]:
    def read(key: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise _refuse(key, f"a whole number from {least} to {most}", value)
        return value

    return read


def _real(key: str, value: Any, most: float, *, zero: bool = False) -> float:
    number = type(value) in (int, float) and isfinite(value)
    if not number or value > most or value < 0 or not (value or zero):
        raise _refuse(key, f"a number {'from' if zero else 'above'} 0 to {most:g}", value)
    return float(value)


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _refuse(key, "a table", value)
    return value


def _selector(key: str, text: Any) -> str:
    """A label, or a version's number as text or as it is."""
    text = str(text) if type(text) is int else text
    if not isinstance(text, str) or (version_of(text) is None and not _is_label(text)):
        raise _refuse(key, "a label, or a version from 1", text)
    return text


def _is_label(text: str) -> bool:
    return _LABEL.match(text) is not None and not text.endswith("\n")


_version = _whole(1, 10**18 - 1)


def _versions(key: str, value: Any) -> Policy:
    if value in ("latest", "all"):
        return Policy(value)
    if isinstance(value, list) and value:
        return Policy("specific", 0, tuple(sorted({_version(key, v) for v in value})))
    if isinstance(value, Mapping) and set(value) == {"latest"}:
        return Policy("latest", _whole(1, 1000)(f"{key}.latest", value["latest"]))
    raise _refuse(key, '"latest", "all", {latest = N} or a list of versions', value)


def _labels(key: str, value: Any) -> Mapping[str, int | Literal["latest"]]:
    made: dict[str, int | Literal["latest"]] = {}
    for label, version in _table(key, value).items():
        if not _is_label(label):
            raise _refuse(key, "labels of up to 64 letters, digits and _ . -, beginning with a letter or _", label)
        made[label] = "latest" if version == "latest" else _version(f"{key}.{label}", version)
    return MappingProxyType(made)


def _split(key: str, value: Any) -> Mapping[str, float]:
    shares = _table(key, value).items()
    made = {_selector(key, name): _real(f"{key}.{name}", share, 1e9, zero=True) for name, share in shares}
    if made and not sum(made.values()):
        raise _refuse(key, "at least one share above 0", value)
    return MappingProxyType(made)


def _shadow(key: str, value: Any) -> Shadowing:
    if set(_table(key, value)) - {"version", "fraction"} or "version" not in value:
        raise _refuse(key, "{version = …, fraction = …}", value)
    fraction = _real(f"{key}.fraction", value.get("fraction", 1.0), 1.0)
    return Shadowing(_selector(f"{key}.version", value["version"]), fraction)


def _ladder(key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 32:
        raise _refuse(key, "a list of up to 32 sizes", value)
    return tuple(sorted({_whole(1, MOST_BATCH)(key, size) for size in value}))


def _truth(key: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(key, "true or false", value)
    return value


_READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "versions": _versions,
    "labels": _labels,
    "split": _split,
    "shadow": _shadow,
    "queue_rows": _whole(1, 1 << 30),
    "concurrency": _whole(1, 1 << 20),
    "timeout": lambda key, value: _real(key, value, 86_400.0),
    "priority": _whole(0, IDLE - 1),
    "max_batch": _whole(1, MOST_BATCH),
    "ladder": _ladder,
    "memory": _whole(1, 1 << 50),
    "pinned": _truth,
}
if {*_READERS, "described"} != {f.name for f in fields(ModelConfig)}:
    raise TypeError("expected a reader for each field of ModelConfig")


def parse_config(document: Mapping[str, Any], where: str) -> ModelConfig:
    """A configuration in our own words. Raises GatewayError (400) that names `where` and the key."""
    unknown = sorted(set(document) - set(_READERS))
    if unknown:
        raise _refuse(where, f"keys of {', '.join(_READERS)}", unknown[0])
    made = ModelConfig(**{key: _READERS[key](f"{where}: {key}", value) for key, value in document.items()})
    known = set(made.labels)
    for name in sorted(made.named):
        if version_of(name) is None and name not in known:
            raise _refuse(where, f"labels that `labels` explains ({', '.join(sorted(known)) or 'none'})", name)
    return made


# -- Triton's words ----------------------------------------------------------------------------------------------------


def _policy_of(key: str, value: Any) -> Any:
    table = _table(key, value)
    if set(table) == {"all"}:
        return "all"
    if set(table) == {"latest"}:
        count = _table(f"{key}.latest", table["latest"]).get("num_versions", 1)
        return {"latest": int(count) if isinstance(count, str) and count.isdecimal() and len(count) < 5 else count}
    if set(table) == {"specific"}:
        found = _table(f"{key}.specific", table["specific"]).get("versions")
        if isinstance(found, list):  # 64-bit integers are texts in the JSON of protocol buffers
            return [version_of(v) if isinstance(v, str) else v for v in found]
    raise _refuse(key, '{"latest": {"num_versions": N}}, {"all": {}} or {"specific": {"versions": […]}}', value)


_DESCRIBED = (
    "name platform backend input output batch_input batch_output instance_group default_model_filename"
    " cc_model_filenames metric_tags parameters model_warmup optimization"
).split()
"""Triton's keys that only say how our models are anyway: they are compared with that, and refused where they differ."""


def parse_override(text: Any, where: str) -> ModelConfig:
    """A load request's `config`: the text of a JSON object, in our words, Triton's, or both.

    Raises GatewayError (400). What it says of the model itself is kept in `described`, to be compared.
    """
    if not isinstance(text, str):
        raise _refuse(where, "the text of a JSON object", text)
    try:
        document = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise GatewayError(400, f"{where}: expected JSON, got text that is none: {str(error)[:120]}") from None
    ours: dict[str, Any] = {}
    described: dict[str, Any] = {}
    for key, value in _table(where, document).items():
        if key in _DESCRIBED:
            described[key] = value
        elif key == "version_policy":
            ours["versions"] = _policy_of(f"{where}: {key}", value)
        elif key == "max_batch_size":
            size = _whole(0, MOST_BATCH)(f"{where}: {key}", value)
            ours |= {"max_batch": size} if size else {}
            described |= {} if size else {key: 0}
        elif key == "dynamic_batching":
            batching = dict(_table(f"{where}: {key}", value))
            ours |= {"ladder": batching.pop("preferred_batch_size", [])}
            described |= {key: batching} if any(batching.values()) else {}
        else:
            ours[key] = value
    return replace(parse_config(ours, where), described=described)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
