"""The schedule of pipeline parallelism: which stage computes which microbatch at which tick.

In a tick a stage runs forward, backward, both (forward first) or neither; its results reach its neighbour before the
next tick, and each tick is as long as its slowest stage. Therefore "paired", which keeps twice the stage inputs of
"1f1b", is the faster of the two with synchronous ticks: M + S - 1 times forward and backward, compared with 2 (M + S -
1) times backward.

"gpipe": Huang et al., 2019. "1f1b": PipeDream, Harlap et al., 2018 (flushed after each step: Megatron-LM, 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from cloud.errors import PlanError

__all__ = ["SCHEDULES", "Policy", "Schedule", "schedule"]

Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """`kept(stages from the end, microbatches)`: how many a stage may have begun and not yet finished; `both`: forward
    and backward in one tick; `patient`: backward only after all forward passes."""

    kept: Callable[[int, int], int]
    both: bool = False
    patient: bool = False


SCHEDULES: Mapping[str, Policy] = MappingProxyType(
    {
        "gpipe": Policy(lambda _, microbatches: microbatches, patient=True),
        "1f1b": Policy(lambda left, microbatches: min(left, microbatches)),
        "paired": Policy(lambda left, microbatches: min(2 * left - 1, microbatches), both=True),
    }
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """`forward[tick][stage]` and `backward[tick][stage]`: the microbatch computed, -1 for none."""

    name: str
    stages: int
    microbatches: int
    forward: Table
    backward: Table

    @property
    def ticks(self) -> int:
        """The number of ticks."""
        return len(self.forward)

    def kept(self, stage: int) -> int:
        """The most microbatches whose input the stage holds at once, from arrival to the end of backward."""
        came = _when(self.forward, stage - 1, 1) if stage else _when(self.forward, stage)
        return _most(came, _when(self.backward, stage))

    def waiting(self, stage: int) -> int:
        """The most gradients that have arrived at the stage and are not yet used."""
        if stage == self.stages - 1:
            return 1
        return _most(_when(self.backward, stage + 1, 1), _when(self.backward, stage))

    def seconds(self, forward: Sequence[float], backward: Sequence[float], idle: float = 0.0) -> float:
        """Seconds of all ticks, from each stage's seconds for one microbatch. `idle`: of a stage in a tick without a
        backward pass."""
        return sum(
            max((f >= 0) * tf + (tb if b >= 0 else idle) for f, b, tf, tb in zip(*rows, forward, backward, strict=True))
            for rows in zip(self.forward, self.backward, strict=True)
        )

    def bubble(self, forward: Sequence[float], backward: Sequence[float]) -> float:
        """The share of the stages' time in which they are idle, 0 to 1."""
        work = self.microbatches * (sum(forward) + sum(backward))
        return 1 - work / (self.stages * self.seconds(forward, backward))


def schedule(name: str, stages: int, microbatches: int) -> Schedule:
    """The table of `SCHEDULES[name]`: every stage runs each allowed pass as soon as it can, backward before forward."""
    if name not in SCHEDULES:
        raise PlanError(f"expected a schedule of {', '.join(SCHEDULES)}, got {name!r}")
    if stages < 1 or microbatches < 1:
        raise PlanError(f"expected at least 1 stage and 1 microbatch, got {stages} and {microbatches}")
    policy = SCHEDULES[name]
    forward: list[tuple[int, ...]] = []
    backward: list[tuple[int, ...]] = []
    begun, done = [0] * stages, [0] * stages
    while done[0] < microbatches:
        fs, bs = _tick(policy, microbatches, tuple(begun), tuple(done))
        begun = [n + (f >= 0) for n, f in zip(begun, fs, strict=True)]
        done = [n + (b >= 0) for n, b in zip(done, bs, strict=True)]
        forward.append(fs)
        backward.append(bs)
    return Schedule(name, stages, microbatches, tuple(forward), tuple(backward))


def _tick(
    policy: Policy, microbatches: int, begun: tuple[int, ...], done: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The passes of each stage in a tick, from the numbers of microbatches that each has begun and finished before."""
    stages = len(begun)
    forward, backward = [], []
    for s in range(stages):
        here = begun[s - 1] if s else microbatches
        may = begun[s] < here and begun[s] - done[s] < policy.kept(stages - s, microbatches)
        last = s == stages - 1
        ready = (begun[s] + (may and policy.both)) if last else done[s + 1]
        returns = done[s] < ready and not (policy.patient and begun[s] < microbatches)
        forward.append(begun[s] if may and (policy.both or not returns) else -1)
        backward.append(done[s] if returns else -1)
    return tuple(forward), tuple(backward)


def _when(table: Table, stage: int, later: int = 0) -> list[int]:
    return [t + later for t, row in enumerate(table) if row[stage] >= 0]


def _most(came: Sequence[int], gone: Sequence[int]) -> int:
    return max(sum(a <= t <= b for a, b in zip(came, gone, strict=True)) for t in came)
