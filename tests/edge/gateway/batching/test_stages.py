"""Requests that are computed as several jobs, accepted or refused as a whole."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import pytest

from edge.gateway.batching.admission import Limits
from edge.gateway.batching.forecast import Stage, longest
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from tests.edge.gateway.batching.simulated import Simulated, World

ROOMY = Limits(rows=10_000, jobs=10_000)


class Line:
    """A request of several jobs, one after the other."""

    def __init__(self, world: World, runners: list[Simulated], within: float = inf, rows: int = 1) -> None:
        self.world, self.runners, self.job = world, runners, world.job(rows, within=within)
        self.left, self.ended, self.error = list(runners), 0.0, None
        stages = [Stage(r.model, r, rows, (i - 1,) if i else ()) for i, r in enumerate(runners)]
        self.end: Callable[[], None] = world.scheduler.accept(("line",), self.job, stages)
        self.next(None)

    def next(self, before: Job | None) -> None:
        if before is not None and before.error is not None:
            self.finish(before.error)
        elif not self.left:
            self.finish(None)
        else:
            runner, *self.left = self.left
            job = Job({"x": self.job.inputs["x"]}, self.job.rows, self.next, arrived=self.world.now,
                      deadline=self.job.deadline)  # fmt: skip
            job.accepted = True
            try:
                self.world.scheduler.submit(job, runner)
            except GatewayError as error:
                self.finish(error)

    def finish(self, error: BaseException | None) -> None:
        assert not self.ended
        self.ended, self.job.error, self.error = self.world.now, error, error  # type: ignore[assignment]
        self.end()


def test_the_longest_way() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0}
    ways = [Stage("a", None, 1, ()), Stage("c", None, 1, ()), Stage("b", None, 1, (0,)), Stage("a", None, 1, (1, 2))]
    assert longest(ways, lambda stage: seconds[stage.model]) == 5.0
    assert longest(ways[:3], lambda stage: seconds[stage.model]) == 4.0
    assert longest((), lambda stage: 1.0) == 0.0


def test_what_all_stages_cannot_do_in_time_is_refused_before_the_first() -> None:
    world = World(limits=ROOMY)
    runners = [Simulated(world, name, a=0, b=0.1) for name in "abc"]
    with pytest.raises(GatewayError, match="would be done in 300 ms, its deadline is in 250 ms") as caught:
        Line(world, runners, within=0.25)
    assert caught.value.status == 429 and caught.value.retry_after == pytest.approx(0.15)
    world.go()
    assert not any(runner.batches for runner in runners)
    line = Line(world, runners, within=0.4)
    world.go()
    assert line.error is None and line.ended == pytest.approx(0.3)
    with pytest.raises(GatewayError) as caught:
        Line(world, runners, within=0.0)
    assert caught.value.status == 504


def test_a_stage_whose_runner_is_not_known_takes_no_time() -> None:
    world = World(limits=ROOMY)
    end = world.scheduler.accept(("line",), world.job(within=1e-3), [Stage("a", None, 1, ())])
    assert world.scheduler.snapshot()["models"]["line"]["flying"] == 1
    end()
    assert world.scheduler.snapshot()["models"]["line"]["flying"] == 0


def test_full_queues_of_any_stage() -> None:
    world = World(limits=ROOMY, inline=0)
    first, last = Simulated(world, "a", b=0.1), Simulated(world, "b", b=0.1)
    world.scheduler.configure("b", Limits(rows=4))
    with pytest.raises(GatewayError, match="at most 4 rows") as caught:
        Line(world, [first, last], rows=5)
    assert caught.value.status == 400
    for _ in range(4):  # some are given to the worker, others wait
        world.scheduler.submit(world.job(), last)
        world.go(world.now)
    waits = world.scheduler.waiting()["b", "1"][1]
    assert 0 < waits < 4
    with pytest.raises(GatewayError, match="already wait for this model") as caught:
        Line(world, [first, last], rows=4 - waits + 1)
    assert caught.value.status == 429
    line = Line(world, [first, last], rows=4 - waits)
    world.scheduler.submit(world.job(4 - waits), last)  # now the queue is full, but the line was accepted
    world.go()
    assert line.error is None


def test_limits_of_the_whole() -> None:
    world = World(limits=ROOMY, inline=0)
    world.scheduler.configure("line", Limits(rows=8, concurrency=2, timeout=0.5))
    runner = Simulated(world, "a", b=0.2)
    lines = [Line(world, [runner, runner]) for _ in range(2)]
    with pytest.raises(GatewayError, match="2 requests of this model are in progress") as caught:
        Line(world, [runner, runner])
    assert caught.value.status == 429 and lines[0].job.deadline == 0.5
    world.go()
    assert [line.error for line in lines] == [None, None]
    with pytest.raises(GatewayError, match="would be done in"):
        Line(world, [runner] * 3)  # 600 ms
    assert world.scheduler.snapshot()["models"]["line"]["flying"] == 0


def test_accepted_requests_are_finished_when_the_server_shuts_down() -> None:
    world = World(limits=ROOMY, inline=0)
    first, last = Simulated(world, "a", b=0.1), Simulated(world, "b", b=0.1)
    line = Line(world, [first, last])
    world.scheduler._draining = True
    with pytest.raises(GatewayError, match="shutting down") as caught:
        Line(world, [first, last])
    assert caught.value.status == 503
    world.go()
    assert line.error is None and last.batches


def test_a_model_that_is_forgotten_in_between() -> None:
    """The account stays until the last request has ended."""
    world = World(limits=ROOMY, inline=0)
    line = Line(world, [Simulated(world, "a", b=0.1)] * 2)
    world.scheduler.forget("line")
    assert "line" in world.scheduler.snapshot()["models"]
    world.go()
    assert line.error is None
    world.scheduler.forget("line")
    assert "line" not in world.scheduler.snapshot()["models"]


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_three_times_too_much_work(noise: float) -> None:
    """Almost all that is accepted is done in time, and the machine is kept busy."""
    world, rng, lines = World(limits=ROOMY), random.Random(3), list[Line]()
    runners = [Simulated(world, name, a=a, noise=noise) for name, a in (("a", 2e-3), ("b", 5e-3))]
    refused = 0
    for _ in range(2000):
        world.go(world.now + rng.expovariate(3 / 7e-3))
        try:
            lines.append(Line(world, list(runners), within=0.15))
        except GatewayError as error:
            assert error.status == 429
            refused += 1
    busy, until = sum(r.busy for r in runners), world.now
    world.go()
    late = sum(line.error is not None for line in lines)
    assert refused > 900 and late < 0.1 * len(lines)
    assert busy > 0.8 * until
    share = world.scheduler.snapshot()["models"]["line"]
    assert (share["flying"], share["rows"], share["jobs"]) == (0, 0, 0)
