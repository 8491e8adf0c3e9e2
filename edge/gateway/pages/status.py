"""The document `/status.json`: the state of the gateway, collected from its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, TypedDict

from edge.gateway.models.kernels import Compiling
from edge.gateway.operate.histograms import ROWS, SECONDS, Histogram
from edge.gateway.operate.statistics import Statistics
from edge.gateway.sources.watching import SourceState
from lite_runtime.bundle.keys import PublicKey

__all__ = ["MOST", "REASONS", "Bars", "Latency", "ModelStatus", "Personal", "Shadowed", "Sourced", "Status", "status"]

MOST = 200
"""Most versions of models that are listed; the most recently used ones are chosen."""
IDLE = 120_000
"""Milliseconds without requests after which a version's last minute is certainly empty."""
REASONS: Mapping[int, str] = {
    400: "invalid request",
    401: "no valid token",
    403: "not allowed",
    404: "no such model",
    405: "no such method",
    408: "too slow",
    413: "too large",
    415: "unknown encoding",
    422: "unusable adapter",
    429: "overloaded",
    431: "head too large",
    499: "client disconnected",
    500: "internal error",
    501: "not supported",
    503: "not available",
    504: "deadline passed",
}
"""Short descriptions of HTTP statuses."""


class Bars(TypedDict):
    """A histogram: `counts[i]` values are at most `bounds[i]`, the last count's are above all bounds."""

    bounds: list[float]
    counts: list[int]


class Latency(TypedDict):
    """Seconds from a request's arrival to its reply, over the last minute; None without requests."""

    p50: float | None
    p95: float | None
    p99: float | None


class Personal(TypedDict):
    """Devices whose personal versions are in memory, and how often requests found one and did not."""

    devices: int
    capacity: int
    bytes: int
    hits: int
    misses: int


class Shadowed(TypedDict):
    """Results of copied requests; `agreement`: share of rows; `difference`: the largest one, None: infinite or NaN."""

    version: str
    fraction: float
    compared: int
    dropped: int
    failed: int
    agreement: float | None
    difference: float | None


class ModelStatus(TypedDict):
    """A version of a model. `share`: of the requests without a version; counts are since it was loaded."""

    name: str
    version: str
    state: str
    reason: str
    labels: list[str]
    share: float
    answered: int
    failed: int
    rows: int
    batches: int
    in_flight: int
    queued: int
    bytes: int
    compiling: bool
    """Whether it runs by reference until its kernels are compiled."""
    signer: str
    """The trusted key that has signed it; "" if none has to."""
    latency: Latency
    personal: Personal | None
    shadow: Shadowed | None


class Sourced(TypedDict):
    """A folder, registry or store that is read while serving. `state`: see `SourceState`. `age`: seconds since it was
    last read."""

    name: str
    state: str
    age: float
    reason: str


class Key(TypedDict):
    """A trusted key. `expires`: in seconds since 1970, None: never."""

    name: str
    key: str
    expires: float | None


class CompilingStatus(TypedDict):
    """Kernel families being compiled while models run by reference; of: 0 if there are none. problem: of the last."""

    done: int
    of: int
    problem: str


class Status(TypedDict):
    """The document. `recent` (rates per second) and histograms cover the last minute, `answered` the whole time; times
    are in seconds, sizes in bytes."""

    name: str
    version: str
    state: str
    uptime: float
    in_flight: int
    queued: dict[str, int]
    answered: dict[str, int]
    recent: dict[str, float]
    latency: Latency
    latencies: Bars
    batches: Bars
    refused: dict[str, int]
    memory: dict[str, int | None]
    lag: float | None
    sources: list[Sourced]
    keys: list[Key]
    kernels: CompilingStatus
    models: list[ModelStatus]
    unlisted: int


