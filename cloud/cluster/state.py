"""What a cluster's scheduler knows: a state machine over events. Only events and `decide`'s orders change it, so that
the same events always give the same orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from msgspec import Struct

from cloud.cluster.cluster import Cluster, Rules
from cloud.cluster.jobs import Job, Option, Serving, Training
from cloud.cluster.places import Board, Place
from cloud.errors import ClusterError

__all__ = ["Event", "Gang", "Order", "Service", "State"]

Kind = Literal["submitted", "progress", "stopped", "ended", "failed", "lost", "returned", "rate", "cancelled", "tick"]
_PACE = (0.1, 10.0)
"""By how much a measured speed may correct the planner's."""
_MEASURED = 30.0
"""Seconds of running after which a speed is measured."""


class Event(Struct, frozen=True, omit_defaults=True):
    """Something that happened at a second of the cluster's clock.

    submitted: `job`. progress, stopped: the gang `name` has done `value` steps, which are saved; stopped: and its
    processes have ended. ended, failed: it has ended by itself; `text`: why. lost, returned: a `machine` of a `pool`.
    rate: the job `name` gets `value` requests per second. cancelled: the job `name`. tick: now decide."""

    kind: Kind
    time: float
    name: str = ""
    job: Job | None = None
    value: float = 0.0
    pool: int = 0
    machine: int = 0
    text: str = ""


class Order(NamedTuple):
    """What has to be done. start: the gang on the place. stop: save and end; answered by "stopped". kill: its machine
    is lost."""

    kind: Literal["start", "stop", "kill"]
    gang: str
    job: str
    place: Place
    option: Option
    why: str = ""


@dataclass(eq=False)
class Gang:
    """What runs on one slice: a training job, or one replica of a serving job. `claim`, `coming`: the slice that it
    gets next. `done`: saved steps, as of `told`. `idle`: since when it has had no devices; `gap`: the longest such
    time. `due`: it waits so long that it comes next; `ahead`: others that did before it."""

    number: int
    name: str
    job: Job
    options: tuple[Option, ...]
    status: Literal["waiting", "running", "leaving", "ended", "failed"] = "waiting"
    place: Place | None = None
    option: Option | None = None
    claim: Place | None = None
    coming: Option | None = None
    since: float = 0.0
    until: float = 0.0
    idle: float = 0.0
    done: float = 0.0
    told: float = 0.0
    begun: float = 0.0
    pace: float = 1.0
    attained: float = 0.0
    starts: int = 0
    gap: float = 0.0
    due: bool = False
    ahead: int = 0
    text: str = ""

    @property
    def steps(self) -> float:
        """Of the whole job."""
        return self.job.steps if isinstance(self.job, Training) else 0.0

    def remaining(self, now: float) -> float:
        """Steps that are left, as far as the speed foretells."""
        left = self.steps - self.done
        if self.status == "running" and self.option is not None:
            run = now - max(self.told, self.since + self.job.starting)
            left -= max(0.0, run) * self.option.speed * self.pace
        return max(left, 0.0)


@dataclass
class Service:
    """A serving job and its replicas. `measured`: requests per second, if they are more than declared."""

    job: Serving
    replicas: list[Gang] = field(default_factory=list)
    measured: float = 0.0
    started: int = 0
    short: int = 0


