"""Prediction of when a job would be done, from the waiting and the running work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge.gateway.batching.executor import Batch
from edge.gateway.batching.fairness import Lane, Share
from edge.gateway.batching.runner import Runner
from edge.gateway.job import Job

__all__ = ["busy", "forecast", "most"]

QUANTUM, BACKLOG = 1e-3, 8
"""Seconds of work that are given away at a time, where the best batch is not longer; or an eighth of the rows that
wait, where these are more. Handing over costs 50 µs, more on a busy machine; answers to all of it wait for the last."""


def most(runner: Runner, waiting: int) -> int:
    """Rows of a runner to give away at a time, when so many wait."""
    row = runner.cost.row
    return min(runner.limit, max(runner.cost.best, int(QUANTUM / row), waiting // BACKLOG) if row else runner.limit)


def busy(given: Sequence[Batch], now: float) -> float:
    """Seconds until a worker is through with the batches it has."""
    if not given:
        return 0.0
    first = given[0]
    done = min(now - first.began, first.predicted) if first.began else 0.0
    return sum([batch.predicted for batch in given]) - done


def forecast(
    job: Job,
    runner: Runner,
    share: Share,
    lanes: Mapping[Runner, Lane],
    given: Sequence[Sequence[Batch]],
    now: float,
) -> tuple[float, float]:
    """Seconds until the job would be done, and until half of what waits for its model is and a worker is free.

    The rows before it make so many whole batches; then it is answered with the rest of its own, which will be about as
    large as the latest was. Each takes as many times longer as there are models to share the workers with, by weight.
    given: batches by worker. Both are 0 where the cost is not known, and as predicted: not corrected by calibration.
    """
    cost = runner.cost
    row, alone = cost.row, cost.predict(job.rows)
    if row is None or alone is None:
        return 0.0, 0.0
    lane = lanes.get(runner)
    rivals = {id(lane.share): lane.share.limits.weight for lane in lanes.values()}
    rivals[id(share)] = share.limits.weight
    slower = max(1.0, sum(rivals.values()) / (share.limits.weight * len(given)))
    if lane is not None and lane.computing:
        free = busy(given[lane.worker], now)
    else:
        free = min([busy(batches, now) for batches in given])
    half = max(free, 0.5 * share.load.rows * row * slower)
    if lane is None:
        return free + alone, half
    largest = most(runner, lane.queue.rows)
    batches, before = divmod(lane.queue.ahead(job) + job.rows - 1, largest)
    own = cost.predict(max(before + 1, min(lane.latest, largest))) or alone
    return free + (batches * (cost.predict(largest) or alone) + own) * slower, half