def status(
    version: str,
    state: str,
    uptime: float,
    now: float,
    index: Sequence[Mapping[str, Any]],
    statistics: Statistics,
    *,
    queued: Mapping[str, int],
    memory: Mapping[str, int | None],
    in_flight: int = 0,
    lag: float | None = None,
    sources: Sequence[SourceState] = (),
    keys: Sequence[PublicKey] = (),
    compiling: Compiling = Compiling(),  # noqa: B008  # a tuple of constants
    name: str = "msedge gateway",
) -> Status:
    """The document.

    version: of msedge; state: starting, ready or draining; uptime: seconds; now: of `time.perf_counter`, as for the
    statistics. index: the result of `models.repository.Repository.snapshot`, one mapping per version of a model, in
    which only name and state are required; queued (waiting rows) and personal (see `Personal`) may be added. queued:
    all waiting jobs and rows; memory: bytes of the process and of models, and the limit for models, None if there is
    none; lag: delay of the event loop in seconds. Takes 1 µs per version, and 30 µs per version that had requests in
    the last minute.
    """
    numbers = dict(statistics)
    newest = max((of.last for of in numbers.values()), default=0)
    recent = {key: of.page(now) for key, of in numbers.items() if newest - of.last < IDLE}
    latencies, batches = _sum(recent, "latency", SECONDS), _sum(recent, "rows_by_batch", ROWS)
    listed = _listed(index, {key: of.last for key, of in numbers.items()})
    models = []
    for entry in listed:
        key = entry["name"], str(entry.get("version", ""))
        of = numbers.get(key)
        counts = (of.success, of.failed.total(), of.rows, of.executions) if of else (0, 0, 0, 0)
        models.append(_model(entry, counts, recent.get(key)))
    return {
        "name": name,
        "version": version,
        "state": state,
        "uptime": uptime,
        "in_flight": in_flight,
        "queued": {"jobs": queued["jobs"], "rows": queued["rows"]},
        "answered": {
            "requests": sum(of.success for of in numbers.values()),
            "rows": sum(of.rows for of in numbers.values()),
        },
        "recent": {
            "requests": sum(page["requests_per_second"] for page in recent.values()),
            "rows": sum(page["rows_per_second"] for page in recent.values()),
        },
        "latency": _latency({f"p{share}": latencies.quantile(share / 100) for share in (50, 95, 99)}),
        "latencies": {"bounds": list(latencies.bounds), "counts": latencies.counts},
        "batches": {"bounds": list(batches.bounds), "counts": batches.counts},
        "refused": _refused(statistics.refused),
        "memory": {which: memory[which] for which in ("process", "models", "limit")},
        "lag": lag,
        "sources": [
            {"name": of.name, "state": of.state, "age": max(0.0, of.age), "reason": of.reason} for of in sources
        ],
        "keys": [
            {"name": of.name, "key": of.key, "expires": of.expires if isfinite(of.expires) else None} for of in keys
        ],
        "kernels": {"done": compiling.done, "of": compiling.of, "problem": compiling.problem},
        "models": models,
        "unlisted": len(index) - len(listed),
    }


def _sum(pages: Mapping[Any, Mapping[str, Any]], which: str, bounds: Sequence[float]) -> Histogram:
    """The histogram of that name, of all models together."""
    whole = Histogram(bounds)
    for page in pages.values():
        whole.counts = [a + b for a, b in zip(whole.counts, page[which]["counts"], strict=True)]
    return whole


def _listed(index: Sequence[Mapping[str, Any]], last: Mapping[tuple[str, str], int]) -> list[Mapping[str, Any]]:
    """Sorted by name and version; if there are too many, only those with the latest requests."""

    def used(entry: Mapping[str, Any]) -> int:
        return last.get((entry["name"], str(entry.get("version", ""))), 0)

    chosen = sorted(index, key=used, reverse=True)[:MOST]
    return sorted(chosen, key=lambda entry: (entry["name"], _number(str(entry.get("version", "")))))


def _number(version: str) -> tuple[int, str]:
    """A sort key: versions in the order of their numbers."""
    return (int(version), "") if version.isdecimal() else (0, version)


def _model(entry: Mapping[str, Any], counts: tuple[int, int, int, int], page: Mapping[str, Any] | None) -> ModelStatus:
    answered, failed, rows, batches = counts
    return {
        "name": entry["name"],
        "version": str(entry.get("version", "")),
        "state": entry["state"],
        "reason": entry.get("reason", ""),
        "labels": list(entry.get("labels", ())),
        "share": entry.get("share", 1.0),
        "answered": answered,
        "failed": failed,
        "rows": rows,
        "batches": batches,
        "in_flight": entry.get("in_flight", 0),
        "queued": entry.get("queued", 0),
        "bytes": entry.get("bytes", 0),
        "compiling": entry.get("compiling", False),
        "signer": entry.get("signer", ""),
        "latency": _latency(page or {}),
        "personal": entry.get("personal"),
        "shadow": _shadow(entry.get("shadow")),
    }


def _latency(page: Mapping[str, Any]) -> Latency:
    return {"p50": page.get("p50"), "p95": page.get("p95"), "p99": page.get("p99")}


def _shadow(figures: Mapping[str, Any] | None) -> Shadowed | None:
    if figures is None:
        return None
    largest = figures["largest"]
    return {
        "version": figures["version"],
        "fraction": figures["fraction"],
        "compared": figures["compared"],
        "dropped": figures["dropped"],
        "failed": figures["failed"],
        "agreement": figures["agreed"] / figures["rows"] if figures["rows"] else None,
        "difference": largest if isfinite(largest) else None,
    }


def _refused(counts: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Refused requests by reason; for requests other than inference, also by kind."""
    found: dict[str, int] = {}
    for (asked, code), count in counts.items():
        words = REASONS.get(code, str(code)) + ("" if asked == "infer" else f" ({asked})")
        found[words] = found.get(words, 0) + count
    return found