class State:
    """The state after some events."""

    def __init__(self, cluster: Cluster, rules: Rules) -> None:
        self.cluster, self.rules, self.now = cluster, rules, 0.0
        self.board = Board(cluster)
        self.gangs: list[Gang] = []
        """By number."""
        self.tasks: dict[str, Gang] = {}
        """Training jobs that have not ended."""
        self.services: dict[str, Service] = {}
        self.named: dict[str, Gang] = {}
        self.claiming: dict[int, Gang] = {}
        self.orders: list[Order] = []
        self._options: dict[tuple[Option, ...], tuple[Option, ...]] = {}
        """Equal options are one object, by which jobs alike are found."""

    def take_in(self, event: Event) -> None:
        """Change the state. Raises ClusterError, and changes nothing, for an event that this state does not allow."""
        if event.time < self.now:
            raise ClusterError(f"{event.kind}: expected a second of at least {self.now:g}, got {event.time:g}")
        change = _CHANGES.get(event.kind)
        if change is None:
            raise ClusterError(f"expected an event of {', '.join(_CHANGES)}, got {event.kind!r:.40}")
        before, self.now = self.now, event.time
        try:
            change(self, event)
        except ClusterError:
            self.now = before
            raise

    # -- events

    def _submitted(self, event: Event) -> None:
        job = event.job
        if job is None or job.name in self.named or job.name in self.services:
            raise ClusterError(f"submitted: expected a job with a new name, got {job.name if job else None!r}")
        if not job.options or not all(self._is(option) for option in job.options):
            raise ClusterError(f"{job.name}: expected slices that the cluster has, got {list(job.options)!r:.80}")
        if isinstance(job, Serving):
            self.services[job.name] = Service(job)
        else:
            self.tasks[job.name] = self.gang(job.name, job, job.options)

    def _is(self, option: Option) -> bool:
        pools = self.cluster.pools
        return 0 <= option.pool < len(pools) and option.size in pools[option.pool].sizes and option.speed > 0

    def gang(self, name: str, job: Job, options: tuple[Option, ...]) -> Gang:
        """A new one that waits."""
        shared = self._options.setdefault(options, options)
        made = Gang(len(self.gangs), name, job, shared, idle=self.now)
        self.gangs.append(made)
        self.named[name] = made
        return made

    def _progress(self, event: Event) -> None:
        gang = self._known(event, "running", "leaving", "waiting")
        ran = self.now - gang.since - gang.job.starting
        if gang.status == "running" and gang.option is not None and ran >= _MEASURED and event.value > gang.begun:
            low, high = _PACE
            gang.pace = min(max((event.value - gang.begun) / ran / gang.option.speed, low), high)
        gang.done, gang.told = event.value, self.now

    def _stopped(self, event: Event) -> None:
        gang = self._known(event, "leaving", "running")
        if gang.status == "running":
            gang.idle = self.now
        gang.done = max(gang.done, event.value)
        self._vacate(gang)
        gang.status = "waiting"
        if isinstance(gang.job, Serving) or gang.name not in self.tasks:  # or it was cancelled
            self._forget(gang, "ended")

    def _ended(self, event: Event) -> None:
        gang = self._known(event, "running", "leaving")
        gang.done, gang.text = gang.steps, event.text
        self._vacate(gang)
        self._forget(gang, "ended" if event.kind == "ended" else "failed")

    def _cancelled(self, event: Event) -> None:
        if event.name in self.services:
            for replica in self.services.pop(event.name).replicas[:]:
                self._end(replica)
            return
        if event.name not in self.tasks:
            raise ClusterError(f"cancelled: expected a job that has not ended, got {event.name!r:.60}")
        self._end(self.tasks[event.name])

    def _end(self, gang: Gang) -> None:
        self.unclaim(gang)
        if gang.status == "waiting":
            self._forget(gang, "ended")
        elif gang.status == "running":
            self.stop(gang, "cancelled")
            self.tasks.pop(gang.name, None)

    def _forget(self, gang: Gang, status: Literal["ended", "failed"]) -> None:
        self.unclaim(gang)
        gang.status = status
        self.tasks.pop(gang.name, None)
        service = self.services.get(gang.job.name)
        if service is not None and gang in service.replicas:
            service.replicas.remove(gang)

    def _lost(self, event: Event) -> None:
        pool, machine = self._machine(event)
        for number in sorted(self.board.lose(pool, machine)):
            gang = self.gangs[number]
            assert gang.place is not None and gang.option is not None
            self.orders.append(Order("kill", gang.name, gang.job.name, gang.place, gang.option, "machine lost"))
            gang.idle = self.now if gang.status == "running" else gang.idle
            gang.due = False
            self._vacate(gang)
            gang.status = "waiting"
            if isinstance(gang.job, Serving):
                self._forget(gang, "ended")
        gone = self.board.machine(pool, machine)
        for gang in list(self.claiming.values()):
            claim = gang.claim
            assert claim is not None
            apart = claim.first + claim.size <= gone.first or gone.first + gone.size <= claim.first
            if claim.pool == pool and not apart:
                self.unclaim(gang)

    def _returned(self, event: Event) -> None:
        self.board.restore(*self._machine(event))

    def _rate(self, event: Event) -> None:
        if event.name not in self.services or event.value < 0:
            raise ClusterError(f"rate: expected requests per second of a serving job, got {event.name!r:.60}")
        self.services[event.name].measured = event.value

    def _tick(self, event: Event) -> None:
        """Nothing happened."""

    def _machine(self, event: Event) -> tuple[int, int]:
        pools = self.cluster.pools
        if not (0 <= event.pool < len(pools) and 0 <= event.machine < pools[event.pool].machines):
            raise ClusterError(f"{event.kind}: expected a machine of the cluster, got {event.pool}/{event.machine}")
        return event.pool, event.machine

    def _known(self, event: Event, *statuses: str) -> Gang:
        gang = self.named.get(event.name)
        if gang is None or gang.status not in statuses:
            there = f"one that is {gang.status}" if gang else f"{event.name!r:.60}"
            raise ClusterError(f"{event.kind}: expected a job that is {' or '.join(statuses)}, got {there}")
        return gang

    # -- what decisions do

    def start(self, gang: Gang, place: Place, option: Option) -> None:
        """Let it begin on a free slice."""
        self.unclaim(gang)
        self.board.take(place, gang.number)
        gang.gap = max(gang.gap, self.now - gang.idle)
        gang.place, gang.option, gang.status = place, option, "running"
        gang.since = gang.told = self.now
        gang.until = self.now + self.rules.quantum
        gang.begun, gang.starts = gang.done, gang.starts + 1
        if isinstance(gang.job, Training) and gang.job.exact:
            own = tuple(o for o in gang.options if (o.pool, o.size) == (option.pool, option.size))
            gang.options = self._options.setdefault(own, own)
        self.orders.append(Order("start", gang.name, gang.job.name, place, option))

    def stop(self, gang: Gang, why: str) -> None:
        """Let it save and end."""
        assert gang.place is not None and gang.option is not None
        gang.status, gang.idle = "leaving", self.now
        gang.due = False
        self.orders.append(Order("stop", gang.name, gang.job.name, gang.place, gang.option, why))

    def claim(self, gang: Gang, place: Place, option: Option) -> None:
        """It gets the slice when those who hold it have left."""
        self.unclaim(gang)
        self.board.claim(place, gang.number)
        gang.claim, gang.coming = place, option
        self.claiming[gang.number] = gang

    def unclaim(self, gang: Gang) -> None:
        """It gets nothing."""
        if gang.claim is not None:
            self.board.drop(gang.claim)
            gang.claim = gang.coming = None
            self.claiming.pop(gang.number, None)

    def settle(self) -> None:
        """Stop those who hold claimed slices, as soon as they may be; start those whose slices are free."""
        for gang in list(self.claiming.values()):
            assert gang.claim is not None and gang.coming is not None
            holders = [self.gangs[number] for number in sorted(self.board.held(gang.claim))]
            for holder in holders:
                forced = gang.due and isinstance(holder.job, Serving)  # its replica goes elsewhere
                if holder.status == "running" and (holder is gang or forced or self.movable(holder)):
                    self.stop(holder, "moves" if holder is gang else f"makes room for {gang.name}")
            if gang.status == "waiting" and not holders:
                self.start(gang, gang.claim, gang.coming)

    def movable(self, gang: Gang) -> bool:
        """Whether it has had its quantum."""
        return isinstance(gang.job, Training) and self.now >= gang.until

    def _vacate(self, gang: Gang) -> None:
        assert gang.place is not None
        gang.attained += gang.place.size * (self.now - gang.since)
        self.board.leave(gang.place)
        gang.place = gang.option = None


_CHANGES: Mapping[str, Callable[[State, Event], None]] = MappingProxyType({
    "submitted": State._submitted,
    "progress": State._progress,
    "stopped": State._stopped,
    "ended": State._ended,
    "failed": State._ended,
    "lost": State._lost,
    "returned": State._returned,
    "rate": State._rate,
    "cancelled": State._cancelled,
    "tick": State._tick,
})  # fmt: skip
"""By kind of event: what it does."""
