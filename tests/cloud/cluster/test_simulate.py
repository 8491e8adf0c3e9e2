"""The simulation against closed forms, the baselines, and the share of the makespan that is gained."""

from __future__ import annotations

import math
import random

import pytest

from cloud.cluster.baselines import Fifo, Static, sized
from cloud.cluster.jobs import Option, Serving
from cloud.cluster.prices import Ask, makespan_prices
from cloud.cluster.result import Outage
from cloud.cluster.scheduler import Scheduler
from cloud.cluster.simulate import simulate
from cloud.errors import ClusterError
from tests.cloud.cluster.world import cluster, job, options, pool

TWO = cluster(pool("new", 2, 4), pool("old", 2, 4))
ALL = options(TWO)
ONE = (Option(0, 4, 2.0),)


def test_one_job_takes_its_steps_and_its_start() -> None:
    result = simulate(TWO, [job("a", ONE, 100.0, arrives=7.0)], Scheduler(TWO))
    (span,) = result.spans
    assert (span.start, span.ready, span.end) == (7.0, 11.0, 61.0)
    assert result.makespan == 54.0 and result.mean == 54.0 and result.used == pytest.approx(4 * 54 / (16 * 61))


def test_a_lost_machine_costs_what_was_done_since_the_last_checkpoint() -> None:
    """45 s of work, 40 of them saved; started again on the other machine."""
    result = simulate(TWO, [job("a", ONE, 200.0)], Scheduler(TWO), outages=[Outage(0, 0, 49.0, 500.0)])
    assert [span.end for span in result.spans] == [49.0, 49.0 + 4.0 + (200.0 - 80.0) / 2.0]


def test_fifo_starts_in_order_and_backfilling_delays_nobody() -> None:
    whole, half = (Option(0, 8, 1.0),), (Option(0, 4, 1.0),)
    jobs = [
        job("first", half, 100.0), job("large", whole, 10.0, arrives=1.0),
        job("short", half, 50.0, arrives=2.0), job("long", half, 500.0, arrives=3.0),
    ]  # fmt: skip
    plain = simulate(TWO, jobs, Fifo(TWO)).jobs
    filled = simulate(TWO, jobs, Fifo(TWO, backfill=True)).jobs
    assert plain["large"].started == filled["large"].started == 104.0
    assert plain["short"].started == 118.0 and filled["short"].started == 2.0
    assert filled["long"].started == 118.0


def test_what_a_careful_user_asks_for() -> None:
    one = job("a", ALL, 1.0)
    assert [option.pool for option in sized(one, 0.5, 0.0)] == [0, 1] and len(sized(one, 0.5, 0.6)) == 1
    best = {o.pool: o.speed for o in ALL if o.size == 1}
    for option in sized(one, 0.5, 0.0):
        assert option.speed / option.size >= 0.5 * best[option.pool]
        larger = [o for o in ALL if o.pool == option.pool and o.size > option.size]
        assert all(o.speed / o.size < 0.5 * best[o.pool] for o in larger)


def test_static_parts() -> None:
    result = simulate(TWO, [job(f"j{n}", ALL, 50.0) for n in range(9)], Static(TWO, 2, accepts=0.0))
    assert {span.place.size for span in result.spans} == {2} and result.moves == 0
    with pytest.raises(ClusterError, match="a part of the cluster that it fits in"):
        simulate(TWO, [job("a", (Option(0, 8, 1.0),), 1.0)], Static(TWO, 4))


def test_the_baselines_keep_replicas_for_the_peak() -> None:
    served = Serving("s", (Option(0, 1, 10.0),), ((0.0, 5.0), (50.0, 30.0)), 0.5, period=100.0)
    result = simulate(TWO, [served, job("a", ONE, 500.0)], Fifo(TWO))
    assert sum(span.job == "s" for span in result.all()) == served.needed(30.0, 0.1)


def test_ours_is_faster_and_no_faster_than_the_bound() -> None:
    """Many small jobs that gain little from a second device, few large ones that gain much."""
    there = cluster(pool("new", 8, 4), pool("old", 8, 4))
    draw = random.Random(5)
    small, large = options(there, serial=0.5, slower=1.1), options(there, serial=0.02, slower=3.0)
    jobs = [job(f"s{n}", small, draw.uniform(20, 200), arrives=draw.uniform(0, 300)) for n in range(120)]
    jobs += [job(f"l{n}", large, draw.uniform(4000, 12000), arrives=draw.uniform(0, 300)) for n in range(4)]
    jobs.sort(key=lambda one: one.arrives)
    ours = simulate(there, jobs, Scheduler(there))
    fifo = min(simulate(there, jobs, Fifo(there, efficiency=e)).makespan for e in (0.5, 0.7, 0.9))
    static = min(simulate(there, jobs, Static(there, n)).makespan for n in (1, 2, 4, 8))
    assert fifo >= 1.3 * ours.makespan and static >= 1.3 * ours.makespan
    bound = makespan_prices([Ask(n, one.options, one.steps) for n, one in enumerate(jobs)], (32, 32)).value
    assert bound <= ours.makespan < math.inf
    wrong = simulate(there, jobs, Scheduler(there), error=0.2, seed=3)
    assert wrong.makespan != ours.makespan and wrong.makespan < 1.5 * ours.makespan
