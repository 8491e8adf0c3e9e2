"""The metrics of /metrics: Triton's names, so that its dashboards work, and our own.

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/metrics.md
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.gateway.cache import Figures
from edge.gateway.operate.exposition import Family
from edge.gateway.operate.histograms import Histogram
from edge.gateway.operate.statistics import FAILURES, ModelStatistics, Statistics
from edge.gateway.sources.watching import SourceState

__all__ = ["Gauges", "LoopLag", "families"]


@dataclass(frozen=True)
class Gauges:
    """Current values at the time of a scrape, from the scheduler, the repository and the caches."""

    pending: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Waiting requests, by model and version."""
    queued_rows: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Their rows."""
    loaded_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of weights and buffers of loaded models."""
    personal_hits: Mapping[str, int] = field(default_factory=dict)
    """For each model: the number of requests answered by the device's personal version so far."""
    personal_misses: Mapping[str, int] = field(default_factory=dict)
    """For each model: the number of requests so far that named a device but were answered by the common model."""
    sequences: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Sequences that clients have begun, by model and version."""
    sources: Sequence[SourceState] = ()
    """Folders, registries and stores that are read while serving."""
    body_bytes: int = 0
    body_limit: int = 0
    """Bytes that bodies and replies hold, and may hold."""
    expiry: float = 0.0
    """When the certificate in use expires, in seconds since 1970; 0: there is none."""
    untrusted: int = 0
    """Bundles that were refused because no trusted key has signed them, so far."""
    key_expiry: Mapping[str, float] = field(default_factory=dict)
    """By name of a trusted key, when it expires, in seconds since 1970; keys that never do are left out."""
    kernels_missing: int = 0
    """Kernel families that are still to be compiled."""
    awaiting: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By model and version: 1 if it runs by reference until its kernels are compiled."""
    evicted: Mapping[str, int] = field(default_factory=dict)
    """Connections that gave way so far, by reason."""
    sequence_bytes: int = 0
    sequences_expired: int = 0
    under_way: int = 0
    """Requests that were received and not yet answered."""
    log_dropped: int = 0
    lag: float = 0.0
    """Seconds: `LoopLag.last`."""
    worst_lag: float = 0.0
    """Seconds: `LoopLag.worst`."""
    cache: Figures | None = None
    """The cache of answers; None: none are kept."""


class _Sum(NamedTuple):
    name: str
    help: str
    value: Callable[[ModelStatistics], float]


def _micro(seconds: float) -> int:
    return max(0, round(seconds * 1e6))


_TRITON = (
    _Sum("nv_inference_request_success", "Requests that were answered", lambda s: s.success),
    _Sum("nv_inference_count", "Rows that were answered", lambda s: s.rows),
    _Sum("nv_inference_exec_count", "Batches that were computed", lambda s: s.executions),
    _Sum("nv_inference_request_duration_us", "Microseconds of requests, from end to end", lambda s: _micro(s.seconds)),
    _Sum("nv_inference_queue_duration_us", "Microseconds that requests were queued", lambda s: _micro(s.queue)),
    _Sum("nv_inference_compute_input_duration_us", "Microseconds of copying inputs",
         lambda s: _micro(s.compute_input)),
    _Sum("nv_inference_compute_infer_duration_us", "Microseconds of computing", lambda s: _micro(s.compute_infer)),
    _Sum("nv_inference_compute_output_duration_us", "Microseconds of copying outputs and writing replies",
         lambda s: _micro(s.compute_output)),
)  # fmt: skip


_CACHE = (
    _Sum("nv_cache_num_hits_per_model", "Answers found in the cache", lambda s: s.hits),
    _Sum("nv_cache_num_misses_per_model", "Answers not found in the cache", lambda s: s.misses),
    _Sum("nv_cache_hit_duration_per_model", "Microseconds of looking up answers that were found",
         lambda s: _micro(s.hit_seconds)),
    _Sum("nv_cache_miss_duration_per_model", "Microseconds of looking up answers that were not found, and of keeping"
         " them", lambda s: _micro(s.miss_seconds)),
)  # fmt: skip
"""Shown if there is a cache."""


class _Shape(NamedTuple):
    name: str
    help: str
    value: Callable[[ModelStatistics], Histogram]
    every: int


_SHAPES = (
    _Shape("msedge_request_seconds", "Seconds from the receipt of a request to its reply", lambda s: s.latency, 4),
    _Shape("msedge_queue_seconds", "Seconds that requests were queued", lambda s: s.waits, 4),
    _Shape("msedge_batch_rows", "Rows of the batches that were computed", lambda s: s.batch_sizes(), 1),
)


class _ByVersion(NamedTuple):
    name: str
    help: str
    value: Callable[[Gauges], Mapping[tuple[str, str], int]]


_GAUGES = (
    _ByVersion("nv_inference_pending_request_count", "Requests in the queue", lambda g: g.pending),
    _ByVersion("msedge_queue_rows", "Rows in the queue", lambda g: g.queued_rows),
    _ByVersion("msedge_model_bytes", "Bytes of loaded weights and buffers", lambda g: g.loaded_bytes),
    _ByVersion("msedge_sequences", "Sequences that keep state", lambda g: g.sequences),
    _ByVersion("msedge_model_compiling", "1: runs by reference until its kernels are compiled", lambda g: g.awaiting),
)


