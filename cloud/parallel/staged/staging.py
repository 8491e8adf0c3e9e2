"""How many stages, replicas and microbatches: every choice priced on a topology, the cuts of each by `best_stages`.

A price has the parts a step has: ticks of the schedule, in which all wait for the slowest stage; what is sent at the
end of each; gradients summed; the update. A stage computes forward once to hand on and once more before backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from cloud._jax import shaped
from cloud.parallel import cost
from cloud.parallel.plan import Collective, Estimate, Mesh
from cloud.parallel.staged.cuts import Segment, best_cuts, line, segments
from cloud.parallel.staged.schedule import SCHEDULES, Schedule, schedule
from cloud.parallel.staged.stages import Stage, StageCost, best_stages
from cloud.parallel.topology import Device, Topology
from cloud.train.step import TrainState

__all__ = ["Staging", "choose_stages"]

_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})
_FUSED = 0.25
"""Passes over its result that an operator costs which is no contraction: most are fused with their neighbours."""

_PIECES = 32
"""Segments among which stages are chosen, at most about."""


@dataclass(frozen=True)
class Staging:
    """A choice, as `Pipelined` takes it, and what a step of it is expected to cost."""

    stages: tuple[int, ...]
    replicas: int
    microbatches: int
    schedule: str
    estimate: Estimate

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `Pipelined`."""
        return {name: getattr(self, name) for name in ("stages", "replicas", "microbatches", "schedule")}


