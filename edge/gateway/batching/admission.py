"""Whether a request is taken on: decided when it comes, so that who is refused learns it at once."""

from __future__ import annotations

from dataclasses import dataclass

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job

__all__ = ["Calibration", "Limits", "Load", "admit", "check_room"]


WAY = 0.05
"""Of the time until its deadline, what a request and its answer need on their way: the client's clock counts them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model's clients may ask for together. rows, jobs: that wait at most. concurrency: jobs that wait or are
    computed at most; 0: as many as come. timeout: seconds after which an answer is of no use, where the request names
    no less. weight: of the model against others when they compete."""

    rows: int = 1024
    jobs: int = 1024
    concurrency: int = 0
    timeout: float = 30.0
    weight: float = 1.0


class Calibration:
    """How much longer requests take than predicted: a factor that hardly any exceeds.

    One that took longer raises it half the way to what it took, by 5 % at least and 25 % at most (a machine that stood
    still for a second says little of the next one); one that did not lowers it by 0.05 %. So it follows a machine that
    became slower within a few batches, and in a steady one about 99 of 100 are done in time. One that took less than a
    third of what was said lowers it by 1 %: after a few standstills the factor would else refuse, for half a minute,
    work for which there is time. Simulated, batches of 18 ms of which one in 20 takes 50 ms more, deadlines of 100 ms,
    three times too much work: 98 % of what can be done is done in time; without that rule 75 %.
    """

    __slots__ = ("factor",)

    UP, LEAST_UP, MOST_UP, DOWN = 0.5, 0.05, 0.25, 0.0005
    FAR, FAR_DOWN = -2 / 3, 0.01
    LEAST, MOST = 0.5, 8.0
    FLOOR = 1e-3
    """Seconds below which a prediction is not held to account: handing over takes as long."""

    def __init__(self) -> None:
        self.factor = 1.0

    def observe(self, predicted: float, actual: float) -> None:
        """A request that was predicted to take so long took so long; both in seconds, uncorrected."""
        above = actual / (self.factor * max(predicted, self.FLOOR)) - 1
        if above > 0:
            self.factor *= 1 + min(max(self.UP * above, self.LEAST_UP), self.MOST_UP)
        else:
            self.factor *= 1 - (self.DOWN if above > self.FAR else self.FAR_DOWN)
        self.factor = min(max(self.factor, self.LEAST), self.MOST)


@dataclass(slots=True)
class Load:
    """What a model has to do. Jobs that `flying` counts wait or are computed."""

    rows: int = 0
    jobs: int = 0
    flying: int = 0


def admit(job: Job, limits: Limits, load: Load, now: float, wait: float, half: float) -> None:
    """Raise GatewayError for a job that is not taken on.

    wait: seconds from now until it would be done, by the best of knowledge. half: seconds until half of what waits
    is done: when another attempt makes sense.
    """
    if job.rows > limits.rows:
        raise GatewayError(
            400, f"expected at most {limits.rows} rows in one request, got {job.rows}; send them in several"
        )
    check_room(limits, load, job.rows, half)
    if now >= job.deadline:
        raise GatewayError(504, "the deadline passed before the request could be computed; allow more time")
    left = job.deadline - now
    if wait > (1 - WAY) * left:
        raise _busy(f"it would be done {1e3 * wait:.0f} ms from now, and its deadline is in {1e3 * left:.0f} ms", half)


def check_room(limits: Limits, load: Load, rows: int, half: float) -> None:
    """Raise GatewayError (429) where there is no room for so many more rows."""
    if limits.concurrency and load.flying >= limits.concurrency:
        raise _busy(f"{load.flying} requests of this model are being answered, as many as are allowed", half)
    if load.rows + rows > limits.rows or load.jobs >= limits.jobs:
        raise _busy(f"{load.rows} rows of {load.jobs} requests wait for this model already", half)


def _busy(why: str, half: float) -> GatewayError:
    return GatewayError(429, f"too much work: {why}; try again later", retry_after=half)

