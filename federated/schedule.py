"""Learning-rate schedules over the rounds of a run: the section [schedule].

A schedule is computed by the server alone, which sends every round's rate in its message: devices and simulators need
not know it. Within a round the rate is constant, because a round is a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta

from federated.algorithms import Algorithm
from federated.errors import FederatedError
from federated.tables import Count, Fraction, Reader, Table, Whole

__all__ = ["Schedule"]

Kind: TypeAlias = Literal["constant", "step", "cosine"]


class Schedule(Table, frozen=True):
    """The section [schedule]: by which factor rates are multiplied in each round.

    constant: 1. step: `factor` once more every `every` rounds. cosine: half a cosine from 1 to `least` (Loshchilov and
    Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017, without restarts). All after `warmup`
    rounds in which the factor rises linearly to 1 (Goyal et al., "Accurate, Large Minibatch SGD", 2017).
    """

    reader: ClassVar[Reader] = Reader(FederatedError, "")
    local: Kind = "constant"
    """Of the rate of devices' steps in training."""
    server: Kind = "constant"
    """Of `server_rate`."""
    warmup: Whole = 0
    """Rounds of both until the full rate; rates that an algorithm lacks are left out."""
    every: Count = 10
    factor: Annotated[float, Meta(gt=0, le=1)] = 0.5
    rounds: Whole = 0
    """The last round of a cosine, after which the factor is `least`; 0: the run's last."""
    least: Fraction = 0.0
    """The factor at the end of a cosine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds and self.warmup >= self.rounds:
            raise FederatedError(
                f"schedule.warmup: expected less than schedule.rounds = {self.rounds}, got {self.warmup}"
            )
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        for keys, kind in ((("every", "factor"), "step"), (("rounds", "least"), "cosine")):
            for key in keys if kind not in (self.local, self.server) else ():
                if getattr(self, key) != defaults[key]:
                    raise FederatedError(f"schedule.{key}: has no effect without a schedule {kind!r}; omit it")

    @property
    def constant(self) -> bool:
        """Whether every round has the same rates."""
        return self.local == self.server == "constant" and not self.warmup

    @property
    def open_ended(self) -> bool:
        """Whether the rates depend on the number of rounds of the run."""
        return "cosine" in (self.local, self.server) and not self.rounds

    def check(self, algorithm: Algorithm) -> None:
        """Raises FederatedError if the algorithm lacks a rate that is scheduled."""
        for side, rates in (("local", algorithm.local_rates), ("server", algorithm.server_rates)):
            if not rates and getattr(self, side) != "constant":
                raise FederatedError(
                    f"schedule.{side}: {algorithm.name} has no {side} rate that a schedule could change; choose "
                    "another algorithm, or omit it"
                )

    def at(self, algorithm: Algorithm, number: int, count: int) -> Algorithm:
        """The algorithm in round `number`, from 1, of `count`: its rates times their factors."""
        if self.constant:
            return algorithm
        rates = dict.fromkeys(algorithm.local_rates, self.local) | dict.fromkeys(algorithm.server_rates, self.server)
        return algorithm.with_rates({name: self.scale(kind, number, count) for name, kind in rates.items()})

    def scale(self, kind: Kind, number: int, count: int) -> float:
        """The factor of round `number`, from 1; twelve digits, so that it does not depend on the system's cosine."""
        first = max(1, self.warmup)
        rising = number < first
        found = number / first if rising else _SCALES[kind](self, number - first, (self.rounds or count) - first + 1)
        return float(f"{found:.12g}")


def _cosine(schedule: Schedule, after: int, length: int) -> float:
    share = min(1.0, after / length)
    return schedule.least + (1 - schedule.least) * (1 + math.cos(math.pi * share)) / 2


_SCALES: Mapping[Kind, Callable[[Schedule, int, int], float]] = {
    "constant": lambda schedule, after, length: 1.0,
    "step": lambda schedule, after, length: schedule.factor ** (after // schedule.every),
    "cosine": _cosine,
}
"""The factor `after` rounds of `length`, which are those from the first at the full rate to the last."""

