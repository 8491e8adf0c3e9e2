"""The scheduler with real threads, a real event loop and a real model."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from converter import convert
from edge.gateway.batching.admission import Limits
from edge.gateway.batching.executor import Threads
from edge.gateway.batching.runner import ModelRunner
from edge.gateway.batching.scheduler import Scheduler
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.ports import ports_of
from lite_runtime import Model, load

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
wide (float[n, 256] x) => (float[n, 256] y) <float[256, 256] w> { h = MatMul(x, w)  y = Tanh(h) }"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("models") / "wide.mslite"
    wide, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(3)
    weight = (rng.standard_normal((256, 256)) / 16).astype(np.float32)
    wide.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(wide, path.with_suffix(".onnx"))
    convert(path.with_suffix(".onnx"), output=path)
    return load(path)


def runner_of(model: Model, name: str) -> ModelRunner:
    return ModelRunner(model, "predict", ports_of(model), {"x": (256,)}, name=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("inline", [0.0, 200e-6])
def test_every_answer_is_right(model: Model, threads: int, inline: float) -> None:
    interval = sys.getswitchinterval()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        scheduler = Scheduler(loop, threads=threads, inline=inline)
        runners = [runner_of(model, name) for name in "ab"]
        runners[0].warm()  # the other one grows while it serves

        async def client(number: int) -> None:
            rng = np.random.default_rng(number)
            for _ in range(20):
                rows = int(rng.integers(1, 4))
                x, answered = rng.standard_normal((rows, 256)).astype(np.float32), loop.create_future()
                job = Job({"x": x}, rows, answered.set_result, arrived=time.perf_counter())
                scheduler.submit(job, runners[number % 2])
                if rng.random() < 0.1:
                    scheduler.cancel(job)
                    continue
                assert await answered is job
                assert job.error is None and job.outputs is not None
                np.testing.assert_allclose(job.outputs["y"], model.run({"x": x})["y"], rtol=1e-4, atol=1e-5)

        await asyncio.gather(*(client(number) for number in range(16)))
        assert await scheduler.drain(300.0)
        snapshot = scheduler.snapshot()
        assert snapshot["workers"] == [[]] * threads and snapshot["draining"]
        assert all(model["flying"] == model["rows"] == 0 for model in snapshot["models"].values())
        scheduler.close()

    asyncio.run(serve())
    assert sys.getswitchinterval() == interval


def test_a_runner_that_raises_is_an_error_of_its_jobs(model: Model) -> None:
    class Broken(ModelRunner):
        def run(self, jobs: object) -> None:
            raise ZeroDivisionError("bug")

    async def serve() -> Job:
        loop = asyncio.get_running_loop()
        scheduler, answered = Scheduler(loop), loop.create_future()
        job = Job({"x": np.zeros((1, 256), np.float32)}, 1, answered.set_result, arrived=time.perf_counter())
        scheduler.submit(job, Broken(model, "predict", ports_of(model), {"x": (256,)}))
        await answered
        scheduler.close()
        return job

    assert isinstance(asyncio.run(serve()).error, ZeroDivisionError)


def test_refused_while_the_worker_computes_it(model: Model) -> None:
    async def serve() -> list[int]:
        loop = asyncio.get_running_loop()
        scheduler, runner = Scheduler(loop, inline=0.0, limits=Limits(rows=2)), runner_of(model, "a")
        statuses, answers = [], []
        for _ in range(4):
            answers.append(loop.create_future())
            x = np.zeros((1, 256), np.float32)
            try:
                scheduler.submit(Job({"x": x}, 1, answers[-1].set_result, arrived=time.perf_counter()), runner)
            except GatewayError as error:
                statuses.append(error.status)
                answers.pop()
        await asyncio.gather(*answers)
        scheduler.close()
        return statuses

    assert asyncio.run(serve()) == [429, 429]


def test_the_switch_interval_is_restored_exactly() -> None:
    """Python cuts the interval to whole microseconds, and 0.000199 s is a little less than 199 of them."""
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.0001995)
        interval = sys.getswitchinterval()
        for _ in range(3):
            Threads(1, lambda batch: None).close()
        assert sys.getswitchinterval() == interval
    finally:
        sys.setswitchinterval(before + 5e-7)
