"""Fairness: the account of each competing model, and which one is next."""

from __future__ import annotations

from collections import Counter
from typing import Any

from edge.gateway.batching.admission import Calibration, Limits, Load
from edge.gateway.batching.queue import IDLE, Queue, rank
from edge.gateway.batching.runner import Runner

__all__ = ["Lane", "Share", "turn"]

NEAR = 5e-3
"""Seconds before which a batch has to be begun to be in time that count as: now."""
LEAD = 0.1
"""Seconds of service that a model may be ahead of the least served and still be let forward as its deadlines are near:
one that sets deadlines nobody can keep does not take all."""


class Share:
    """A model's account."""

    __slots__ = ("calibration", "computing", "lanes", "limits", "load", "model", "refused", "seconds", "served")

    def __init__(self, model: str, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.load, self.calibration = Load(), Calibration()
        self.served = 0.0
        """Virtual time: seconds of service by weight; one that comes back from a pause begins where the others are."""
        self.seconds = 0.0
        """Of service, in all."""
        self.lanes, self.computing = 0, 0
        """Runners with something to do, and batches given away."""
        self.refused: Counter[int] = Counter()
        """Requests not taken on or given up, by status."""

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
        """Count service; negative to take back what was predicted too high."""
        self.served += seconds / self.limits.weight
        self.seconds += seconds


class Lane:
    """A runner with something to do."""

    __slots__ = ("computing", "latest", "queue", "runner", "share", "worker")

    def __init__(self, runner: Runner, share: Share) -> None:
        self.runner, self.share, self.queue = runner, share, Queue()
        self.computing, self.worker = 0, 0
        """Batches given away, all to one worker."""
        self.latest = 0
        """Rows of the latest of them."""


def turn(lane: Lane, now: float, least: float) -> tuple[bool, bool, float, float]:
    """Sorts lanes with waiting jobs: least attained service first (Nuyens and Wierman 2008), but those before it whose
    first job must begin now to be in time, and those last whose jobs may wait for an idle moment.

    least: the virtual time of the least served model that waits.
    """
    head, share = lane.queue.head(), lane.share
    if head is None:
        return True, True, share.served, 0.0
    takes = lane.runner.cost.predict(head.rows) or 0.0
    urgent = head.deadline - takes - NEAR <= now and share.served <= least + LEAD / share.limits.weight
    return rank(head) >= IDLE, not urgent, share.served, head.deadline
