"""What the scheduler is compared with: first in, first out, with and without backfilling, and static partitions.

None of them stops a job. Each gives a job the slice that a careful user would ask for: the largest on which a device
still does at least `efficiency` of what it does alone, and none in a pool in which it would be slower than the share
`accepts` of its speed in the fastest one. Serving jobs keep the replicas of their peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloud.cluster.cluster import Cluster
from cloud.cluster.jobs import Job, Option, Serving, Training
from cloud.cluster.places import Board, Place, starts
from cloud.cluster.state import Event, Order
from cloud.errors import ClusterError

__all__ = ["Fifo", "Static", "sized"]


def sized(job: Training, efficiency: float, accepts: float) -> list[Option]:
    """Of each pool the largest slice with at least that efficiency, the fastest pool first; without pools in which the
    job has less than the share `accepts` of its speed in the fastest one."""
    found: dict[int, Option] = {}
    for option in job.options:
        best = max(other.speed / other.size for other in job.options if other.pool == option.pool)
        if option.speed / option.size >= efficiency * best:
            found[option.pool] = option
    return _accepted([*found.values()], accepts)


def _accepted(options: list[Option], accepts: float) -> list[Option]:
    most = max(option.speed for option in options)
    return sorted((o for o in options if o.speed >= accepts * most), key=lambda option: -option.speed)


class Fifo:
    """Jobs begin in the order in which they arrived, in the fastest pool that has a slice. `backfill`: others begin
    before the first of the queue if that does not delay it (EASY; Lifka, "The ANL/IBM SP scheduling system", 1995), by
    run times that are known exactly."""

    def __init__(
        self, cluster: Cluster, *, efficiency: float = 0.5, accepts: float = 0.3, backfill: bool = False
    ) -> None:  # fmt: skip
        self.cluster, self.efficiency, self.accepts, self.backfill = cluster, efficiency, accepts, backfill
        self.board = Board(cluster)
        self.queue: list[tuple[int, Training, list[Option]]] = []
        self.names: list[str] = []
        self.ends: dict[int, float] = {}
        self.places: dict[int, tuple[Place, Option]] = {}
        self.numbers: dict[str, int] = {}

    @property
    def due(self) -> float:
        """Never: it decides at events."""
        return math.inf

    def apply(self, event: Event) -> tuple[Order, ...]:
        """See `Scheduler`."""
        if event.kind == "submitted" and event.job is not None:
            return self._submitted(event.job)
        if event.kind == "ended":
            number = self.numbers[event.name]
            self.board.leave(self.places.pop(number)[0])
            self.ends.pop(number)
        elif event.kind == "tick":
            return tuple(self._begin(event.time))
        elif event.kind != "submitted":
            raise ClusterError(f"{event.kind}: the baselines know no such event")
        return ()

    def options(self, job: Training) -> list[Option]:
        """Where a job may run, best first."""
        return sized(job, self.efficiency, self.accepts)

    def _submitted(self, job: Job) -> tuple[Order, ...]:
        number = len(self.names)
        self.names.append(job.name)
        self.numbers[job.name] = number
        if isinstance(job, Training):
            self.queue.append((number, job, self.options(job)))
            return ()
        return self._replicas(job)

    def _replicas(self, job: Serving) -> tuple[Order, ...]:
        """All that the peak needs, in the first pool with room."""
        orders: list[Order] = []
        for option in job.options:
            need = job.needed(max(rate for _, rate in job.requests), 1.0 / option.speed)
            while len(orders) < need and (place := self.board.find(option.pool, option.size)) is not None:
                number = len(self.names)
                self.names.append(f"{job.name}#{number}")
                self.board.take(place, number)
                self.ends[number] = math.inf
                orders.append(Order("start", self.names[-1], job.name, place, option))
            if len(orders) >= need:
                break
        return tuple(orders)

    def _begin(self, now: float) -> list[Order]:
        orders: list[Order] = []
        while self.queue:
            number, job, options = self.queue[0]
            place = self._find(options)
            if place is None:
                break
            orders.append(self._start(number, job, *place, now))
            self.queue.pop(0)
        if self.queue and self.backfill:
            orders += self._behind(now)
        return orders

    def _find(self, options: Sequence[Option]) -> tuple[Place, Option] | None:
        for option in options:
            place = self.board.find(option.pool, option.size)
            if place is not None:
                return place, option
        return None

    def _start(self, number: int, job: Training, place: Place, option: Option, now: float) -> Order:
        self.board.take(place, number)
        self.places[number] = place, option
        self.ends[number] = now + job.starting + job.steps / option.speed
        return Order("start", job.name, job.name, place, option)

    def _behind(self, now: float) -> list[Order]:
        """Others that do not delay the first: outside its block, or done before it is free."""
        block, free = self._reserved(self.queue[0][2])
        orders: list[Order] = []
        left = self.queue[:1]
        nowhere: set[int] = set()
        outside: set[int] = set()
        for number, job, options in self.queue[1:]:
            kind, found = id(job.options), None
            if kind not in outside:
                self.board.claim(block, 0)
                found = self._find(options)
                self.board.drop(block)
                outside |= {kind} if found is None else set()
            if found is None and kind not in nowhere:
                found = self._find([one for one in options if now + job.starting + job.steps / one.speed <= free])
                nowhere |= {kind} if found is None and self._find(options) is None else set()
            if found is None:
                left.append((number, job, options))
            else:
                orders.append(self._start(number, job, *found, now))
        self.queue = left
        return orders

    def _reserved(self, options: Sequence[Option]) -> tuple[Place, float]:
        """The block that is free first for one of the options, and when."""
        found: list[tuple[float, Place]] = []
        for option in options:
            for first in starts(self.cluster.pools[option.pool], option.size).tolist():
                place = Place(option.pool, first, option.size)
                ends = [self.ends[number] if number >= 0 else math.inf for number in self.board.held(place)]
                found.append((max(ends, default=0.0), place))
        free, place = min(found)
        return place, free


class Static(Fifo):
    """The cluster is cut into parts of `units` once, in every pool; each job has one part from its beginning to its
    end, and uses as much of it as makes it fastest. Raises ClusterError for a job that fits in no part."""

    def __init__(self, cluster: Cluster, units: int, *, accepts: float = 0.3) -> None:
        super().__init__(cluster, accepts=accepts)
        self.units = units

    def options(self, job: Training) -> list[Option]:
        """The part of each pool, at the speed of the best slice inside it."""
        found: list[Option] = []
        for index, pool in enumerate(self.cluster.pools):
            size = max((size for size in pool.sizes if size <= self.units), default=0)
            inside = [one.speed for one in job.options if one.pool == index and one.size <= size]
            if inside:
                found.append(Option(index, size, max(inside)))
        if not found:
            raise ClusterError(f"{job.name}: expected a part of the cluster that it fits in, got parts of {self.units}")
        return _accepted(found, self.accepts)
