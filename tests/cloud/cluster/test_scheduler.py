"""Decisions: pure, in the stated order, and nobody waits longer than the stated bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json, structs

from cloud.cluster.cluster import Cluster, Rules
from cloud.cluster.jobs import Job, Option, Serving
from cloud.cluster.result import Outage, Result
from cloud.cluster.scheduler import Scheduler
from cloud.cluster.simulate import simulate
from cloud.cluster.state import Event, Gang, Order
from cloud.errors import ClusterError
from tests.cloud.cluster.world import QUICK, cluster, job, options, pool

TWO = cluster(pool("new", 2, 4), pool("old", 2, 4))
ALL = options(TWO)


def told(scheduler: Scheduler, *events: Event) -> list[Order]:
    return [order for event in events for order in scheduler.apply(event)]


def begun(there: Cluster, jobs: Sequence[Job], rules: Rules | None = None) -> tuple[Scheduler, list[Order]]:
    scheduler = Scheduler(there, rules)
    return scheduler, told(scheduler, *(Event("submitted", 0.0, job=one) for one in jobs), Event("tick", 0.0))


def test_the_same_events_give_the_same_orders() -> None:
    jobs: list[Job] = [job(f"j{n}", ALL, 100.0 * (n % 5 + 1), arrives=7.0 * n, priority=n % 3) for n in range(20)]
    jobs.append(Serving("s", (Option(0, 1, 10.0),), ((0.0, 5.0), (100.0, 25.0)), 0.5, period=200.0, starting=4.0))
    orders: list[Order] = []

    class Noted(Scheduler):
        def apply(self, event: Event) -> tuple[Order, ...]:
            found = super().apply(event)
            orders.extend(found)
            return found

    result = simulate(TWO, jobs, Noted(TWO), outages=[Outage(0, 1, 90.0, 150.0)], error=0.3)
    assert all(one.ended < math.inf for one in result.jobs.values()) and result.moves > 5
    again = Scheduler(TWO)
    read = [json.decode(json.encode(event), type=Event) for event in result.events]
    assert [order for event in read for order in again.apply(event)] == orders


def test_higher_priorities_come_first_and_others_leave_by_their_checkpoints() -> None:
    whole = (Option(0, 8, 1.0),)
    scheduler, orders = begun(TWO, [job("low", whole, 1e4)])
    assert [order.gang for order in orders] == ["low"]
    orders = told(scheduler, Event("submitted", 5.0, job=job("high", whole, 10.0, priority=1)), Event("tick", 20.0))
    assert orders == []  # it has not had its quantum
    (stop,) = told(scheduler, Event("tick", 35.0))
    assert (stop.kind, stop.gang) == ("stop", "low") and "high" in stop.why
    assert told(scheduler, Event("tick", 36.0)) == []
    orders = told(scheduler, Event("stopped", 37.0, "low", value=30.0), Event("tick", 37.0))
    assert [(order.kind, order.gang) for order in orders] == [("start", "high")]
    assert told(scheduler, Event("ended", 60.0, "high"), Event("tick", 60.0))[0].gang == "low"
    assert scheduler.state.named["low"].done == 30.0


def test_a_gang_gets_all_devices_or_none() -> None:
    eight = (Option(0, 8, 1.0),)
    _, orders = begun(TWO, [job("small", (Option(0, 1, 1.0),), 50.0), job("gang", eight, 5.0)])
    starts = {order.gang: order.place.size for order in orders}
    assert starts in ({"small": 1}, {"gang": 8})
    result = simulate(TWO, [job("small", (Option(0, 1, 1.0),), 50.0), job("gang", eight, 5.0)], Scheduler(TWO))
    spans = {span.gang: span for span in result.spans}
    assert spans["gang"].start >= spans["small"].end or spans["small"].start >= spans["gang"].end


def test_jobs_go_where_they_gain_most() -> None:
    """Both pools are worth using; the job that gains nothing from the new devices has the old ones."""
    fast, same = (Option(0, 8, 8.0), Option(1, 8, 1.0)), (Option(0, 8, 2.0), Option(1, 8, 2.0))
    for order in (("same", "fast"), ("fast", "same")):
        jobs = [job(name, fast if name == "fast" else same, 500.0) for name in order]
        _, orders = begun(TWO, jobs)
        assert {one.gang: one.place.pool for one in orders} == {"fast": 0, "same": 1}


def test_free_devices_go_to_who_has_most_left() -> None:
    result = simulate(TWO, [job("short", ALL, 20.0), job("long", ALL, 2000.0)], Scheduler(TWO))
    last = max((span for span in result.spans if span.gang == "long"), key=lambda span: span.end)
    assert last.place.size == 8 and last.place.pool == 0


def test_a_deadline_comes_before_what_arrived_earlier() -> None:
    whole = (Option(0, 8, 1.0),)
    jobs = [job(f"j{n}", whole, 100.0, arrives=0.1 * n) for n in range(4)]
    jobs.append(job("soon", whole, 50.0, arrives=1.0, deadline=260.0))
    assert simulate(TWO, jobs, Scheduler(TWO)).missed == []
    patient = [structs.replace(one, deadline=0.0) for one in jobs]
    assert simulate(TWO, patient, Scheduler(TWO)).jobs["soon"].ended > 260.0


def test_an_exact_job_keeps_its_kind_of_slice() -> None:
    jobs = [job("exact", ALL, 600.0, exact=True)]
    jobs += [job(f"j{n}", ALL, 150.0, arrives=20.0 * n, priority=n % 2) for n in range(12)]
    result = simulate(TWO, jobs, Scheduler(TWO))
    slices = {(span.place.pool, span.place.size) for span in result.spans if span.gang == "exact"}
    assert len(slices) == 1 and result.jobs["exact"].moves > 0


def test_replicas_follow_the_requests_ahead_of_time() -> None:
    rates = ((0.0, 8.0), (300.0, 70.0), (600.0, 8.0))
    served = Serving("s", (Option(0, 1, 10.0), Option(1, 1, 10.0)), rates, 0.5, period=900.0, starting=4.0)
    jobs: list[Job] = [served, *(job(f"j{n}", ALL, 400.0) for n in range(20))]
    result = simulate(TWO, jobs, Scheduler(TWO), until=900.0)
    need = served.needed(70.0, 0.1)
    spans = [span for span in result.all() if span.job == "s"]
    there = [sum(span.ready <= time < span.end for span in spans) for time in (200.0, 300.0, 599.0, 700.0)]
    assert there[1] >= need and there[2] >= need
    assert there[0] < need and there[3] < need
    assert result.late < 0.01  # before the first replicas run, everything is


def test_measured_rates_and_a_service_that_ends() -> None:
    served = Serving("s", (Option(0, 1, 10.0),), ((0.0, 2.0),), 0.5, until=100.0)
    scheduler, orders = begun(TWO, [served])
    assert len(orders) == served.needed(2.0, 0.1)
    orders = told(scheduler, Event("rate", 15.0, "s", value=30.0), Event("tick", 20.0))
    assert len(orders) == served.needed(30.0, 0.1) - served.needed(2.0, 0.1)
    orders = told(scheduler, Event("tick", 100.0))
    assert {order.kind for order in orders} == {"stop"} and len(orders) == served.needed(30.0, 0.1)
    for order in orders:
        scheduler.apply(Event("stopped", 101.0, order.gang))
    scheduler.apply(Event("tick", 110.0))
    assert scheduler.due == math.inf


def test_a_lost_machine() -> None:
    whole = (Option(0, 4, 1.0),)
    scheduler, orders = begun(TWO, [job("a", whole, 1000.0), job("b", whole, 1000.0)])
    at = {order.gang: order.place.first // 4 for order in orders}
    name = next(gang for gang, machine in at.items() if machine == 1)
    (kill,) = told(scheduler, Event("lost", 50.0, pool=0, machine=1))
    assert (kill.kind, kill.gang) == ("kill", name)
    scheduler.apply(Event("progress", 50.0, name, value=40.0))
    assert told(scheduler, Event("tick", 50.0)) == []  # the other one has the last machine
    orders = told(scheduler, Event("returned", 60.0, pool=0, machine=1), Event("tick", 60.0))
    assert [(order.kind, order.gang, order.place.first) for order in orders] == [("start", name, 4)]
    assert scheduler.state.named[name].begun == 40.0


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event("ended", 9.0, "nobody"), "expected a job that is running"),
        (Event("stopped", 9.0, "waits"), "got one that is waiting"),
        (Event("submitted", 9.0, job=job("runs", ALL, 1.0)), "a job with a new name"),
        (Event("submitted", 9.0, job=job("x", (Option(0, 3, 1.0),), 1.0)), "slices that the cluster has"),
        (Event("submitted", 9.0, job=job("x", (), 1.0)), "slices that the cluster has"),
        (Event("lost", 9.0, pool=4), "a machine of the cluster"),
        (Event("rate", 9.0, "runs", value=3.0), "of a serving job"),
        (Event("cancelled", 9.0, "nobody"), "a job that has not ended"),
        (Event("tick", -1.0), "a second of at least"),
    ],
)
def test_events_that_cannot_follow_change_nothing(event: Event, words: str) -> None:
    eight = (Option(0, 8, 1.0),)
    scheduler, _ = begun(TWO, [job("runs", eight, 1e4), job("waits", eight, 1e4)])
    with pytest.raises(ClusterError, match=words):
        scheduler.apply(event)
    assert scheduler.state.now == 0.0
    assert {name: gang.status for name, gang in scheduler.state.named.items()} == {
        "runs": "running",
        "waits": "waiting",
    }


def test_cancelled_jobs_give_their_devices_back() -> None:
    eight = (Option(0, 8, 1.0),)
    scheduler, _ = begun(TWO, [job("runs", eight, 1e4), job("waits", eight, 1e4), job("next", eight, 1e4)])
    assert told(scheduler, Event("cancelled", 1.0, "waits")) == []
    (stop,) = told(scheduler, Event("cancelled", 2.0, "runs"))
    assert stop.kind == "stop"
    orders = told(scheduler, Event("stopped", 3.0, "runs", value=1.0), Event("tick", 3.0))
    assert [order.gang for order in orders] == ["next"]


def test_a_measured_speed_replaces_the_foretold_one() -> None:
    scheduler, _ = begun(TWO, [job("a", (Option(0, 8, 10.0),), 1e4)])
    gang = scheduler.state.named["a"]
    assert gang.remaining(0.0) == 1e4
    scheduler.apply(Event("progress", 104.0, "a", value=500.0))  # 100 s after the start of 4 s: 5 steps per second
    scheduler.apply(Event("tick", 114.0))
    assert gang.remaining(114.0) == pytest.approx(1e4 - 500 - 50)


# -- starvation --------------------------------------------------------------------------------------------------------


class _Watched(Scheduler):
    """Checks every wait of every training job against the bound that `Rules.bound` states."""

    worst = 0.0

    def watch(self, jobs: Sequence[Job]) -> _Watched:
        state, start = self.state, self.state.start
        saving = max([one.saving for one in jobs if hasattr(one, "saving")], default=0.0)

        def checked(gang: Gang, place: object, option: object) -> None:
            if hasattr(gang.job, "steps"):
                wait = state.now - gang.idle
                assert wait <= self.rules.bound(gang.ahead if gang.due else 0, saving), (gang.name, wait, gang.ahead)
                self.worst = max(self.worst, wait)
            start(gang, place, option)  # type: ignore[arg-type]

        state.start = checked  # type: ignore[method-assign]
        return self


SIZES = st.sampled_from(((Option(0, 1, 1.0),), (Option(0, 4, 2.0),), (Option(0, 8, 3.0),), ALL, ALL[-3:]))


@settings(max_examples=8)
@given(
    st.lists(st.tuples(SIZES, st.floats(1, 400), st.floats(0, 500), st.integers(0, 2)), min_size=2, max_size=20),
    st.sampled_from(("makespan", "speed")),
)
def test_nobody_waits_longer_than_the_bound(
    rows: list[tuple[tuple[Option, ...], float, float, int]], policy: str
) -> None:
    jobs = [job(f"j{n}", o, steps, arrives=at, priority=rank) for n, (o, steps, at, rank) in enumerate(rows)]
    rules = structs.replace(QUICK, policy=policy)
    result = simulate(TWO, jobs, _Watched(TWO, rules).watch(jobs))
    assert all(one.ended < math.inf for one in result.jobs.values())


def test_a_flood_of_higher_priorities_starves_nobody() -> None:
    """One job for the whole cluster, and an endless stream that comes before it and never leaves a block free."""
    whole, one = (Option(0, 8, 1.0),), (Option(0, 1, 1.0), Option(0, 2, 1.5))
    jobs = [job("low", whole, 120.0, priority=-1)]
    jobs += [job(f"high{n}", one, 40.0, arrives=7.0 * n, priority=5) for n in range(100)]
    scheduler = _Watched(TWO).watch(jobs)
    result = simulate(TWO, jobs, scheduler)
    assert result.jobs["low"].moves > 0 and result.jobs["low"].ended < 1000.0
    assert 200.0 <= scheduler.worst <= QUICK.bound(0, 2.0)


def test_without_patience_it_would_starve() -> None:
    """The test above can fail: with endless patience the same job waits until the stream ends."""
    whole, one = (Option(0, 8, 1.0),), (Option(0, 1, 1.0), Option(0, 2, 1.5))
    jobs = [job("low", whole, 120.0, priority=-1, arrives=1.0)]
    jobs += [job(f"high{n}", one, 40.0, arrives=7.0 * n, priority=5) for n in range(100)]
    result = simulate(TWO, jobs, Scheduler(TWO, structs.replace(QUICK, patience=1e6)))
    assert result.jobs["low"].gap > 600.0


def test_replicas_make_room_for_who_waited_too_long() -> None:
    """Replicas lie scattered over both machines; a job that needs a whole one gets it within its bound."""
    served = Serving("s", (Option(0, 1, 10.0),), ((0.0, 62.0), (100.0, 10.0)), 0.5, starting=4.0)
    lone = cluster(pool("new", 2, 4))
    scheduler = Scheduler(lone)
    told(scheduler, Event("submitted", 0.0, job=served), Event("tick", 0.0))
    replicas = scheduler.state.services["s"].replicas
    assert len(replicas) == 8
    for replica in [r for r in replicas if r.place is not None and r.place.first not in (0, 4)]:
        scheduler.state.stop(replica, "test")
        scheduler.apply(Event("stopped", 1.0, replica.name))
    scheduler.state.services["s"].job = structs.replace(served, requests=((0.0, 8.0),))
    scheduler.apply(Event("submitted", 1.0, job=job("large", (Option(0, 4, 1.0),), 10.0)))
    result = Result(lone)
    time, started = 1.0, -1.0
    while started < 0 and time < QUICK.bound(0, 2.0) + 20:
        time += 5.0
        for order in scheduler.apply(Event("tick", time)):
            result.note(Event("tick", time), ())
            if order.kind == "stop":
                scheduler.apply(Event("stopped", time, order.gang))
            elif order.gang == "large":
                started = time
    assert 0 < started <= QUICK.bound(0, 2.0)
