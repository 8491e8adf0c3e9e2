"""A lower bound of the cost of stages of a line: operator by operator, as if devices shared work without
communication."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np

from cloud._jax import shaped
from cloud.parallel import cost
from cloud.parallel.staged.cuts import Segment, best_cuts, line, segments
from cloud.parallel.staged.layouts import Layout
from cloud.parallel.staged.schedule import SCHEDULES, Schedule
from cloud.parallel.staged.stages import Stage, StageCost, best_stages
from cloud.parallel.topology import Device, Topology
from cloud.train.stepping.step import TrainState

__all__ = ["Pieces"]

_CONTRACTIONS = frozenset({"dot_general", "conv_general_dilated"})
_FUSED = 0.25
"""Memory passes over its result that an operator other than a contraction costs: most are fused with neighbours."""

_TAKEN, _ADDED = 2, 5
"""How often parameters are read or written when they are unpacked from their vectors, and gradients when they are
packed and added to the earlier ones."""

_PIECES = 32
"""Approximately the most segments from which stages are formed."""


class Pieces:
    """The line for microbatches of `rows` rows, `entering` bytes each, in segments, and the cost of each segment."""

    def __init__(
        self, loss_sums: Callable[..., Any], state: TrainState, batch: Any, rows: int, topology: Topology
    ) -> None:
        part = jax.tree.map(lambda a: shaped((rows, *a.shape[1:]), a.dtype), batch)
        key = jax.eval_shape(lambda: jax.random.key(0))
        self.line, self.constants = line(loss_sums, state.params, state.state, part, key)
        self.topology = topology
        self.entering = sum(_bytes(a) for a in jax.tree.leaves(part))
        self.avals = jax.tree.leaves(state.params)
        self._sizes = [_bytes(a) for a in self.avals]
        self._spans: dict[tuple[int, int], float] = {}
        self.kept = len(jax.tree.leaves(state.state))
        own, whole = (sum(_bytes(a) for a in jax.tree.leaves(tree)) for tree in (state.params, state))
        self.state_per_parameter = whole / max(own, 1)
        cuts = best_cuts(self.line, self.line.flops, float(self.line.flops.sum()) / _PIECES)
        self.bounds = (0, *cuts, len(self.line.order))
        self.segments: tuple[Segment, ...] = segments(self.line, cuts)

    def staged(self, table: Schedule, layout: Layout, memory: float) -> tuple[float, tuple[int, ...]] | None:
        """Seconds of a step and the cuts of the line for the best stages that fit; None if none do."""
        topology, microbatches, policy = self.topology, table.microbatches, SCHEDULES[table.name]

        def price(stage: Stage) -> StageCost:
            forward, backward = self._passes(stage)
            fixed = self._parameters(stage) * (self.state_per_parameter + 1) + self._between(self._held, stage)
            seconds = backward + (0.0 if stage.last == len(self.segments) else forward)
            return StageCost(*(n / layout.tensor for n in (seconds, fixed, self._sent(stage.first))))

        found = best_stages(
            len(self.segments), table.stages, microbatches, price, memory=memory,
            kept=lambda left: policy.kept(left, microbatches),
        )  # fmt: skip
        if found is None:
            return None
        passes = np.array([self._passes(stage) for stage in found.stages]) / layout.tensor
        sent = max(self._sent(stage.first) for stage in found.stages) / layout.tensor
        parameters = max(self._parameters(stage) for stage in found.stages) / layout.tensor
        update = 2 * parameters * (self.state_per_parameter + 1) / topology.device.bandwidth
        across, among, _ = layout.axes
        waits = 2 * table.ticks * cost.seconds("collective-permute", sent, across, layout.mesh, topology)
        waits += cost.seconds("all-reduce", parameters, among, layout.mesh, topology)
        seconds = table.seconds([*passes[:-1, 0], 0.0], [*passes[:, 1]]) + update + waits
        return seconds, tuple(self.bounds[stage.first] for stage in found.stages[1:])

    def _passes(self, stage: Stage) -> tuple[float, float]:
        """Seconds forward and backward for one microbatch; backward computes forward again."""
        once, vector = self._between(self._forward, stage), self._parameters(stage) / self.topology.device.bandwidth
        return once + _TAKEN * vector, 3 * once + (_TAKEN + _ADDED) * vector

    @cached_property
    def _forward(self) -> np.ndarray:
        """Seconds of the places before each place of the line, for one microbatch."""
        device, eqns = self.topology.device, self.line.jaxpr.eqns
        times = [_seconds(eqns[k], flops, device) for k, flops in zip(self.line.order, self.line.flops, strict=True)]
        return np.concatenate([[0.0], np.cumsum(times)])

    @cached_property
    def _held(self) -> np.ndarray:
        """Result bytes of the places before each place of the line."""
        return np.concatenate([[0.0], np.cumsum(self.line.held)])

    @cached_property
    def _read(self) -> list[set[int]]:
        first = len(self.constants)
        last = first + len(self.avals)
        return [{i - first for i in part.entering if first <= i < last} for part in self.segments]

    def _between(self, sums: np.ndarray, stage: Stage) -> float:
        """The sum over the stage's segments."""
        return float(sums[self.bounds[stage.last]] - sums[self.bounds[stage.first]])

    def _parameters(self, stage: Stage) -> float:
        """Bytes of the parameters that the stage reads."""
        key = stage.first, stage.last
        if key not in self._spans:
            self._spans[key] = float(sum(self._sizes[i] for i in set().union(*self._read[stage.first : stage.last])))
        return self._spans[key]

    def _sent(self, place: int) -> float:
        """Bytes that cross before segment number `place`."""
        return float(self.line.crossing[self.bounds[place]])


def _seconds(eqn: Any, flops: float, device: Device) -> float:
    made = float(sum(_bytes(v.aval) for v in eqn.outvars))
    if eqn.primitive.name not in _CONTRACTIONS:
        return _FUSED * made / device.bandwidth
    read = float(sum(_bytes(v.aval) for v in eqn.invars))
    return cost.compute(flops, read + made, eqn.outvars[0].aval.dtype.name, device)


def _bytes(aval: Any) -> int:
    return int(np.prod(aval.shape, dtype=np.int64)) * int(aval.dtype.itemsize)
