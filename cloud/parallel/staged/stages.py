"""Which segments of the line form a stage, and on how many devices: the optimum, by dynamic programming.

The time of a step is that of its longest stage for every microbatch, and of the others once (Alpa, Zheng et al., OSDI
2022, section 5.2): sum of t_i + (M - 1) max t_i. For every value that the largest t_i may take, the least sum is found
from the last stage backwards; the s-th stage from the end keeps its inputs for s microbatches (`kept`), so memory is
known while stages are formed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Floats, Line, best_cuts

__all__ = ["Cost", "Stage", "StageCost", "Stages", "balanced", "best_stages"]


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of one stage: seconds for one microbatch, forward and backward; fixed bytes per device, and bytes for
    each microbatch that it keeps."""

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
    """The stages from first to last, and the seconds of a step."""

    stages: tuple[Stage, ...]
    seconds: float


Cost = Callable[[Stage], StageCost]
Ints: TypeAlias = npt.NDArray[np.int64]


def best_stages(
    segments: int, devices: int, microbatches: int, cost: Cost, *, widths: Sequence[int] = (1,),
    memory: float = math.inf, kept: Callable[[int], int] | None = None,
) -> Stages | None:  # fmt: skip
    """The fastest stages that use all `devices`, in widths of `widths`, and fit `memory` bytes per device; None if
    there are none. `kept(s)`: microbatches that the s-th stage from the end keeps; by default those of 1F1B."""
    keeps = kept or (lambda left: min(left, microbatches))
    lines = _Lines(segments, devices, sorted({width for width in widths if width <= devices}), cost, memory, keeps)
    bound, _ = lines.least(math.inf)
    best: Stages | None = None
    times = lines.times
    for slowest in times[bisect_left(times, True, key=lambda slowest: bool(lines.least(slowest)[1])) :]:
        if best is not None and bound + (microbatches - 1) * slowest >= best.seconds:
            break
        total, stages = lines.least(slowest)
        if best is None or total + (microbatches - 1) * slowest < best.seconds:
            best = Stages(stages, total + (microbatches - 1) * slowest)
    return best


class _Lines:
    """The cost of every possible stage: `seconds[w][i, j]` of segments i to j in width number w; `fits[s - 1]`: whether
    it can be the s-th stage from the end."""

    def __init__(
        self, segments: int, devices: int, widths: Sequence[int], cost: Cost, memory: float, kept: Callable[[int], int]
    ) -> None:
        self.segments, self.devices, self.widths = segments, devices, widths
        costs = np.full((3, len(widths), segments + 1, segments + 1), math.inf)
        for w, width in enumerate(widths):
            for i in range(segments):
                for j in range(i + 1, segments + 1):
                    one = cost(Stage(i, j, width))
                    costs[:, w, i, j] = one.seconds, one.fixed, one.each
        self.seconds, fixed, each = costs
        most = min(segments, devices // widths[0])
        self.fits = [fixed + each * kept(s) <= memory for s in range(1, most + 1)]

    @property
    def times(self) -> list[float]:
        """Seconds of all stages, ascending."""
        return [float(time) for time in np.unique(self.seconds[np.isfinite(self.seconds)])]

    def least(self, slowest: float) -> tuple[float, tuple[Stage, ...]]:
        """The least sum of stage times, none above `slowest`."""
        quick = self.seconds <= slowest
        end = np.full(self.segments + 1, math.inf)
        end[-1] = 0.0
        layer: dict[int, Floats] = {0: end}
        came: list[dict[int, tuple[Ints, Ints]]] = []
        best: tuple[float, tuple[Stage, ...]] = (math.inf, ())
        for fits in self.fits:
            allowed = np.where(quick & fits, self.seconds, math.inf)
            layer, chosen = self._longer(layer, allowed)
            came.append(chosen)
            if self.devices in layer and layer[self.devices][0] < best[0]:
                best = float(layer[self.devices][0]), self._stages(came)
        return best

    def _longer(
        self, after: dict[int, Floats], allowed: Floats
    ) -> tuple[dict[int, Floats], dict[int, tuple[Ints, Ints]]]:
        """From the least sums `after`, by number of devices and first segment, those with one more stage before."""
        layer, chosen = {}, {}
        for left in range(1, self.devices + 1):
            ways = [w for w, width in enumerate(self.widths) if left - width in after]
            if ways:
                sums = np.stack([allowed[w] + after[left - self.widths[w]] for w in ways])
                last = sums.argmin(2)
                least = np.take_along_axis(sums, last[..., None], 2)[..., 0]
                way = least.argmin(0)
                at = np.arange(self.segments + 1)
                layer[left], chosen[left] = least[way, at], (np.array(ways)[way], last[way, at])
        return layer, chosen

    def _stages(self, came: Sequence[dict[int, tuple[Ints, Ints]]]) -> tuple[Stage, ...]:
        """The least sum of the whole line on all devices."""
        left, first, found = self.devices, 0, []
        for chosen in reversed(came):
            width, last = (int(choice[first]) for choice in chosen[left])
            found.append(Stage(first, last, self.widths[width]))
            left, first = left - self.widths[width], last
        return tuple(found)


_FINENESS = 6
"""The most segments of a stage when stages are only balanced."""

_FLOPS_A_BYTE = 100
"""FLOPs per byte sent, used if the device is unknown: between a CPU's 25 and an H100's 1400."""


def balanced(line: Line, stages: int) -> tuple[int, ...]:
    """Where to cut the line into that many stages of similar work that send little."""
    if stages < 1:
        raise PlanError(f"expected at least 1 stage, got {stages}")
    cuts = best_cuts(line, line.flops, float(line.flops.sum()) / (_FINENESS * stages))
    bounds = [0, *cuts, len(line.order)]
    if len(bounds) - 1 < stages:
        raise PlanError(f"the model has only {len(bounds) - 1} segments to cut between, too few for {stages} stages")
    sums = np.concatenate([[0.0], np.cumsum(line.flops)])

    def cost(stage: Stage) -> StageCost:
        sent = line.crossing[bounds[stage.last]]
        return StageCost(float(sums[bounds[stage.last]] - sums[bounds[stage.first]] + _FLOPS_A_BYTE * sent))

    found = best_stages(len(bounds) - 1, stages, 4 * stages, cost)
    assert found is not None  # every stage can have one segment or more
    return tuple(bounds[stage.first] for stage in found.stages[1:])
