"""A simulation with its own clock: an event loop, workers and models that look real to the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np

from edge.gateway.batching.admission import Limits
from edge.gateway.batching.cost import Cost
from edge.gateway.batching.executor import Batch
from edge.gateway.batching.scheduler import Scheduler
from edge.gateway.job import Job


class World:
    """Time, what is to happen when, and a scheduler in it. Everything takes no time but what runners compute."""

    def __init__(self, *, threads: int = 1, inline: float = 200e-6, limits: Limits | None = None) -> None:
        self.now, self.number = 0.0, 0
        self.events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self.finished: list[Job] = []
        self.faults: list[dict[str, Any]] = []
        self.scheduler = Scheduler(
            self, threads=threads, inline=inline, limits=limits, executor=self._workers, clock=lambda: self.now
        )  # type: ignore[arg-type]

    def _workers(self, workers: int, tell: Callable[[Batch], None]) -> Workers:
        return Workers(self, workers, tell)

    def at(self, when: float, call: Callable[..., Any], *args: Any) -> None:
        self.number += 1
        heappush(self.events, (max(when, self.now), self.number, call, args))

    def call_soon(self, call: Callable[..., Any], *args: Any) -> None:
        self.at(self.now, call, *args)

    call_soon_threadsafe = call_soon

    def call_later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + seconds, call, *args)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def go(self, until: float = inf) -> None:
        """Let time pass until nothing is left to happen."""
        while self.events and self.events[0][0] <= until:
            when, _, call, args = heappop(self.events)
            self.now = max(self.now, when)
            call(*args)

    def job(self, rows: int = 1, *, priority: int = 0, within: float = inf, value: float = 0.0) -> Job:
        inputs = {"x": np.full((rows, 1), value, np.float32)}
        return Job(inputs, rows, self.finish, arrived=self.now, priority=priority, deadline=self.now + within)

    def finish(self, job: Job) -> None:
        assert "answered" not in job.notes
        job.notes["answered"] = self.now
        self.finished.append(job)


class Workers:
    """Each computes what it is given in turn."""

    def __init__(self, world: World, workers: int, tell: Callable[[Batch], None]) -> None:
        self.world, self.workers, self.tell = world, workers, tell
        self.given: list[list[Batch]] = [[] for _ in range(workers)]

    def give(self, batch: Batch) -> None:
        given = self.given[batch.worker]
        given.append(batch)
        if len(given) == 1:
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        runner = batch.runner
        assert isinstance(runner, Simulated)
        assert not runner.computing, "two batches of one runner at a time"
        runner.computing = True
        batch.began = self.world.now
        jobs = [job for job in batch.jobs if not job.cancelled]
        self.world.call_later(runner.takes(jobs), self._end, batch, jobs)

    def _end(self, batch: Batch, jobs: list[Job]) -> None:
        runner = batch.runner
        assert isinstance(runner, Simulated)
        runner.computing = False
        runner.answer(jobs, batch.began, self.world.now)
        batch.ended = self.world.now
        given = self.given[batch.worker]
        assert given.pop(0) is batch
        self.tell(batch)
        if given:
            self._begin(given[0])

    def close(self) -> None:
        pass


class Simulated:
    """A model that takes a·n + b seconds for a batch of n rows, and answers with twice what it was asked."""

    def __init__(
        self, world: World, model: str = "m", *, a: float = 1e-3, b: float = 0.0, limit: int = 64, noise: float = 0.0
    ) -> None:
        self.key, self.model, self.limit, self.cost = f"{model}/1/predict/x", model, limit, Cost()
        self.world, self.a, self.b, self.noise = world, a, b, noise
        self.rng = np.random.default_rng(0)
        self.computing = False
        self.batches: list[list[Job]] = []
        self.busy = 0.0
        size = 1
        while size <= limit:
            self.cost.observe(size, a * size + b)
            size *= 2

    def takes(self, jobs: Sequence[Job]) -> float:
        if not jobs:
            return 0.0
        sizes = self.cost.cover(sum(job.rows for job in jobs))
        times = [(self.a * size + self.b) * (1 + self.noise * self.rng.exponential()) for size in sizes]
        for size, seconds in zip(sizes, times, strict=True):
            self.cost.observe(size, seconds)
        self.busy += sum(times)
        return sum(times)

    def answer(self, jobs: Sequence[Job], began: float, ended: float) -> None:
        if jobs:
            self.batches.append(list(jobs))
        for job in jobs:
            job.begun, job.computed, job.done = began, ended, ended
            job.batch = sum(job.rows for job in jobs)
            if np.isnan(job.inputs["x"]).any():
                job.error = ValueError("not a number")
            else:
                job.outputs = {"y": 2 * job.inputs["x"]}

    def run(self, jobs: Sequence[Job]) -> None:
        began = self.world.now
        self.world.now += self.takes(jobs)
        self.answer(jobs, began, self.world.now)
