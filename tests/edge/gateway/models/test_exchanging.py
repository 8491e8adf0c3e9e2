"""Models that are hot-swapped during requests, with the real runners and scheduler."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import perf_counter
from typing import Any

import numpy as np

from edge.gateway.batching.runner import ModelRunner
from edge.gateway.batching.scheduler import Scheduler
from edge.gateway.job import Job
from edge.gateway.models.loading import Loader
from edge.gateway.models.repository import Options, Repository
from edge.gateway.models.served import Served, Shapes
from edge.gateway.sources.listing import Folder


def runner_of(served: Served, signature: str, shapes: Shapes, personal: bool) -> ModelRunner:
    return ModelRunner(served.model, signature, served.ports[signature], shapes, name=served.name, limit=8)


def warm(served: Served) -> None:
    shapes = served.fixed_shapes("predict")
    assert shapes is not None
    runner = served.runner("predict", shapes)
    assert isinstance(runner, ModelRunner)
    runner.warm(0.05)


def test_every_answer_is_from_the_requested_version(place: Any, make: Any) -> None:
    """Version 1 is exchanged again and again for one with another factor, version 2 is its canary and shadow."""
    place.put("m/1/model.mslite", make(1.0))
    place.put("m/2/model.mslite", make(100.0))
    settings = 'labels = {stable = 1, canary = 2}\nsplit = {stable = 3, canary = 1}\n'
    place.put("m/config.toml", settings + 'shadow = {version = "canary", fraction = 0.5}')
    factors: dict[Served, float] = {}
    answers: Counter[float] = Counter()

    def prepare(served: Served) -> None:
        warm(served)
        x = np.ones((1, 4), np.float32)
        factors[served] = float(served.model.run({"x": x})["y"][0, 0])

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop)
        repository = Repository([Folder(place.root)], Loader(runner_of, prepare), Options())
        await repository.start()
        done, gone = False, []

        async def client(number: int) -> None:
            rng = np.random.default_rng(number)
            while not done:
                x = rng.standard_normal((int(rng.integers(1, 5)), 4)).astype(np.float32)
                served = repository.route("m")
                now = perf_counter()
                served.acquire(now)
                finished = loop.create_future()
                job = Job({"x": x}, len(x), finished.set_result, arrived=now)
                scheduler.submit(job, served.runner_for(job))
                await finished
                if served.shadow is not None:
                    served.shadow.after(job, scheduler.submit)
                served.release()
                assert job.error is None and job.outputs is not None
                assert np.array_equal(job.outputs["y"], x * np.float32(factors[served]))
                answers[factors[served]] += 1
                await asyncio.sleep(0)

        clients = [asyncio.create_task(client(i)) for i in range(6)]
        for factor in range(2, 12):
            before = repository.route("m", "stable")
            place.put("m/1/model.mslite", make(float(factor)))
            await repository.load("m")
            gone.append(before)
            while not (answers[float(factor)] and answers[100.0]):
                await asyncio.sleep(0.001)
        shadow = repository.route("m", "stable").shadow
        done = True
        await asyncio.gather(*clients)
        await scheduler.drain(300.0)
        assert shadow is not None
        figures = shadow.figures
        assert figures.failed == 0 and figures.compared + figures.dropped > 0
        assert all(served.closed for served in gone)
        assert [served.in_flight for served in repository.served()] == [0, 0]
        await repository.stop()
        scheduler.close()

    asyncio.run(asyncio.wait_for(scenario(), 300))
    assert set(answers) >= {2.0, 5.0, 11.0, 100.0}
    stable = sum(count for factor, count in answers.items() if factor != 100.0)
    assert abs(stable - 3 * answers[100.0]) <= 12 * 11  # a new split after every swap, each at most 11 off
