"""A queue may close and open again while its jobs are being answered, and a job may be split into pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.gateway.batching.cost import Cost
from edge.gateway.batching.runner import ModelRunner
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.ports import ports_of
from lite_runtime import load
from tests.edge.gateway.batching.simulated import Simulated, World
from tests.edge.gateway.live import simple_string


def test_requests_made_while_answers_are_delivered_are_answered() -> None:
    """A batch ends, what waited is small and is computed at once, which closes the queue; then the first client, on
    being answered, asks again for much."""
    world = World(inline=200e-6)
    runner = Simulated(world, a=100e-6)
    first, small, last = world.job(5), world.job(1), world.job(5)

    def again(job: Job) -> None:
        world.finish(job)
        world.scheduler.submit(last, runner)

    first.finish = again
    world.scheduler.submit(first, runner)
    world.at(300e-6, world.scheduler.submit, small, runner)
    world.go()
    assert {*world.finished} == {small, first, last}
    assert not world.faults
    assert world.scheduler.snapshot()["models"]["m"]["flying"] == 0


def test_a_job_in_pieces_fails_with_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first piece's error, though a later one can be computed; others in the same batches are."""
    bundle = simple_string(tmp_path / "m.mslite")
    model = load(bundle)
    runner = ModelRunner(model, "predict", ports_of(model), {"INPUT0": (16,), "INPUT1": (16,)}, name="m", version="1")
    runner.warm()
    monkeypatch.setattr(Cost, "cover", lambda self, rows: (1,) * rows)
    good, bad = (np.full((rows, 16), "7", object) for rows in (1, 3))
    bad[0, 2] = "seven"
    jobs = [Job({"INPUT0": x, "INPUT1": x}, len(x), lambda job: None, arrived=0.0) for x in (bad, good)]
    runner.run(jobs)
    assert isinstance(jobs[0].error, GatewayError) and jobs[0].error.status == 400, jobs[0].error
    assert jobs[1].error is None and jobs[1].outputs is not None
    assert set(jobs[1].outputs["OUTPUT0"].ravel()) == {"14"}
