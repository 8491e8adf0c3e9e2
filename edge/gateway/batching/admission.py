"""Admission control: a request is accepted or refused when it arrives, so that a refusal is immediate."""

from __future__ import annotations

from dataclasses import dataclass

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job

__all__ = ["Calibration", "Limits", "Load", "admit", "check_deadline", "check_room", "check_rows"]


WAY = 0.05
"""Share of the time until the deadline that is reserved for the network, as the client's clock includes it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for all clients of a model together. rows, jobs: most that may wait. concurrency: most jobs that may wait
    or be computed; 0: any number. timeout: the deadline in seconds, if the request sets no shorter one. weight: of the
    model when models compete."""

    rows: int = 1024
    jobs: int = 1024
    concurrency: int = 0
    timeout: float = 30.0
    weight: float = 1.0


class Calibration:
    """How much longer requests take than predicted: a factor that few requests exceed.

    A request that took longer raises the factor half the way to its own, by at least 5 % and at most 25 % (a machine
    that was blocked for a second says little about the next second); a request that did not lowers it by 0.05 %. So the
    factor follows a slower machine within a few batches, and on a steady machine about 99 of 100 requests are done in
    time. A request that took less than a third of the corrected prediction lowers it by 1 %: otherwise, after a few
    pauses of the machine, the factor would refuse work for half a minute although there is time for it. Simulated with
    batches of 18 ms of which one in 20 takes 50 ms more, deadlines of 100 ms, three times too much work: 98 % of the
    possible work is done in time; without that rule 75 %.
    """

    __slots__ = ("factor",)

    UP, LEAST_UP, MOST_UP, DOWN = 0.5, 0.05, 0.25, 0.0005
    FAR, FAR_DOWN = -2 / 3, 0.01
    LEAST, MOST = 0.5, 8.0
    FLOOR = 1e-3
    """Predictions below so many seconds are not evaluated, as handing a job over takes as long."""

    def __init__(self) -> None:
        self.factor = 1.0

    def observe(self, predicted: float, actual: float) -> None:
        """Record a request's predicted and actual seconds, both uncorrected."""
        above = actual / (self.factor * max(predicted, self.FLOOR)) - 1
        if above > 0:
            self.factor *= 1 + min(max(self.UP * above, self.LEAST_UP), self.MOST_UP)
        else:
            self.factor *= 1 - (self.DOWN if above > self.FAR else self.FAR_DOWN)
        self.factor = min(max(self.factor, self.LEAST), self.MOST)


@dataclass(slots=True)
class Load:
    """The current work of a model. `flying`: jobs that wait or are computed."""

    rows: int = 0
    jobs: int = 0
    flying: int = 0


def admit(job: Job, limits: Limits, load: Load, now: float, wait: float, half: float) -> None:
    """Raise GatewayError for a job that is not accepted.

    wait: predicted seconds until it would be done. half: seconds until half of the waiting work is done, when a retry
    makes sense.
    """
    check_rows(limits, job.rows)
    check_room(limits, load, job.rows, half)
    check_deadline(job, now)
    left = job.deadline - now
    if wait > (1 - WAY) * left:
        raise _busy(f"the request would be done in {1e3 * wait:.0f} ms, its deadline is in {1e3 * left:.0f} ms", half)


def check_rows(limits: Limits, rows: int) -> None:
    """Raise GatewayError (400) for more rows than may ever wait."""
    if rows > limits.rows:
        raise GatewayError(400, f"expected at most {limits.rows} rows in one request, got {rows}; split the request")


def check_deadline(job: Job, now: float) -> None:
    """Raise GatewayError (504) if the deadline has passed."""
    if now >= job.deadline:
        raise GatewayError(504, "the deadline passed before the request could be computed; set a longer timeout")


def check_room(limits: Limits, load: Load, rows: int, half: float) -> None:
    """Raise GatewayError (429) if there is no room for so many more rows."""
    if limits.concurrency and load.flying >= limits.concurrency:
        raise _busy(f"{load.flying} requests of this model are in progress, the largest number allowed", half)
    if load.rows + rows > limits.rows or load.jobs >= limits.jobs:
        raise _busy(f"{load.rows} rows of {load.jobs} requests already wait for this model", half)


def _busy(why: str, half: float) -> GatewayError:
    return GatewayError(429, f"overloaded: {why}; try again later", retry_after=half)
