"""One planner for all jobs: a pure function of events, which gives orders.

Everybody's slices are decided together every `Rules.round` seconds, in this order: replicas that requests need; jobs
that had no devices for `Rules.patience`, on their smallest slices; by priority, and within one by the policy. In
between, free slices are only given to those who wait. Slices move by checkpoints: who has to leave saves and ends, and
whoever comes next has its place claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cloud.cluster.cluster import Cluster, Rules
from cloud.cluster.jobs import Option, Training
from cloud.cluster.places import Place
from cloud.cluster.policy import POLICIES, Rank, Scores, pressing
from cloud.cluster.prices import Ask, Prices
from cloud.cluster.state import Event, Gang, Order, Service, State

__all__ = ["Scheduler"]

GROWTH = 1.1
"""Free devices that nobody waits for are given to a job if it gets this many times as fast."""
PRICED = 4
"""Rounds after which prices are computed again in any case."""
GROWING = 32
"""Jobs that are looked at for that, those with most left."""


class Scheduler:
    """`apply` takes an event in and returns the orders that follow; "tick" lets it decide. `due`: the second by which
    it wants a tick. `rules`: by default the cluster's. Raises ClusterError for events that cannot follow."""

    def __init__(self, cluster: Cluster, rules: Rules | None = None) -> None:
        self.cluster, self.rules = cluster, rules or cluster.rules
        self.policy = POLICIES[self.rules.policy]
        self.state = State(cluster, self.rules)
        self.prices = Prices(np.ones(len(cluster.pools)))
        self.scores = Scores(self.policy, self.prices)
        self.queue: list[Gang] = []
        """Who waited at the last decision, best first, and who came since."""
        self._round = self._stale = 0.0
        self._about: tuple[list[int], list[int]] = ([], [])

    @property
    def due(self) -> float:
        """The second of the next decision about everybody; infinite if there is nobody."""
        return self._round if self.state.tasks or self.state.services else math.inf

    def apply(self, event: Event) -> tuple[Order, ...]:
        """The orders that follow from an event."""
        self.state.orders = []
        self.state.take_in(event)
        if event.kind == "submitted" and event.job is not None and event.job.name in self.state.tasks:
            self.queue.append(self.state.tasks[event.job.name])
        elif event.kind == "stopped" and event.name in self.state.tasks:
            self.queue.append(self.state.tasks[event.name])
        elif event.kind == "lost":
            self._round = event.time
        elif event.kind == "tick":
            if event.time >= self._round:
                self._everybody()
                self._round = event.time + self.rules.round
            else:
                self._fill()
            self.state.settle()
        return tuple(self.state.orders)

    # -- everybody

    def _everybody(self) -> None:
        state = self.state
        gangs = [gang for gang in state.tasks.values() if gang.status in ("waiting", "running")]
        asks = {
            gang.number: Ask(gang.number, gang.options, gang.remaining(state.now) / gang.pace,
                             gang.job.weight if isinstance(gang.job, Training) else 1.0)
            for gang in gangs
        }  # fmt: skip
        self._price(list(asks.values()))
        for service in list(state.services.values()):
            self._serve(service)
        self._overdue(gangs)
        ranks = {gang.number: self._rank(gang, asks[gang.number]) for gang in gangs}
        gangs.sort(key=lambda gang: ranks[gang.number])
        wanted = self._wanted(gangs, asks)
        self._move(gangs, asks, wanted, ranks)
        self.queue = [gang for gang in gangs if gang.status == "waiting" and gang.claim is None]

    def _price(self, asks: list[Ask]) -> None:
        """New prices, if jobs or devices changed, and else after some time."""
        capacity = self._capacity()
        about = ([ask.number for ask in asks], capacity)
        if about != self._about or self.state.now >= self._stale:
            self.prices = self.policy.prices(asks, capacity)
            self._about, self._stale = about, self.state.now + PRICED * self.rules.round
            self.scores = Scores(self.policy, self.prices)

    def _capacity(self) -> list[int]:
        """Units of each pool for training."""
        found = [self.state.board.up(pool) for pool in range(len(self.cluster.pools))]
        for service in self.state.services.values():
            for replica in service.replicas:
                place = replica.place or replica.claim
                if place is not None:
                    found[place.pool] -= place.size
        return [max(units, 0) for units in found]

    def _rank(self, gang: Gang, ask: Ask) -> Rank:
        priority = -gang.job.priority if isinstance(gang.job, Training) else 0
        soon = pressing(gang, ask, self.state.now, 4 * self.rules.round + self.rules.quantum)
        own = self.policy.rank(gang, ask, self.prices, self.rules.quantum)
        return (float(priority), 0.0 if soon else 1.0, *own, float(gang.number))

    # -- serving

    def _serve(self, service: Service) -> None:
        """As many replicas as are needed until new ones could be ready."""
        state, job = self.state, service.job
        if job.until and state.now >= job.until:
            for replica in service.replicas[:]:
                self._release(service, replica)
            if not service.replicas:
                state.services.pop(job.name)
            return
        ahead = job.starting + self.rules.quantum + 2 * self.rules.round
        rate = max(job.peak(state.now, state.now + ahead), service.measured)
        there = [replica for replica in service.replicas if replica.status != "leaving"]
        options = sorted(
            job.options, key=lambda option: float(self.prices.pools[option.pool]) * option.size / option.speed
        )
        used = {replica.option or replica.coming for replica in there} - {None}
        slowest = min((option.speed for option in used if option is not None), default=options[0].speed)
        for option in sorted(options, key=lambda option: option not in used):
            need = job.needed(rate, 1.0 / min(slowest, option.speed))
            while len(there) < need and (place := self._room(option)) is not None:
                service.started += 1
                gang = state.gang(f"{job.name}#{service.started}", job, (option,))
                service.replicas.append(gang)
                there.append(gang)
                state.claim(gang, place, option)
            if len(there) >= need:
                break
        need = job.needed(rate, 1.0 / slowest)
        service.short = max(need - len(there), 0)
        for replica in sorted(there, key=lambda replica: -replica.number)[: max(len(there) - need, 0)]:
            self._release(service, replica)

    def _release(self, service: Service, replica: Gang) -> None:
        if replica.status == "running":
            self.state.stop(replica, "requests need fewer replicas")
        elif replica.status == "waiting":
            self.state.unclaim(replica)
            replica.status = "ended"
            service.replicas.remove(replica)

    def _room(self, option: Option) -> Place | None:
        """A free block, or that of training jobs which may be stopped."""
        board = self.state.board

        def cost(number: int) -> float:
            gang = self.state.gangs[number]
            if not isinstance(gang.job, Training) or (gang.due and not self.state.movable(gang)):
                return math.inf
            return (1.0 if self.state.movable(gang) else 50.0) * _share(gang, option.size)

        return board.find(option.pool, option.size) or board.cheapest(option.pool, option.size, cost)

    # -- those who waited too long

    def _overdue(self, gangs: Sequence[Gang]) -> None:
        """Claims for jobs that had no devices for `patience`, the longest first; who finds no block keeps those behind
        it out of its pools."""
        state = self.state
        late = [gang for gang in gangs if gang.status == "waiting" and state.now - gang.idle >= self.rules.patience]
        late.sort(key=lambda gang: (gang.idle, gang.number))
        closed: set[int] = set()
        for ahead, gang in enumerate(late):
            if not gang.due:
                gang.due, gang.ahead = True, ahead
            if gang.claim is not None:
                continue
            for option in sorted(gang.options, key=lambda option: (option.size, -option.speed)):
                if option.pool not in closed and (place := self._forced(option)) is not None:
                    state.claim(gang, place, option)
                    break
            else:
                closed |= {option.pool for option in gang.options}

    def _forced(self, option: Option) -> Place | None:
        """A free block, or that of those who have to leave soonest; of replicas, which then go elsewhere, in the
        end."""
        state = self.state

        def cost(number: int) -> float:
            gang = state.gangs[number]
            waits = max(0.0, gang.until - state.now) / self.rules.quantum
            worth = 0.1 if gang.status == "leaving" else 1.0 + 10.0 * waits
            return (worth if isinstance(gang.job, Training) else 1e6) * _share(gang, option.size)

        return state.board.find(option.pool, option.size) or state.board.cheapest(option.pool, option.size, cost)

    # -- all others

    def _wanted(self, gangs: Sequence[Gang], asks: dict[int, Ask]) -> dict[int, Option]:
        """The slice that each job should have, by numbers of units alone. `gangs`: best first."""
        state, left, wanted = self.state, self._capacity(), dict[int, Option]()
        open_: list[Gang] = []
        for gang in gangs:
            fixed = gang.coming or (gang.option if gang.status == "running" and not state.movable(gang) else None)
            if fixed is None:
                open_.append(gang)
                continue
            wanted[gang.number] = fixed
            left[fixed.pool] -= fixed.size
        told: dict[int, list[tuple[Option, bool]]] = {}
        for good in (True, False):
            for gang in open_:
                if gang.number in wanted or not any(units > 0 for units in left):
                    continue
                ask = asks[gang.number]
                rows = told.get(gang.number) or self.scores.preferences(gang, ask, state.now)
                told[gang.number] = rows
                for option, fine in rows:
                    if option.size <= left[option.pool] and (fine or not good):
                        wanted[gang.number] = option
                        left[option.pool] -= option.size
                        break
        self._grow([gang for gang in open_ if gang.number in wanted], asks, wanted, left)
        return wanted

    def _grow(self, gangs: Sequence[Gang], asks: dict[int, Ask], wanted: dict[int, Option], left: list[int]) -> None:
        """Devices that nobody waits for go to those who have most left."""
        if any(gang.number not in wanted and gang.status == "waiting" for gang in self.state.tasks.values()):
            return

        def ends(gang: Gang) -> float:
            return asks[gang.number].remaining / wanted[gang.number].speed

        for gang in sorted(gangs, key=lambda gang: (-ends(gang), gang.number))[:GROWING]:
            now = wanted[gang.number]
            for option in sorted(gang.options, key=lambda option: -option.speed):
                free = left[option.pool] + (now.size if option.pool == now.pool else 0)
                saved = ends(gang) - asks[gang.number].remaining / option.speed
                assert isinstance(gang.job, Training)
                moves = gang.status == "running" and option != gang.option
                worth = saved > (3 * (gang.job.saving + gang.job.starting) if moves else 0.0)
                if option.speed >= GROWTH * now.speed and option.size <= free and worth:
                    left[now.pool] += now.size
                    left[option.pool] -= option.size
                    wanted[gang.number] = option
                    break

    def _move(
        self, gangs: Sequence[Gang], asks: dict[int, Ask], wanted: dict[int, Option], ranks: dict[int, Rank]
    ) -> None:
        """Slices for those who should have another one than now: free ones, or such whose holders come later."""
        state = self.state
        staying = {gang.number for gang in gangs if gang.status == "running" and wanted.get(gang.number) == gang.option}
        coming = [gang for gang in gangs if gang.number in wanted and gang.number not in staying and gang.claim is None]
        for gang in sorted(coming, key=lambda gang: (-wanted[gang.number].size, ranks[gang.number])):
            option = wanted[gang.number]
            place = state.board.find(option.pool, option.size)
            cost = self._cost(gang, option.size, staying, ranks)
            place = place or state.board.cheapest(option.pool, option.size, cost)
            if place is None and gang.status == "waiting":  # there are enough units, but in no block
                rows = self.scores.preferences(gang, asks[gang.number], state.now)
                found = ((state.board.find(other.pool, other.size), other) for other, _ in rows)
                place, option = next(((at, other) for at, other in found if at is not None), (None, option))
            if place is None:
                continue
            state.claim(gang, place, option)
            if gang.status == "running":
                state.stop(gang, "moves")

    def _cost(self, gang: Gang, size: int, staying: set[int], ranks: dict[int, Rank]) -> Callable[[int], float]:
        """What it costs that `gang` takes a unit of another, infinite if it must not."""
        state = self.state

        def cost(number: int) -> float:
            other = state.gangs[number]
            if other is gang or other.status == "leaving":
                return 1e-3
            if not state.movable(other):
                return math.inf
            if number not in staying:
                return 0.1 * _share(other, size)
            return _share(other, size) if ranks[gang.number] < ranks[number] else math.inf

        return cost

    # -- in between

    def _fill(self) -> None:
        """Free slices for those who wait, in the order of the last decision; nobody is stopped."""
        state = self.state
        free = [state.board.free(pool) for pool in range(len(self.cluster.pools))]
        if not any(free):
            return
        kinds = {id(gang.options) for gang in self.queue}
        for gang in self.queue:
            waits = gang.status == "waiting" and gang.claim is None and id(gang.options) in kinds
            if waits and not self._begun(gang, free):
                kinds.discard(id(gang.options))  # who is alike finds no slice either
            if not kinds:
                break
        self.queue = [gang for gang in self.queue if gang.status == "waiting" and gang.claim is None]

    def _begun(self, gang: Gang, free: list[int]) -> bool:
        ask = Ask(gang.number, gang.options, gang.remaining(self.state.now) / gang.pace)
        for option, good in self.scores.preferences(gang, ask, self.state.now):
            if good and option.size <= free[option.pool]:
                place = self.state.board.find(option.pool, option.size)
                if place is not None:
                    self.state.start(gang, place, option)
                    free[option.pool] -= option.size
                    return True
        return False


MOVING = 4
"""To move a gang costs as much as so many units and its own."""


def _share(gang: Gang, size: int) -> float:
    """The part of the cost of moving a gang that each of its units in a block of `size` has."""
    held = gang.place.size if gang.place else 1
    return (held + MOVING) / min(held, size)
