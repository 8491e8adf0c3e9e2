"""The scheduler in a simulation: which jobs run when, which are refused, and the effect on other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.batching.admission import Limits
from edge.gateway.batching.queue import IDLE
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from tests.edge.gateway.batching.simulated import Simulated, World


def offered(
    world: World, runner: Simulated, rate: float, seconds: float, *, within: float = inf, rows: int = 1, seed: int = 1
) -> tuple[list[Job], list[GatewayError]]:
    """Poisson arrivals; what was taken on, and what was refused."""
    taken: list[Job] = []
    refused: list[GatewayError] = []
    rng = np.random.default_rng(seed)

    def ask() -> None:
        job = world.job(rows, within=within, value=rng.random())
        try:
            world.scheduler.submit(job, runner)
            taken.append(job)
        except GatewayError as error:
            refused.append(error)

    at = 0.0
    while (at := at + rng.exponential(1 / rate)) < seconds:
        world.at(at, ask)
    return taken, refused


def closed(world: World, runner: Simulated, clients: int, until: float) -> Callable[[], int]:
    """Clients that ask again as soon as they are answered; how many answers there were."""
    count = 0

    def ask() -> None:
        job = world.job()
        job.finish = answered
        world.scheduler.submit(job, runner)

    def answered(job: Job) -> None:
        nonlocal count
        assert job.error is None
        count += 1
        if world.now < until:
            world.call_soon(ask)

    for _ in range(clients):
        world.at(0.0, ask)
    return lambda: count


def test_a_lone_small_job_is_finished_before_submit_returns() -> None:
    world = World()
    runner = Simulated(world, a=100e-6)
    job = world.job(value=3.0)
    world.scheduler.submit(job, runner)
    assert world.finished == [job]
    assert job.outputs is not None and job.outputs["y"] == 6.0
    assert world.scheduler.snapshot()["models"]["m"]["flying"] == 0


def test_requests_of_one_turn_of_the_event_loop_are_one_batch_if_batches_help() -> None:
    world = World()
    runner = Simulated(world, a=1e-6, b=100e-6)
    jobs = [world.job(value=i) for i in range(5)]
    for job in jobs:
        world.scheduler.submit(job, runner)
    assert not world.finished
    world.go()
    assert runner.batches == [jobs]
    assert [job.outputs["y"][0, 0] for job in jobs if job.outputs] == [0, 2, 4, 6, 8]


def test_jobs_fill_the_next_batch_while_one_is_computed() -> None:
    world = World()
    runner = Simulated(world, a=1e-6, b=10e-3)
    world.scheduler.submit(world.job(), runner)
    for i in range(20):
        world.at(1e-3 + 1e-4 * i, lambda: world.scheduler.submit(world.job(), runner))
    world.go()
    assert [len(batch) for batch in runner.batches] == [1, 20]


def test_batches_if_they_are_faster_and_single_rows_if_not() -> None:
    world = World(inline=0.0)
    weights, work = Simulated(world, "weights", a=10e-6, b=1e-3), Simulated(world, "work", a=1e-3)
    for runner in (weights, work):
        runner.batches.clear()
        answers = closed(world, runner, 64, until=world.now + 1.0)
        world.go()
        world.now += 1.0
        ideal = {"weights": 64 / (64 * 10e-6 + 1e-3), "work": 1000.0}[runner.model]
        assert answers() >= 0.8 * ideal
    assert np.mean([len(batch) for batch in work.batches]) < 10 < np.mean([len(batch) for batch in weights.batches])


@pytest.mark.parametrize(("noise", "kept"), [(0.0, 0.99), (0.5, 0.95)])
@pytest.mark.parametrize(("a", "b"), [(10e-3, 0.0), (1e-3, 20e-3)])
def test_three_times_too_much_work(a: float, b: float, noise: float, kept: float) -> None:
    """Nine tenths of what the model can do is done in time; who is refused is refused at once, and told when to come
    back; hardly anybody is taken on and then left waiting."""
    seconds = 10.0
    world = World()
    runner = Simulated(world, a=a, b=b, noise=noise)
    capacity = 1 / (runner.cost.row or 1) / (1 + noise)
    within = 0.4
    taken, refused = offered(world, runner, 3 * capacity, seconds, within=within)
    world.go()
    good = [job for job in taken if job.error is None and job.notes["answered"] <= job.arrived + within]
    assert len(good) >= 0.9 * seconds * capacity
    assert len(good) >= kept * len(taken)
    assert len(refused) > len(taken)
    assert {error.status for error in refused} == {429}
    assert all(error.retry_after is not None and 0 < error.retry_after < 1 for error in refused)
    assert world.scheduler.snapshot()["models"]["m"]["flying"] == 0


def test_bounded_queue() -> None:
    world = World(limits=Limits(rows=10, jobs=3))
    runner = Simulated(world, a=1.0)
    submit = world.scheduler.submit
    assert world.scheduler.full("m") is None
    submit(world.job(4), runner)
    submit(world.job(6), runner)
    full = world.scheduler.full("m")
    assert full is not None and full.status == 429 and world.scheduler.full("another") is None
    for rows, status in ((1, 429), (11, 400)):
        with pytest.raises(GatewayError) as found:
            submit(world.job(rows), runner)
        assert found.value.status == status
    assert world.scheduler.snapshot()["models"]["m"]["refused"] == {429: 2, 400: 1}
    world.go()
    assert len(world.finished) == 2


def test_concurrency() -> None:
    world = World()
    runner = Simulated(world, a=1.0)
    world.scheduler.configure("m", Limits(concurrency=2))
    for _ in range(2):
        world.scheduler.submit(world.job(), runner)
    world.go(until=0.5)
    with pytest.raises(GatewayError, match="2 requests") as found:
        world.scheduler.submit(world.job(), runner)
    assert found.value.status == 429
    world.go()
    world.scheduler.submit(world.job(), runner)


def test_two_models_share_by_seconds_not_by_requests() -> None:
    world = World()
    short, long = Simulated(world, "short", a=1e-3), Simulated(world, "long", a=10e-3)
    for runner in (short, long):
        closed(world, runner, 32, until=10.0)
    world.go(until=10.0)
    assert short.busy + long.busy > 9.5
    assert 0.8 < short.busy / long.busy < 1.25


def test_weights() -> None:
    world = World()
    light, heavy = Simulated(world, "light", a=2e-3), Simulated(world, "heavy", a=2e-3)
    world.scheduler.configure("heavy", Limits(weight=3.0))
    for runner in (light, heavy):
        closed(world, runner, 32, until=10.0)
    world.go(until=10.0)
    assert 2.6 < heavy.busy / light.busy < 3.4


def test_an_idle_model_gains_no_credit() -> None:
    world = World()
    first, second = Simulated(world, "first", a=2e-3), Simulated(world, "second", a=2e-3)
    closed(world, first, 8, until=10.0)
    world.go(until=5.0)
    before = first.busy
    closed(world, second, 8, until=10.0)
    world.go(until=6.0)
    assert 0.4 < first.busy - before < 0.6


def test_deadlines_that_cannot_be_met_do_not_use_all_capacity() -> None:
    world = World(limits=Limits(timeout=30.0))
    greedy, patient = Simulated(world, "greedy", a=10e-3), Simulated(world, "patient", a=10e-3)
    offered(world, greedy, 300.0, 5.0, within=0.08)
    closed(world, patient, 16, until=5.0)
    world.go(until=5.0)
    assert patient.busy > 0.4 * 5.0


def test_priorities_and_deadlines() -> None:
    world = World()
    runner = Simulated(world, a=10e-3)
    world.scheduler.submit(world.job(), runner)
    world.scheduler.submit(world.job(), runner)  # ready for the worker
    world.go(until=1e-3)
    late, soon, low, high = (
        world.job(within=10.0),
        world.job(within=1.0),
        world.job(priority=200, within=0.5),
        world.job(priority=1),
    )
    for job in (late, soon, low, high):
        world.scheduler.submit(job, runner)
    world.go()
    assert world.finished[2:] == [high, soon, late, low]


def test_idle_work_waits_for_other_models_too() -> None:
    world = World()
    runner, shadow = Simulated(world, a=10e-3), Simulated(world, "shadow", a=10e-3)
    copy = world.job(priority=IDLE)
    world.scheduler.submit(copy, shadow)
    for _ in range(10):
        world.scheduler.submit(world.job(), runner)
    world.go()
    assert world.finished[-1] is copy


def test_expired_while_waiting() -> None:
    world = World()
    runner = Simulated(world, a=1e-3)
    runner.a = 1.0  # a thousand times what was ever seen
    world.scheduler.submit(world.job(), runner)
    world.scheduler.submit(world.job(), runner)
    world.go(until=1e-4)
    job = world.job(within=0.1)
    world.scheduler.submit(job, runner)
    world.go(until=0.2)
    assert world.finished == [job]
    assert isinstance(job.error, GatewayError) and job.error.status == 504
    assert job.notes["answered"] <= 0.13
    world.go()
    with pytest.raises(GatewayError) as found:
        world.scheduler.submit(world.job(within=-1.0), runner)
    assert found.value.status == 504


def test_cancelled() -> None:
    world = World()
    runner = Simulated(world, a=10e-3)
    jobs = [world.job() for _ in range(6)]
    for job in jobs:
        world.scheduler.submit(job, runner)
    world.go(until=1e-3)
    for job in (jobs[0], jobs[1], jobs[3]):  # computed, ready for the worker, waiting
        world.scheduler.cancel(job)
        world.scheduler.cancel(job)
    world.go()
    assert world.finished == [jobs[2], jobs[4], jobs[5]]
    assert [batch for batch in runner.batches if jobs[1] in batch or jobs[3] in batch] == []
    assert world.scheduler.snapshot()["models"]["m"] | {"rows": 0, "jobs": 0, "flying": 0} == (
        world.scheduler.snapshot()["models"]["m"]
    )


def test_a_callback_that_raises_does_not_affect_other_jobs() -> None:
    world = World()
    runner = Simulated(world, a=10e-3)
    jobs = [world.job() for _ in range(3)]

    def broken(job: Job) -> None:
        raise KeyError("gone")

    jobs[0].finish = broken
    for job in jobs:
        world.scheduler.submit(job, runner)
    world.go()
    assert world.finished == jobs[1:]
    assert len(world.faults) == 1


def test_a_model_of_unknown_cost_is_tried() -> None:
    world = World()
    runner = Simulated(world, a=1e-5, limit=0)
    assert runner.cost.predict(1) is None
    job = world.job(within=1e-3)
    world.scheduler.submit(job, runner)
    world.go()
    assert world.finished == [job]


def test_drain() -> None:
    async def drained(work: float) -> tuple[bool, World, list[Job]]:
        world = World()
        runner = Simulated(world, a=work)
        jobs = [world.job() for _ in range(5)]
        for job in jobs:
            world.scheduler.submit(job, runner)
        task = asyncio.ensure_future(world.scheduler.drain(0.05))
        await asyncio.sleep(0)
        with pytest.raises(GatewayError) as found:
            world.scheduler.submit(world.job(), runner)
        full = world.scheduler.full("never seen")
        assert found.value.status == 503 and full is not None and full.status == 503
        world.go(until=1.0)
        return await task, world, jobs

    clean, world, jobs = asyncio.run(drained(1e-2))
    assert clean and world.finished == jobs and all(job.error is None for job in jobs)
    clean, world, jobs = asyncio.run(drained(5.0))
    assert not clean
    assert [job.error.status for job in world.finished if isinstance(job.error, GatewayError)] == [503] * 4
    world.go()
    assert len(world.finished) == 5


@given(
    st.lists(
        st.tuples(
            st.floats(0, 0.05),
            st.integers(1, 9),
            st.integers(0, 3),
            st.sampled_from([0.004, 0.02, 1.0]),
            st.booleans(),
            st.integers(0, 1),
        ),
        max_size=40,
    ),
    st.integers(1, 3),
    st.sampled_from([0.0, 200e-6]),
)
def test_everybody_is_answered_once_and_rightly(
    asked: list[tuple[float, int, int, float, bool, int]], threads: int, inline: float
) -> None:
    world = World(threads=threads, inline=inline, limits=Limits(rows=40))
    runners = [
        Simulated(world, "one", a=1e-4, b=1e-3, limit=8, noise=0.3), Simulated(world, "two", a=150e-6, limit=4)
    ]  # fmt: skip
    jobs: list[Job] = []
    cancelled: list[Job] = []
    refused: list[Job] = []

    def ask(rows: int, priority: int, within: float, leaves: bool, which: int) -> None:
        job = world.job(rows, priority=priority, within=within, value=len(jobs) + 1.0)
        jobs.append(job)
        try:
            world.scheduler.submit(job, runners[which])
        except GatewayError:
            refused.append(job)
            return
        if leaves and job not in world.finished:
            cancelled.append(job)
            world.call_later(1e-3, lambda: job in world.finished or world.scheduler.cancel(job))

    for when, *what in asked:
        world.at(when, ask, *what)
    world.go()
    assert not world.faults
    left = [job for job in jobs if job not in refused and job not in world.finished]
    assert all(job in cancelled and job.cancelled for job in left)
    for job in world.finished:
        if job.error is None:
            assert job.outputs is not None and np.array_equal(job.outputs["y"], 2 * job.inputs["x"])
        else:
            assert isinstance(job.error, GatewayError) and job.error.status == 504
    for model in world.scheduler.snapshot()["models"].values():
        assert (model["rows"], model["jobs"], model["flying"]) == (0, 0, 0)
    assert not world.scheduler._lanes and not world.scheduler._waiting


def test_figures_are_taken_while_lanes_come_and_go() -> None:
    """Any thread may ask: here a lane goes while another is looked at."""
    world = World()

    class Looked(Simulated):
        """A model whose lanes change whenever its name is read."""

        meddle: Callable[[], None] = staticmethod(lambda: None)

        @property
        def key(self) -> str:
            self.meddle()
            return "first/1"

        @key.setter
        def key(self, value: str) -> None:
            pass

    first, others = Looked(world, model="first"), [Simulated(world, model=f"m{number}") for number in range(2)]
    jobs = [world.job() for _ in range(3)]
    for job, runner in zip(jobs, [first, *others], strict=True):
        world.scheduler.submit(job, runner)
    first.meddle = lambda: world.scheduler.cancel(jobs[1])
    assert world.scheduler.waiting()["first", "1"] == (1, 1)
    assert len(world.scheduler.waiting()) == 2
