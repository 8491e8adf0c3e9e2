"""Which segments of the line make a stage, and on how many devices: exactly the best, by dynamic programming.

The time of a step is that of its longest stage for every microbatch, and of the others once (Alpa, Zheng et al., OSDI
2022, section 5.2): sum of t_i + (M - 1) max t_i. For every value that the largest t_i may take, the least sum is found
from the last stage backwards; the s-th stage from the end keeps what enters it for s microbatches (`kept`), so memory
is known while stages are laid.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Line, best_cuts

__all__ = ["Cost", "Stage", "StageCost", "Stages", "balanced", "best_stages"]


@dataclass(frozen=True, slots=True)
class StageCost:
    """Of one stage: seconds for one microbatch, forward and backward; bytes a device whatever is in flight, and bytes
    for each microbatch that it keeps."""

    seconds: float
    fixed: float = 0.0
    each: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Segments `first` up to `last` (not included) on `width` devices."""

    first: int
    last: int
    width: int


@dataclass(frozen=True, slots=True)
class Stages:
    """From the first stage to the last; seconds of a step."""

    stages: tuple[Stage, ...]
    seconds: float


Cost = Callable[[Stage], StageCost]


def best_stages(
    segments: int, devices: int, microbatches: int, cost: Cost, *, widths: Sequence[int] = (1,),
    memory: float = math.inf, kept: Callable[[int], int] | None = None,
) -> Stages | None:  # fmt: skip
    """The quickest stages that use all `devices`, in widths of `widths`, and fit `memory` bytes a device; None where
    nothing does. `kept(s)`: microbatches that the s-th stage from the end keeps; of 1F1B by default."""
    keeps = kept or (lambda left: min(left, microbatches))
    costs = cache(cost)
    widths = sorted({width for width in widths if width <= devices})
    choices = [Stage(i, j, w) for i in range(segments) for j in range(i + 1, segments + 1) for w in widths]
    seconds = sorted({costs(stage).seconds for stage in choices})
    bound, _ = _least(segments, devices, costs, widths, math.inf, memory, keeps)
    best: Stages | None = None
    for slowest in seconds[_first_that_can_be(segments, devices, costs, widths, seconds, memory, keeps) :]:
        if best is not None and bound + (microbatches - 1) * slowest >= best.seconds:
            break
        total, stages = _least(segments, devices, costs, widths, slowest, memory, keeps)
        if best is None or total + (microbatches - 1) * slowest < best.seconds:
            best = Stages(stages, total + (microbatches - 1) * slowest)
    return best


def _first_that_can_be(
    segments: int, devices: int, cost: Cost, widths: Sequence[int], seconds: Sequence[float], memory: float,
    kept: Callable[[int], int],
) -> int:  # fmt: skip
    """The index of the least time that all stages can keep to; one past the end where there is none."""

    def can_be(slowest: float) -> bool:
        return bool(_least(segments, devices, cost, widths, slowest, memory, kept)[1])

    return bisect_left(seconds, True, key=can_be)


def _least(
    segments: int, devices: int, cost: Cost, widths: Sequence[int], slowest: float, memory: float,
    kept: Callable[[int], int],
) -> tuple[float, tuple[Stage, ...]]:  # fmt: skip
    """The least sum of stage times, none above `slowest`."""

    @cache
    def rest(first: int, left: int, stages: int) -> tuple[float, tuple[Stage, ...]]:
        """Of the segments from `first` on, in `stages` stages on `left` devices."""
        if first == segments or not left or not stages:
            return (0.0 if first == segments and not left and not stages else math.inf), ()
        best: tuple[float, tuple[Stage, ...]] = (math.inf, ())
        for width in (w for w in widths if w <= left):
            for last in range(first + 1, segments + 1):
                stage = Stage(first, last, width)
                own = cost(stage)
                if own.seconds > slowest or own.fixed + own.each * kept(stages) > memory:
                    continue
                after, others = rest(last, left - width, stages - 1)
                if own.seconds + after < best[0]:
                    best = own.seconds + after, (stage, *others)
        return best

    most = min(segments, devices // widths[0])
    return min((rest(0, devices, stages) for stages in range(1, most + 1)), key=lambda found: found[0])


_FINENESS = 6
"""Segments a stage is made of at most, where they are only balanced."""

_FLOPS_A_BYTE = 100
"""What sending is worth where no device is known: between a CPU's 25 and an H100's 1400."""


def balanced(line: Line, stages: int) -> tuple[int, ...]:
    """Where to cut the line into that many stages of much the same work that send little."""
    if stages < 1:
        raise PlanError(f"expected at least 1 stage, got {stages}")
    cuts = best_cuts(line, line.flops, float(line.flops.sum()) / (_FINENESS * stages))
    bounds = [0, *cuts, len(line.order)]
    if len(bounds) - 1 < stages:
        raise PlanError(f"the model has {len(bounds) - 1} segments between thin places, too few for {stages} stages")
    sums = np.concatenate([[0.0], np.cumsum(line.flops)])

    def cost(stage: Stage) -> StageCost:
        sent = line.crossing[bounds[stage.last]]
        return StageCost(float(sums[bounds[stage.last]] - sums[bounds[stage.first]] + _FLOPS_A_BYTE * sent))

    found = best_stages(len(bounds) - 1, stages, 4 * stages, cost)
    assert found is not None  # every stage may have one segment or more
    return tuple(bounds[stage.first] for stage in found.stages[1:])
