"""Statistics by model and version, the source of Triton's statistics extension, the metrics and the status page. Used
only on the loop's thread.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from edge.gateway.job import Job
from edge.gateway.operate.histograms import ROWS, Histogram, Recent

__all__ = ["FAILURES", "ModelStatistics", "Statistics", "reason_of"]

FAILURES = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's reasons of nv_inference_request_failure."""
_REASON = {429: "REJECTED", 503: "REJECTED", 504: "REJECTED", 499: "CANCELED", 500: "BACKEND"}


def reason_of(status: int) -> str:
    """Triton's reason for a failure with that status."""
    return _REASON.get(status, "OTHER")


_AT_ONCE = 64
"""Batches of a version whose requests may be recorded in mixed order."""


class _Batches:
    """The number of batches of one size, and their seconds."""

    __slots__ = ("count", "infer", "input", "output")

    def __init__(self) -> None:
        self.count, self.input, self.infer, self.output = 0, 0.0, 0.0, 0.0


class ModelStatistics:
    """Statistics of one version of a model. Seconds are sums over requests; the time of a batch counts for each of its
    requests, as in Triton."""

    __slots__ = (
        "_begun",
        "batches",
        "compute_infer",
        "compute_input",
        "compute_output",
        "failed",
        "failed_seconds",
        "hit_seconds",
        "hits",
        "last",
        "latency",
        "miss_seconds",
        "misses",
        "queue",
        "recent",
        "recent_rows",
        "rows",
        "seconds",
        "success",
        "waits",
    )  # fmt: skip

    def __init__(self, now: float | None = None) -> None:
        now = time.perf_counter() if now is None else now
        self.success = self.rows = self.last = self.hits = self.misses = 0
        self.hit_seconds = self.miss_seconds = 0.0
        self.seconds = self.queue = self.compute_input = self.compute_infer = self.compute_output = 0.0
        self.failed: Counter[str] = Counter()
        self.failed_seconds = 0.0
        self.batches: dict[int, _Batches] = {}
        self._begun: dict[float, None] = {}
        self.latency, self.waits = Histogram(), Histogram()
        self.recent, self.recent_rows = Recent(now), Recent(now, ROWS)

    def record(self, job: Job, now: float) -> None:
        """Record an answered request. now: `time.perf_counter` when its reply was ready."""
        begun, rows, batch = job.begun, job.rows, job.batch
        spent = now - job.arrived
        self.success += 1
        self.last = time.time_ns() // 1_000_000
        self.seconds += spent
        if job.hit is not None and self._cached(job, spent, now):
            return
        waited, given, inferred, output = job.times(now)
        self.rows += rows
        self.queue += waited
        self.compute_input += given
        self.compute_infer += inferred
        self.compute_output += output
        self.latency.add(spent)
        self.waits.add(waited)
        self.recent.at(now).add(spent)
        self.recent_rows.at(now).add(batch, rows)
        if begun not in self._begun:
            self._execution(job, given, inferred, output)

    def answered(self, seconds: float, now: float) -> None:
        """Record an answer that no batch of its own computed, after so many seconds: one of a language model."""
        self.success += 1
        self.last = time.time_ns() // 1_000_000
        self.seconds += seconds
        self.latency.add(seconds)
        self.recent.at(now).add(seconds)

    def _cached(self, job: Job, spent: float, now: float) -> bool:
        """Record that an answer was looked for in the cache; returns whether it was there: then nothing was queued or
        computed."""
        if not job.hit:
            self.misses += 1
            self.miss_seconds += job.cache_seconds
            return False
        self.hits += 1
        self.hit_seconds += job.cache_seconds
        self.latency.add(spent)
        self.recent.at(now).add(spent)
        return True

    def _execution(self, job: Job, given: float, inferred: float, output: float) -> None:
        """Record a batch, at its first request; the others began at the same time. A request with more rows than a
        batch holds had several batches."""
        self._begun[job.begun] = None
        if len(self._begun) > _AT_ONCE:
            del self._begun[next(iter(self._begun))]
        of_size = self.batches.get(job.batch)
        if of_size is None:
            of_size = self.batches[job.batch] = _Batches()
        of_size.count += max(1, -(-job.rows // max(1, job.batch)))
        of_size.input += given
        of_size.infer += inferred
        of_size.output += output

    def fail(self, job: Job | None, status: int, now: float) -> None:
        """Record a refused or failed request for this model; job: None if it failed before there was one."""
        self.failed[reason_of(status)] += 1
        self.last = time.time_ns() // 1_000_000
        if job is not None:
            self.failed_seconds += now - job.arrived

    @property
    def executions(self) -> int:
        """Number of computed batches."""
        return sum(of_size.count for of_size in self.batches.values())

    def batch_sizes(self) -> Histogram:
        """Batches by their rows."""
        found = Histogram(ROWS)
        for size, of_size in self.batches.items():
            found.add(size, of_size.count)
        return found

    def triton(self, name: str, version: str) -> dict[str, Any]:
        """An element of `model_stats`."""
        computed = self.success - self.hits
        return {
            "name": name,
            "version": version,
            "last_inference": self.last,
            "inference_count": self.rows,
            "execution_count": self.executions,
            "inference_stats": {
                "success": _duration(self.success, self.seconds),
                "fail": _duration(self.failed.total(), self.failed_seconds),
                "queue": _duration(self.success, self.queue),
                "compute_input": _duration(computed, self.compute_input),
                "compute_infer": _duration(computed, self.compute_infer),
                "compute_output": _duration(computed, self.compute_output),
                "cache_hit": _duration(self.hits, self.hit_seconds),
                "cache_miss": _duration(self.misses, self.miss_seconds),
            },
            "response_stats": {},
            "batch_stats": [_batch(size, self.batches[size]) for size in sorted(self.batches)],
            "memory_usage": [],
        }

    def page(self, now: float) -> dict[str, Any]:
        """The last minute for the status page: rates per second, percentiles in seconds (None: nothing was answered),
        histograms as [upper bounds] and [counts], the last count for values above all bounds."""
        latency, span = self.recent.sum(now)
        by_rows, _ = self.recent_rows.sum(now)
        return {
            "requests_per_second": latency.count / span,
            "rows_per_second": by_rows.count / span,
            "p50": latency.quantile(0.50),
            "p95": latency.quantile(0.95),
            "p99": latency.quantile(0.99),
            "latency": {"bounds": list(latency.bounds), "counts": latency.counts},
            "rows_by_batch": {"bounds": list(by_rows.bounds), "counts": by_rows.counts},
        }


class Statistics:
    """Statistics of all versions that are or were served. `refused`: requests by status and by kind: "infer", "manage",
    "read" or another fixed word; never a text from a client, so that their number is limited."""

    def __init__(self) -> None:
        self.begun = time.time()
        self.refused: Counter[tuple[str, int]] = Counter()
        self._models: dict[tuple[str, str], ModelStatistics] = {}

    def of(self, name: str, version: str) -> ModelStatistics:
        """A version's statistics, created at zero. Only for served versions: each costs memory and lines of metrics."""
        found = self._models.get((name, version))
        if found is None:
            found = self._models[name, version] = ModelStatistics()
        return found

    def forget(self, name: str, version: str) -> None:
        """Drop a version that was removed."""
        self._models.pop((name, version), None)

    def __iter__(self) -> Iterator[tuple[tuple[str, str], ModelStatistics]]:
        return iter(sorted(self._models.items()))

    def triton(self, name: str = "", version: str = "") -> Mapping[str, Any]:
        """The reply of /v2/models/stats, for all models, one model, or one version."""
        return {
            "model_stats": [
                numbers.triton(*key) for key, numbers in self
                if (not name or key[0] == name) and (not version or key[1] == version)
            ]
        }  # fmt: skip


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": max(0, round(seconds * 1e9))}


def _batch(size: int, of_size: _Batches) -> dict[str, Any]:
    return {
        "batch_size": size,
        "compute_input": _duration(of_size.count, of_size.input),
        "compute_infer": _duration(of_size.count, of_size.infer),
        "compute_output": _duration(of_size.count, of_size.output),
    }