def choose_stages(
    loss_sums: Callable[..., Any], state: TrainState, batch: Any, topology: Topology, *, memory: float | None = None,
    schedules: Sequence[str] = ("paired", "1f1b"),
) -> Staging | None:  # fmt: skip
    """The quickest pipeline of two stages or more that fits `memory` bytes a device (the topology's by default), None
    where none does. `state` and `batch`: arrays or shapes, of the whole step. The cuts of each number of stages are the
    best by `best_stages`' formula, which knows nothing of the update and of waiting while the pipeline fills."""
    shapes = jax.tree.map(lambda a: shaped(a.shape, a.dtype), (state, batch))
    rows = jax.tree.leaves(shapes[1])[0].shape[0]
    limit = topology.memory if memory is None else memory
    parts: dict[int, _Pieces] = {}
    found: list[Staging] = []
    for stages, mesh, axes in _meshes(topology):
        replicas = topology.size // stages
        for microbatches in _divisors(rows // replicas) if rows % replicas == 0 else ():
            size = rows // replicas // microbatches
            if microbatches > 16 * stages or (size not in parts and len(parts) > 12):
                continue
            if size not in parts:
                parts[size] = _Pieces(loss_sums, shapes[0], shapes[1], size, topology)
            pieces = parts[size]
            prices = (_priced(pieces, schedule(name, stages, microbatches), mesh, axes, limit) for name in schedules)
            found.extend(price for price in prices if price is not None)
    return min(found, key=lambda one: one.estimate.step_seconds, default=None)


class _Pieces:
    """The line of one size of microbatches in segments, and what each of them costs."""

    def __init__(
        self, loss_sums: Callable[..., Any], state: TrainState, batch: Any, size: int, topology: Topology
    ) -> None:
        part = jax.tree.map(lambda a: shaped((size, *a.shape[1:]), a.dtype), batch)
        key = jax.eval_shape(lambda: jax.random.key(0))
        self.line, constants = line(loss_sums, state.params, state.state, part, key)
        self.topology, self.constants = topology, len(constants)
        self.avals = jax.tree.leaves(state.params)
        own, whole = (sum(_bytes(a) for a in jax.tree.leaves(tree)) for tree in (state.params, state))
        self.state_per_parameter = whole / max(own, 1)
        cuts = best_cuts(self.line, self.line.flops, float(self.line.flops.sum()) / _PIECES)
        self.bounds = (0, *cuts, len(self.line.order))
        self.segments: tuple[Segment, ...] = segments(self.line, cuts)

    @cached_property
    def forward(self) -> np.ndarray:
        """Seconds of the places before each place of the line, for one microbatch."""
        device, eqns = self.topology.device, self.line.jaxpr.eqns
        times = [_seconds(eqns[k], flops, device) for k, flops in zip(self.line.order, self.line.flops, strict=True)]
        return np.concatenate([[0.0], np.cumsum(times)])

    @cached_property
    def held(self) -> np.ndarray:
        """Result bytes of the places before each place of the line."""
        return np.concatenate([[0.0], np.cumsum(self.line.held)])

    @cached_property
    def _parameters(self) -> list[set[int]]:
        last = self.constants + len(self.avals)
        return [{i - self.constants for i in part.entering if self.constants <= i < last} for part in self.segments]

    def between(self, sums: np.ndarray, stage: Stage) -> float:
        """Of `forward` or `held`: what the stage's segments add up to."""
        return float(sums[self.bounds[stage.last]] - sums[self.bounds[stage.first]])

    def parameters(self, stage: Stage) -> float:
        """Bytes of the parameters that the stage reads."""
        read: set[int] = set().union(*self._parameters[stage.first : stage.last])
        return float(sum(_bytes(self.avals[i]) for i in read))

    def sent(self, place: int) -> float:
        """Bytes that cross before segment number `place`."""
        return float(self.line.crossing[self.bounds[place]])


def _priced(pieces: _Pieces, table: Schedule, mesh: Mesh, axes: tuple[_Axes, _Axes], memory: float) -> Staging | None:
    """The best stages for this many, or None where they do not fit."""
    topology, microbatches = pieces.topology, table.microbatches
    policy = SCHEDULES[table.name]

    def price(stage: Stage) -> StageCost:
        parameters, is_last = pieces.parameters(stage), stage.last == len(pieces.segments)
        seconds = (3 if is_last else 4) * pieces.between(pieces.forward, stage)
        fixed = parameters * (pieces.state_per_parameter + 1) + pieces.between(pieces.held, stage)
        return StageCost(seconds, fixed, pieces.sent(stage.first))

    found = best_stages(
        len(pieces.segments), table.stages, microbatches, price, memory=memory,
        kept=lambda left: policy.kept(left, microbatches),
    )  # fmt: skip
    if found is None:
        return None
    once = [pieces.between(pieces.forward, stage) for stage in found.stages]
    sent = max(pieces.sent(stage.first) for stage in found.stages)
    parameters = [pieces.parameters(stage) for stage in found.stages]
    across, among = axes
    moved = [Collective("collective-permute", int(sent), across, table.stages, table.ticks, why)
             for why in ("activations to the next stage", "activations back from the next stage")]  # fmt: skip
    if math.prod(mesh.sizes[axis] for axis in among) > 1:
        group = math.prod(mesh.sizes[axis] for axis in among)
        moved.append(Collective("all-reduce", int(max(parameters)), among, group, 1, "gradients of the replicas"))
    waits = sum(one.times * cost.seconds(one.kind, one.bytes, one.axes, mesh, topology) for one in moved)
    update = 2 * max(parameters) * (pieces.state_per_parameter + 1) / topology.device.bandwidth
    peaks = [price(stage) for stage in found.stages]
    kept = [policy.kept(table.stages - s, microbatches) for s in range(table.stages)]
    estimate = Estimate(
        table.seconds([*once[:-1], 0.0], [3 * f for f in once]) + update, waits, waits,
        int(max(peak.fixed + peak.each * k for peak, k in zip(peaks, kept, strict=True))),
        int(max(parameters) * pieces.state_per_parameter), tuple(moved),
    )  # fmt: skip
    cuts = tuple(pieces.bounds[stage.first] for stage in found.stages[1:])
    return Staging(cuts, topology.size // table.stages, microbatches, table.name, estimate)


_Axes = tuple[int, ...]


def _meshes(topology: Topology) -> Iterator[tuple[int, Mesh, tuple[_Axes, _Axes]]]:
    """Numbers of stages, and a mesh of the topology with the axes that stages and replicas lie along; stages cross the
    slowest links, as they send least."""
    sizes = [level.size for level in topology.levels]
    for stages in _divisors(topology.size)[1:]:
        split, left = [], stages
        for size in sizes:
            along = math.gcd(size, left)
            split.append((along, size // along))
            left //= along
        if left == 1 and _is_major(split):
            factors = [(n, level, kind) for level, pair in enumerate(split) for kind, n in enumerate(pair)]
            mesh = Mesh(tuple(n for n, _, _ in factors), tuple(level for _, level, _ in factors))
            across, among = (tuple(a for a, (_, _, k) in enumerate(factors) if k == kind) for kind in (0, 1))
            yield stages, mesh, (across, among)


def _is_major(split: Sequence[tuple[int, int]]) -> bool:
    """Whether all of the stages' axis comes before all of the replicas'."""
    filled = [level for level, (along, rest) in enumerate(split) if rest > 1]
    return all(along == 1 for along, _ in split[filled[0] + 1 :]) if filled else True


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _seconds(eqn: Any, flops: float, device: Device) -> float:
    made = float(sum(_bytes(v.aval) for v in eqn.outvars))
    if eqn.primitive.name not in _CONTRACTIONS:
        return _FUSED * made / device.bandwidth
    read = float(sum(_bytes(v.aval) for v in eqn.invars))
    return cost.compute(flops, read + made, eqn.outvars[0].aval.dtype.name, device)


def _bytes(aval: Any) -> int:
    return int(np.prod(aval.shape, dtype=np.int64)) * int(aval.dtype.itemsize)
