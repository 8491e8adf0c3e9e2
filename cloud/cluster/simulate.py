"""Jobs on a cluster that is not there: events by the speeds that the jobs have, in seconds of the cluster's clock."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloud.cluster.cluster import Cluster
from cloud.cluster.jobs import Job, Serving, Training
from cloud.cluster.queueing import late
from cloud.cluster.result import Outage, Result
from cloud.cluster.state import Event, Order
from cloud.errors import ClusterError

__all__ = ["Decides", "simulate"]

DRAINING = 5.0
"""Seconds in which a replica answers what it has."""
MOST_EVENTS = 5_000_000


class Decides(Protocol):
    """Whoever orders: the scheduler, or what it is compared with."""

    @property
    def due(self) -> float:
        """The second by which it wants a tick."""
        ...

    def apply(self, event: Event) -> tuple[Order, ...]:
        """The orders that follow from an event."""
        ...


@dataclass
class _Live:
    """A gang that has a place."""

    order: Order
    job: Job
    ready: float
    done: float
    speed: float
    leaving: bool = False


class _World:
    """What happens, in order."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], decides: Decides, error: float, seed: int) -> None:
        self.decides, self.jobs = decides, {job.name: job for job in jobs}
        self.error, self.seed = error, seed
        self.heap: list[tuple[float, int, Callable[[], Iterable[Event]]]] = []
        self.counter = itertools.count()
        self.live: dict[str, _Live] = {}
        self.steps: dict[str, float] = {}
        self.result = Result(cluster)
        self.left = sum(isinstance(job, Training) for job in jobs)
        self.now = 0.0
        self.looked: dict[str, float] = {}

    def at(self, time: float, happens: Callable[[], Iterable[Event]]) -> None:
        heapq.heappush(self.heap, (time, next(self.counter), happens))

    def run(self, until: float) -> None:
        """Until no training job is left and nothing more happens, or that second."""
        count = 0
        while self.left or math.isfinite(until):
            due = max(self.decides.due, self.now)
            time = min(self.heap[0][0] if self.heap else math.inf, due)
            if not time <= until or not math.isfinite(time):
                break
            self.now = time
            while self.heap and self.heap[0][0] <= time:
                for event in heapq.heappop(self.heap)[2]():
                    self.tell(event)
            self.tell(Event("tick", time))
            count += 1
            if count > MOST_EVENTS:
                raise ClusterError(f"expected an end of the simulation, got {count} decisions by second {time:g}")
        self.now = until if math.isfinite(until) else self.now
        for live in self.live.values():
            self.count(live.job.name)
        self.result.seconds = self.now

    def tell(self, event: Event) -> None:
        orders = self.decides.apply(event)
        self.result.note(event, orders)
        for order in orders:
            _DO[order.kind](self, order)

    def start(self, order: Order) -> None:
        job = self.jobs[order.job]
        self.count(order.job)
        speed = order.option.speed * self.truth(order)
        live = _Live(order, job, self.now + job.starting, self.steps.get(order.gang, 0.0), speed)
        self.live[order.gang] = live
        if isinstance(job, Training):
            end = live.ready + max(job.steps - live.done, 0.0) / speed
            self.at(end, lambda: self.finish(live))
        else:
            self.at(live.ready, lambda: self.ready(job.name))

    def ready(self, name: str) -> tuple[Event, ...]:
        """One more replica answers from now on."""
        self.count(name)
        return ()

    def truth(self, order: Order) -> float:
        """The true speed of a job as a share of the foretold one."""
        if not self.error:
            return 1.0
        draw = random.Random(f"{self.seed} {order.job} {order.option.pool}")
        return math.exp(draw.gauss(0.0, self.error))

    def finish(self, live: _Live) -> Iterator[Event]:
        name = live.order.gang
        if self.live.get(name) is live and not live.leaving:
            self.close(name)
            self.left -= 1
            yield Event("ended", self.now, name)

    def reached(self, live: _Live, until: float, every: float = 0.0) -> float:
        """Steps that are done, and saved, by a second."""
        ran = max(0.0, until - live.ready)
        ran = ran // every * every if every else ran
        most = live.job.steps if isinstance(live.job, Training) else 0.0
        return min(live.done + live.speed * ran, most)

    def stop(self, order: Order) -> None:
        live = self.live[order.gang]
        self.count(order.job)
        live.leaving = True
        steps, saving = self.reached(live, self.now), DRAINING
        if isinstance(live.job, Training):
            self.steps[order.gang], saving = steps, live.job.saving
        self.at(self.now + saving, lambda: self.gone(live, steps))

    def gone(self, live: _Live, steps: float) -> Iterator[Event]:
        if self.live.get(live.order.gang) is live:
            self.close(live.order.gang)
            yield Event("stopped", self.now, live.order.gang, value=steps)

    def kill(self, order: Order) -> None:
        live = self.live[order.gang]
        if isinstance(live.job, Training):
            if not live.leaving:
                self.steps[order.gang] = self.reached(live, self.now, live.job.every)
            steps = self.steps[order.gang]
            self.at(self.now, lambda: [Event("progress", self.now, order.gang, value=steps)])
        self.close(order.gang)

    def close(self, name: str) -> None:
        live = self.live[name]
        self.count(live.job.name)
        self.live.pop(name)

    def count(self, name: str) -> None:
        """Requests of a serving job since they were counted last."""
        job = self.jobs[name]
        if not isinstance(job, Serving):
            return
        since = self.looked.get(name, job.arrives)
        end = min(self.now, job.until or math.inf)
        self.looked[name] = max(since, self.now)
        cuts = [since, *job.changes(since, end), end] if end > since else []
        for low, high in itertools.pairwise(cuts):
            rate = job.rate(low)
            there = [one for one in self.live.values() if one.job is job and one.ready <= low and not one.leaving]
            slowest = min((one.speed for one in there), default=0.0)
            share = late(len(there), rate / slowest, 1.0 / slowest, job.latency) if there else float(rate > 0)
            self.result.requests += rate * (high - low)
            self.result.slow += rate * (high - low) * share


_DO: dict[str, Callable[[_World, Order], None]] = {"start": _World.start, "stop": _World.stop, "kill": _World.kill}


def simulate(
    cluster: Cluster, jobs: Sequence[Job], decides: Decides, *, outages: Sequence[Outage] = (), error: float = 0.0,
    seed: int = 0, until: float = math.inf,
) -> Result:  # fmt: skip
    """Run all jobs; ends with the last training job, or at the second `until`.

    `outages`: machines that are gone for a time; their jobs lose what they did since their last checkpoint. `error`:
    the standard deviation of the logarithm of true speeds over foretold ones, drawn by `seed` for each job and pool.
    Raises ClusterError if `decides` orders what cannot be."""
    world = _World(cluster, jobs, decides, error, seed)
    for job in jobs:
        world.at(job.arrives, lambda job=job: [Event("submitted", job.arrives, job=job)])  # type: ignore[misc]
    for one in outages:
        lost = Event("lost", one.start, pool=one.pool, machine=one.machine)
        back = Event("returned", one.end, pool=one.pool, machine=one.machine)
        for event in (lost, back):
            world.at(event.time, lambda event=event: [event])  # type: ignore[misc]
    world.run(until)
    return world.result
