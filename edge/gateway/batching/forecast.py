"""Prediction of when a job would be done, from the waiting and the running work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from edge.gateway.batching.executor import Batch
from edge.gateway.batching.fairness import Lane, Share
from edge.gateway.batching.runner import Runner
from edge.gateway.job import Job

__all__ = ["Stage", "busy", "forecast", "longest", "most"]

QUANTUM, BACKLOG = 1e-3, 8
"""A worker is given so many seconds of work at a time, the best batch if that takes longer, or 1/`BACKLOG` of the
waiting rows if these are more. Handing over costs 50 µs, more on a busy machine; on the other hand, all jobs of a batch
are answered only when its last row is computed."""


class Stage(NamedTuple):
    """A job that a request will need. runner: None if it is not known yet; after: indices of the stages before it."""

    model: str
    runner: Runner | None
    rows: int
    after: tuple[int, ...]


def longest(stages: Sequence[Stage], seconds: Callable[[Stage], float]) -> float:
    """Seconds until all stages are done, each after those that it needs: the longest way through them."""
    ends: list[float] = []
    for stage in stages:
        ends.append(max([ends[i] for i in stage.after], default=0.0) + seconds(stage))
    return max(ends, default=0.0)


def most(runner: Runner, waiting: int) -> int:
    """The number of rows to give to a worker at a time if so many rows wait for the runner."""
    row = runner.cost.row
    return min(runner.limit, max(runner.cost.best, int(QUANTUM / row), waiting // BACKLOG) if row else runner.limit)


def busy(given: Sequence[Batch], now: float) -> float:
    """Seconds until a worker has computed all batches that it was given."""
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
    """Seconds until the job would be done, and seconds until half of the work waiting for its model is done and a
    worker is free.

    The rows ahead of the job fill a number of whole batches; the job is then computed in the next batch, which is
    assumed to be about as large as the latest one. Every batch takes longer by the model's inverse share of the
    workers, by weight. given: batches by worker. Both results are 0 if the cost is unknown. They are plain predictions,
    without the correction by `Calibration`.
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
