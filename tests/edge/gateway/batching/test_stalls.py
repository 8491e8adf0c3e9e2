"""A machine that stalls from time to time, as shared ones do: the effect on accepted and refused work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edge.gateway.batching.admission import Calibration
from edge.gateway.job import Job
from tests.edge.gateway.batching.simulated import Simulated, World
from tests.edge.gateway.batching.test_scheduler import offered


class Halting(Simulated):
    """Some of its batches take longer by a constant."""

    share = longer = 0.0

    def takes(self, jobs: Sequence[Job]) -> float:
        return super().takes(jobs) + (self.longer if self.rng.random() < self.share else 0.0)


@pytest.mark.parametrize(
    ("share", "longer", "within", "seconds"),
    [(0.0, 0.0, 0.25, 3.0), (0.05, 0.05, 0.1, 4.0), (0.002, 0.4, 0.1, 10.0)],
)
def test_stalls_cost_their_duration_and_little_more(
    share: float, longer: float, within: float, seconds: float
) -> None:
    world = World()
    runner = Halting(world, a=0.4e-3, b=5e-3, limit=32, noise=0.1)
    runner.share, runner.longer = share, longer
    capacity = 32 / (1.1 * (32 * runner.a + runner.b) + share * longer)
    taken, _ = offered(world, runner, 3 * capacity, seconds, within=within)
    world.go()
    good = [job for job in taken if job.error is None and job.notes["answered"] - job.arrived <= within]
    assert len(good) >= 0.92 * capacity * seconds
    took = [job.notes["answered"] - job.arrived for job in taken]
    assert np.percentile(took, 98) <= 1.2 * within


def test_a_factor_that_is_far_too_high_comes_down_within_seconds() -> None:
    calibration = Calibration()
    calibration.factor = 8.0
    for _ in range(150):
        calibration.observe(0.02, 0.02)
    assert calibration.factor < 3.1
