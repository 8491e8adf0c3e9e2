"""Numbers of stages, replicas, devices of each, and microbatches: the most promising choices, planned and costed.

The cost has the parts of a step: ticks of the schedule, each as long as the slowest stage; communication at the end of
each; the sum of gradients; the update. A stage computes forward once to send its results and once more before backward.
The cost inside a stage is the prediction of its plan (`cloud.parallel.staged.inside`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import optax

from cloud._jax import shaped
from cloud.errors import PlanError
from cloud.parallel import cost
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.plan import Estimate, Mesh
from cloud.parallel.staged.layouts import Layout, divisors, layouts
from cloud.parallel.staged.packing import Pack, flat_bytes, largest
from cloud.parallel.staged.pieces import Pieces
from cloud.parallel.staged.pipeline import Pipelined
from cloud.parallel.staged.programs import Programs, programs
from cloud.parallel.staged.schedule import Schedule, schedule
from cloud.parallel.staged.sharing import Shared, sharing
from cloud.parallel.staged.traffic import gradient_packs, traffic
from cloud.parallel.topology import Topology
from cloud.train.stepping.freeze import which_frozen
from cloud.train.stepping.step import StepOptions, TrainState

__all__ = ["Staging", "choose_stages", "pipelines"]

MOST, SECONDS = 6, 60.0
"""The most choices that are planned stage by stage, and the seconds after which no new one is begun."""

SIZES, AHEAD = 12, 16
"""The most sizes of microbatches tried, and microbatches for each stage."""


@dataclass(frozen=True)
class Staging:
    """A choice, as arguments of `Pipelined`, and the predicted cost of a step. `mesh`: of its devices; `shared`: the
    plans of its stages if each has several devices."""

    stages: tuple[int, ...]
    replicas: int
    tensor: int
    microbatches: int
    schedule: str
    estimate: Estimate
    mesh: Mesh
    shared: Shared | None = field(default=None, repr=False, compare=False)

    @property
    def options(self) -> dict[str, Any]:
        """The choice, as arguments of `Pipelined`."""
        return {name: getattr(self, name) for name in ("stages", "replicas", "tensor", "microbatches", "schedule")}

    def pipelined(
        self, loss_sums: Callable[..., Any], optimizer: optax.GradientTransformation, options: StepOptions,
        state: TrainState, batch: Any, devices: Sequence[Any] | None = None,
    ) -> Pipelined:  # fmt: skip
        """The step; arguments are those of `Pipelined`."""
        return Pipelined(
            loss_sums, optimizer, options, state, batch, devices=devices, shared=self.shared, **self.options
        )  # fmt: skip

    def measured(self, step: Pipelined, compiler: Compiler, topology: Topology) -> Measured:
        """The cost of `step` (`self.pipelined(...)` for the compiler's devices) as compiled."""
        return measure(compiler.compile(step.lower()), self.mesh, topology)


def choose_stages(
    loss_sums: Callable[..., Any], state: TrainState, batch: Any, topology: Topology, **options: Any
) -> Staging | None:
    """The fastest of `pipelines`, None if there is none."""
    return next(iter(pipelines(loss_sums, state, batch, topology, **options)), None)


def pipelines(
    loss_sums: Callable[..., Any], state: TrainState, batch: Any, topology: Topology, *, memory: float | None = None,
    schedules: Sequence[str] = ("paired", "1f1b"), freeze: Sequence[str] = (), backend: str = "gpu",
    seconds: float = SECONDS,
) -> list[Staging]:  # fmt: skip
    """The best pipeline-parallel plans of two stages or more that fit `memory` bytes per device (the topology's by
    default), fastest first. `state` and `batch`: arrays or shapes, of the whole step. `freeze`: as in `StepOptions`.
    `backend`: as in `search.plans`. `seconds`: after this time no further choice is planned.

    The cuts for each number of stages are the best by the formula of `best_stages`, which ignores the update and the
    idle time until all stages have work. Choices are planned in the order of their lower bounds; the error of the bound
    of one choice corrects those of all choices with the same number of devices per replica."""
    shapes = jax.tree.map(lambda a: shaped(a.shape, a.dtype), (state, batch))
    limit = topology.memory if memory is None else memory
    todo = list(_bounds(loss_sums, shapes[0], shapes[1], topology, limit, schedules))
    found: list[Staging] = []
    off: dict[int, float] = {}
    trained = frozenset(i for i, still in enumerate(which_frozen(state.params, freeze)) if not still)
    end, tried = time.monotonic() + seconds, 0
    while todo and (tried < MOST or not found) and (time.monotonic() < end or not tried):
        one = min(todo, key=lambda one: one.seconds * off.get(one.layout.tensor, 1.0))
        todo.remove(one)
        if found and one.seconds * off.get(one.layout.tensor, 1.0) > min(s.estimate.step_seconds for s in found):
            break
        tried += 1
        try:
            exact = _planned(one, trained, topology, backend == "gpu")
        except PlanError:  # no plan for a stage on this many devices, or no plan in stages at all
            continue
        off[one.layout.tensor] = exact.estimate.step_seconds / one.seconds
        if exact.estimate.peak_bytes <= limit:
            found.append(exact)
    return sorted(found, key=lambda one: one.estimate.step_seconds)


@dataclass(frozen=True)
class _Bound:
    """A choice, and an approximate lower bound of its seconds."""

    layout: Layout
    table: Schedule
    cuts: tuple[int, ...]
    seconds: float
    pieces: Pieces


def _bounds(
    loss_sums: Callable[..., Any], state: TrainState, batch: Any, topology: Topology, memory: float,
    schedules: Sequence[str],
) -> Iterator[_Bound]:  # fmt: skip
    rows = jax.tree.leaves(batch)[0].shape[0]
    parts: dict[int, Pieces] = {}
    for layout in layouts(topology):
        for microbatches in divisors(rows // layout.replicas) if rows % layout.replicas == 0 else ():
            size = rows // layout.replicas // microbatches
            if microbatches > AHEAD * layout.stages or (size not in parts and len(parts) > SIZES):
                continue
            if size not in parts:
                parts[size] = Pieces(loss_sums, state, batch, size, topology)
            for table in (schedule(name, layout.stages, microbatches) for name in schedules):
                found = parts[size].staged(table, layout, memory)
                if found is not None:
                    yield _Bound(layout, table, found[1], found[0], parts[size])


def _planned(one: _Bound, trained: frozenset[int], topology: Topology, reduce_scatter: bool) -> Staging:
    """The choice with every stage planned on its devices."""
    pieces, layout, table = one.pieces, one.layout, one.table
    width = layout.tensor
    stages = programs(pieces.line, pieces.constants, len(pieces.avals), pieces.kept, one.cuts, trained, width)
    shared = sharing(stages, width, topology, reduce_scatter=reduce_scatter)
    packs = gradient_packs(stages, shared.dims, width)
    moved = tuple(
        replace(each, axes=layout.over(each.axes)) for each in traffic(stages, shared, table, layout.replicas, packs)
    )
    outside = [each for each in moved if each.axes != layout.axes[2]]
    waits = sum(each.times * cost.seconds(each.kind, each.bytes, each.axes, layout.mesh, topology) for each in outside)
    computing, shown = (_ticks(shared, table, packs[0], topology, exposed) for exposed in (False, True))
    held = _held(pieces, stages, shared, table, packs)
    update = 2 * (held.state + held.gradients) / topology.device.bandwidth
    inside = shown - computing
    estimate = Estimate(computing + update, inside + waits, inside + waits, held.peak, held.state, moved)
    return Staging(
        one.cuts, layout.replicas, width, table.microbatches, table.name, estimate, layout.mesh,
        shared if width > 1 else None,
    )  # fmt: skip


def _ticks(shared: Shared, table: Schedule, packs: Sequence[Pack], topology: Topology, exposed: bool) -> float:
    """Seconds of all ticks, `exposed`: including the time a stage's devices wait for each other. Each pass unpacks the
    parameters from their vectors (read, written); a backward pass packs gradients (read, written) and adds them to the
    earlier ones (two vectors as long as the largest stage's are read, one is written)."""
    own, bandwidth = [sum(flat_bytes(pack.sizes).values()) for pack in packs], topology.device.bandwidth
    longest = sum(flat_bytes(largest(packs)).values())
    forward, backward = shared.seconds(exposed)
    forward = [*(f + 2 * bytes_ / bandwidth for f, bytes_ in zip(forward[:-1], own[:-1], strict=True)), 0.0]
    backward = [b + (4 * bytes_ + 3 * longest) / bandwidth for b, bytes_ in zip(backward, own, strict=True)]
    return table.seconds(forward, backward)


class _Held(NamedTuple):
    """Bytes of one device: its part of the state, of gradients, and the peak."""

    state: int
    gradients: int
    peak: int


def _held(pieces: Pieces, stages: Programs, shared: Shared, table: Schedule, packs: tuple[list[Pack], Pack]) -> _Held:
    """Vectors are as long as those of the largest stage; a stage's parameters are unpacked from them when it computes.
    The batch is in memory all the time. At the end of a stage's backward pass its gradients exist as arrays, as
    vectors, and as the sum with the earlier ones, which exist too; at the end of the update, its results exist beside
    the old values."""
    gradients = sum(flat_bytes(largest(packs[0])).values())
    state = int(gradients * pieces.state_per_parameter)
    crossing = sum(flat_bytes(stages.sizes).values())
    rings = sum(max(map(count, range(table.stages))) for count in (table.kept, table.waiting)) * crossing
    working = max(one.backward.estimate.peak_bytes for one in shared.insides.values())
    ticks = gradients + rings + max(working, 3 * gradients)
    return _Held(state, gradients, state + pieces.entering * table.microbatches + max(ticks, state + gradients))