def families(statistics: Statistics, gauges: Gauges) -> list[Family]:
    """All metrics, for `exposition.expose`."""
    models = [({"model": name, "version": version}, numbers) for (name, version), numbers in statistics]
    failed = [({**labels, "reason": why}, float(n.failed[why])) for labels, n in models for why in FAILURES]
    sums = (*_TRITON, *(_CACHE if gauges.cache is not None else ()))
    found = [Family(s.name, "counter", s.help, [(labels, s.value(n)) for labels, n in models]) for s in sums]
    found.append(Family("nv_inference_request_failure", "counter", "Requests that failed, by reason", failed))
    found += [
        Family(s.name, "histogram", s.help, [(labels, s.value(n)) for labels, n in models], s.every) for s in _SHAPES
    ]
    found += [
        Family(g.name, "gauge", g.help, [
            ({"model": name, "version": version}, value) for (name, version), value in sorted(g.value(gauges).items())
        ]) for g in _GAUGES
    ]  # fmt: skip
    return [*found, *_cached(gauges.cache), *_own(statistics, gauges), *_process()]


def _cached(found: Figures | None) -> list[Family]:
    if found is None:
        return []
    used = found.nbytes / found.most
    return [
        Family("nv_cache_util", "gauge", "The share of the cache's bytes that is used", [({}, used)]),
        Family("nv_cache_num_entries", "gauge", "Answers in the cache", [({}, found.entries)]),
        Family("nv_cache_num_evictions", "counter", "Answers dropped to make room", [({}, found.evicted)]),
    ]


def _own(statistics: Statistics, gauges: Gauges) -> list[Family]:
    refused = [({"asked": what, "status": str(status)}, n) for (what, status), n in sorted(statistics.refused.items())]
    hits = [({"model": name}, n) for name, n in sorted(gauges.personal_hits.items())]
    misses = [({"model": name}, n) for name, n in sorted(gauges.personal_misses.items())]
    up = [({"source": of.name}, float(of.state == "ok")) for of in gauges.sources]
    ages = [({"source": of.name}, of.age) for of in gauges.sources]
    expiry: list[tuple[dict[str, str], float]] = [({}, gauges.expiry)] if gauges.expiry else []
    return [
        Family("msedge_certificate_expiry_timestamp_seconds", "gauge",
               "When the server's certificate expires, in seconds since 1970", expiry),
        Family("msedge_trusted_key_expiry_timestamp_seconds", "gauge",
               "When a trusted key expires, in seconds since 1970",
               [({"key": name}, when) for name, when in sorted(gauges.key_expiry.items())]),
        Family("msedge_untrusted_total", "counter", "Bundles refused because no trusted key has signed them",
               [({}, gauges.untrusted)]),
        Family("msedge_source_up", "gauge", "1: a folder, registry or store is up to date; 0: it cannot be read", up),
        Family("msedge_source_age_seconds", "gauge", "Seconds since it was last read", ages),
        Family("msedge_refused_total", "counter", "Refused requests, by kind of request", refused),
        Family("msedge_personal_hits_total", "counter", "Requests answered by a personal version", hits),
        Family("msedge_personal_misses_total", "counter", "Requests for a device answered by the common model", misses),
        Family("msedge_body_bytes", "gauge", "Bytes held for bodies and replies", [({}, gauges.body_bytes)]),
        Family("msedge_body_limit_bytes", "gauge", "Bytes that bodies and replies may hold", [({}, gauges.body_limit)]),
        Family("msedge_kernels_missing", "gauge", "Kernel families still to be compiled",
               [({}, gauges.kernels_missing)]),
        Family("msedge_evicted_total", "counter", "Connections that were closed to make room, by reason",
               [({"reason": why}, n) for why, n in sorted(gauges.evicted.items())]),
        Family("msedge_sequence_bytes", "gauge", "Bytes of the state of all sequences", [({}, gauges.sequence_bytes)]),
        Family("msedge_sequences_expired_total", "counter", "Sequences forgotten because they were not used",
               [({}, gauges.sequences_expired)]),
        Family("msedge_requests_under_way", "gauge", "Requests not yet answered", [({}, gauges.under_way)]),
        Family("msedge_log_dropped_total", "counter", "Log lines dropped as the queue was full",
               [({}, gauges.log_dropped)]),
        Family("msedge_loop_lag_seconds", "gauge", "Delay of the event loop at the last check",
               [({}, gauges.lag)]),
        Family("msedge_loop_worst_lag_seconds", "gauge", "Largest delay in the last one to two minutes",
               [({}, gauges.worst_lag)]),
        Family("process_start_time_seconds", "gauge", "Start, in seconds since 1970", [({}, statistics.begun)]),
    ]  # fmt: skip


def _process() -> list[Family]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = used.ru_utime + used.ru_stime
    found = [Family("process_cpu_seconds_total", "counter", "CPU time in seconds", [({}, spent)])]
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            pages = file.read().split()
        size = resource.getpagesize()
        found += [
            Family("process_virtual_memory_bytes", "gauge", "Virtual memory in bytes", [({}, int(pages[0]) * size)]),
            Family("process_resident_memory_bytes", "gauge", "Resident memory in bytes", [({}, int(pages[1]) * size)]),
            Family("process_open_fds", "gauge", "Open files and sockets", [({}, len(os.listdir("/proc/self/fd")))]),
        ]
    return found


class LoopLag:
    """The delay of the event loop, measured with a timer every half second: `last`, and `worst` of the last one to two
    minutes, in seconds."""

    PERIOD, WINDOW = 0.5, 60.0

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        self._loop, self._clock = loop, clock
        self.last = self._before = self._now = 0.0
        self._turned = self._due = clock()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def worst(self) -> float:
        """The worst of this minute and of the one before."""
        return max(self._before, self._now)

    def start(self) -> None:
        """Start to measure."""
        self._due = self._clock() + self.PERIOD
        self._timer = self._loop.call_later(self.PERIOD, self._look)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._clock()
        self.last = max(0.0, now - self._due)
        if now - self._turned > self.WINDOW:
            self._before, self._now, self._turned = self._now, 0.0, now
        self._now = max(self._now, self.last)
        self.start()
