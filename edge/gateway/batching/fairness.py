"""Fairness between models: the service that each has received, and which one is next."""

from __future__ import annotations

from collections import Counter
from typing import Any

from edge.gateway.batching.admission import Calibration, Limits, Load
from edge.gateway.batching.queue import IDLE, Queue, rank
from edge.gateway.batching.runner import Runner

__all__ = ["Lane", "Share", "turn"]

NEAR = 5e-3
"""A batch counts as urgent if it must begin within so many seconds to meet its deadline."""
LEAD = 0.1
"""A model with urgent requests goes first only if it has received at most so many seconds of service more than the
least served one: otherwise a model whose deadlines cannot be met would take all the time."""


class Share:
    """The accounting for one model."""

    __slots__ = ("calibration", "computing", "lanes", "limits", "load", "model", "refused", "seconds", "served")

    def __init__(self, model: str, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.load, self.calibration = Load(), Calibration()
        self.served = 0.0
        """Virtual time: seconds of service divided by the weight. After a pause, a model continues at the virtual time
        of the others."""
        self.seconds = 0.0
        """Total seconds of service."""
        self.lanes, self.computing = 0, 0
        """Number of runners with work, and of batches given to workers."""
        self.refused: Counter[int] = Counter()
        """Refused and expired requests by HTTP status."""

    def figures(self) -> dict[str, Any]:
        """The account as plain data."""
        load, limits = self.load, self.limits
        return {
            "rows": load.rows,
            "jobs": load.jobs,
            "flying": load.flying,
            "seconds": self.seconds,
            "factor": self.calibration.factor,
            "refused": dict(self.refused),
            "limits": {"rows": limits.rows, "jobs": limits.jobs, "timeout": limits.timeout},
        }

    def charge(self, seconds: float) -> None:
        """Add seconds of service; negative to correct a prediction that was too high."""
        self.served += seconds / self.limits.weight
        self.seconds += seconds


class Lane:
    """A runner with work."""

    __slots__ = ("computing", "latest", "queue", "runner", "share", "worker")

    def __init__(self, runner: Runner, share: Share) -> None:
        self.runner, self.share, self.queue = runner, share, Queue()
        self.computing, self.worker = 0, 0
        """Number of batches given to workers, and the worker: all go to the same one."""
        self.latest = 0
        """Rows of the latest batch given."""


def turn(lane: Lane, now: float, least: float) -> tuple[bool, bool, float, float]:
    """Sort key of lanes with waiting jobs: least attained service first (Nuyens and Wierman 2008), except that lanes
    whose first job must begin now to meet its deadline come before all others, and lanes whose jobs may wait until the
    server is idle come last.

    least: the virtual time of the least served model with waiting jobs.
    """
    head, share = lane.queue.head(), lane.share
    if head is None:
        return True, True, share.served, 0.0
    takes = lane.runner.cost.predict(head.rows) or 0.0
    urgent = head.deadline - takes - NEAR <= now and share.served <= least + LEAD / share.limits.weight
    return rank(head) >= IDLE, not urgent, share.served, head.deadline
