"""What came of jobs on a cluster, from events and orders: of a simulation, or of a run's journal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cloud.cluster.cluster import Cluster
from cloud.cluster.jobs import Training
from cloud.cluster.places import Place
from cloud.cluster.state import Event, Order

__all__ = ["Done", "Outage", "Result", "Span"]


@dataclass(frozen=True)
class Outage:
    """A machine is gone from one second to another."""

    pool: int
    machine: int
    start: float
    end: float


@dataclass(frozen=True)
class Span:
    """A gang had a place from one second to another; `ready`: when it began to work; `end`: infinite while it has
    it."""

    gang: str
    job: str
    place: Place
    start: float
    ready: float
    end: float


@dataclass
class Done:
    """How a training job fared. `ended`: infinite if it did not; `gap`: its longest time without devices; `moves`: how
    often it was stopped; `failed`: why it ended, if not by itself."""

    job: Training
    started: float = math.inf
    ended: float = math.inf
    gap: float = 0.0
    moves: int = 0
    idle: float = 0.0
    failed: str = ""


@dataclass
class Result:
    """What happened until the second `seconds`. `requests`, `slow`: in a simulation, all of them, and those that were
    answered too late."""

    cluster: Cluster
    jobs: dict[str, Done] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    requests: float = 0.0
    slow: float = 0.0
    seconds: float = 0.0
    _open: dict[str, Span] = field(default_factory=dict)
    _starting: dict[str, float] = field(default_factory=dict)

    def note(self, event: Event, orders: Iterable[Order]) -> None:
        """Take an event in, and the orders that followed from it."""
        self.events.append(event)
        self.seconds = event.time
        if event.kind == "submitted" and event.job is not None:
            self._starting[event.job.name] = event.job.starting
            if isinstance(event.job, Training):
                self.jobs[event.job.name] = Done(event.job, idle=event.time)
        elif event.kind in ("ended", "failed", "stopped"):
            self._close(event.name, event.time)
            if event.kind != "stopped" and event.name in self.jobs:
                done = self.jobs[event.name]
                done.ended, done.failed = event.time, event.text if event.kind == "failed" else ""
        for order in orders:
            self._order(order, event.time)

    def _order(self, order: Order, now: float) -> None:
        done = self.jobs.get(order.job)
        if order.kind == "start":
            ready = now + self._starting[order.job]
            self._open[order.gang] = Span(order.gang, order.job, order.place, now, ready, math.inf)
            if done is not None:
                done.started, done.gap = min(done.started, now), max(done.gap, now - done.idle)
        else:
            if done is not None and (order.kind == "stop" or done.idle < self._open[order.gang].start):
                done.idle, done.moves = now, done.moves + 1
            if order.kind == "kill":
                self._close(order.gang, now)

    def _close(self, gang: str, now: float) -> None:
        span = self._open.pop(gang, None)
        if span is not None:
            self.spans.append(Span(gang, span.job, span.place, span.start, min(span.ready, now), now))

    @property
    def running(self) -> list[Span]:
        """Of those that have their places still."""
        return list(self._open.values())

    def all(self) -> list[Span]:
        """Spans, those of gangs that still run until now."""
        now = self.seconds
        still = [Span(s.gang, s.job, s.place, s.start, min(s.ready, now), now) for s in self._open.values()]
        return [*self.spans, *still]

    @property
    def first(self) -> float:
        """The second at which the first training job arrived."""
        return min((one.job.arrives for one in self.jobs.values()), default=0.0)

    @property
    def makespan(self) -> float:
        """Seconds from the first training job's arrival until the last one's end."""
        return max((one.ended for one in self.jobs.values()), default=self.first) - self.first

    @property
    def late(self) -> float:
        """Share of the requests that were answered too late."""
        return self.slow / self.requests if self.requests else 0.0

    @property
    def used(self) -> float:
        """Share of the units' time, until the last training job's end, in which somebody had them."""
        total = sum(pool.total for pool in self.cluster.pools)
        ends = [one.ended for one in self.jobs.values() if math.isfinite(one.ended)]
        end = max(ends, default=self.seconds)
        held = sum(span.place.size * max(0.0, min(span.end, end) - span.start) for span in self.all())
        return held / (total * end) if end else 0.0

    @property
    def gap(self) -> float:
        """The longest time that a job had no devices."""
        return max((one.gap for one in self.jobs.values()), default=0.0)

    @property
    def mean(self) -> float:
        """Mean seconds from arrival to end."""
        return sum(one.ended - one.job.arrives for one in self.jobs.values()) / max(len(self.jobs), 1)

    @property
    def moves(self) -> int:
        """How often jobs were stopped."""
        return sum(one.moves for one in self.jobs.values())

    @property
    def missed(self) -> Sequence[str]:
        """Jobs that ended after their deadlines."""
        return [name for name, one in self.jobs.items() if one.job.deadline and one.ended > one.job.deadline]
