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
import numpy as np
import optax

from cloud._jax import shaped
from cloud.errors import PlanError
from cloud.parallel import cost
from cloud.parallel.checking.check import Measured, measure, spent
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.plan import Estimate, Mesh
from cloud.parallel.staged.layouts import Layout, divisors, layouts
from cloud.parallel.staged.packing import Pack, flat_bytes, largest
from cloud.parallel.staged.pieces import Pieces
from cloud.parallel.staged.pipeline import Pipelined
from cloud.parallel.staged.programs import Programs, programs
from cloud.parallel.staged.schedule import Schedule, schedule
from cloud.parallel.staged.sharing import Shared, sharing
from cloud.parallel.staged.ticks import PASSES
from cloud.parallel.staged.traffic import gradient_packs, traffic
from cloud.parallel.topology import Topology
from cloud.train.stepping.freeze import which_frozen
from cloud.train.stepping.step import StepOptions, TrainState

__all__ = ["Staging", "choose_stages", "in_turns", "pipelines"]

MOST, SECONDS = 6, 60.0
"""The most choices that are planned stage by stage, and the seconds after which no new one is begun."""

SIZES, AHEAD = 12, 16
"""The most sizes of microbatches tried, and microbatches for each stage."""

COPIED, SUMMED = 4, 5
"""How often the state's bytes are read or written in a step (copied before the update, read and written by it), and
those of the gradients (set to zero, divided, read and written)."""

MOVED, KERNELS = 6, 10
"""How often the values that cross are read or written in a tick to keep them, and the kernels of a tick besides those
of the stages; both as read from the GPU compiler's programs."""


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
        """The cost of `step` (`self.pipelined(...)` for the compiler's devices) as compiled, its passes in the order of
        the schedule (`in_turns`)."""
        found = measure(compiler.compile(step.lower()), self.mesh, topology)
        return in_turns(found, step.schedule, step.programs.kinds, self.mesh, topology)


def in_turns(
    found: Measured, table: Schedule, kinds: Sequence[int], mesh: Mesh, topology: Topology
) -> Measured:  # fmt: skip
    """A pipeline's program with the seconds of each tick those of its slowest stage. A compiled program is read as if
    its device took the dearest branch in every tick, forward and backward; but a tick is mostly a forward pass for some
    stages and a backward one for others, and none for those that wait. Collectives and peak stay the program's.
    `kinds`: for each stage, the first with the same computation (`Programs.kinds`)."""
    order = sorted(set(kinds))
    passes = [np.zeros((len(order) + 1, 3)) for _ in PASSES]
    whole = np.array([found.compute_seconds, found.collective_seconds, found.exposed_seconds])
    for one in found.program.branchings:
        way = next((way for way, name in enumerate(PASSES) if f"/{name}/" in one.where), None)
        if way is not None and one.times == table.ticks and len(one.branches) == len(order) + 1:
            passes[way] = np.array([spent(branch, mesh, topology) for branch in one.branches]) / one.times
            whole -= one.times * passes[way][one.taken]
    for rows in zip(table.forward, table.backward, strict=True):
        stages = [
            sum(seconds[order.index(kind) if row[s] >= 0 else -1] for seconds, row in zip(passes, rows, strict=True))
            for s, kind in enumerate(kinds)
        ]
        whole += max(stages, key=lambda seconds: float(seconds[0] + seconds[2]))
    return replace(found, compute_seconds=whole[0], collective_seconds=whole[1], exposed_seconds=whole[2])


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
    end, tried = time.monotonic() + seconds, 0
    todo = list(_bounds(loss_sums, shapes[0], shapes[1], topology, limit, schedules, end - seconds / 2))
    found: list[Staging] = []
    off: dict[int, float] = {}
    trained = frozenset(i for i, still in enumerate(which_frozen(state.params, freeze)) if not still)
    while todo and (tried < MOST or not found) and (time.monotonic() < end or not tried):
        one = min(todo, key=lambda one: one.seconds * off.get(one.layout.tensor, 1.0))
        todo.remove(one)
        if found and one.seconds * off.get(one.layout.tensor, 1.0) > min(s.estimate.step_seconds for s in found):
            break
        tried += 1
        try:
            exact = _planned(one, trained, topology, backend == "gpu", end)
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
    schedules: Sequence[str], end: float,
) -> Iterator[_Bound]:  # fmt: skip
    """Choices; no further size of microbatches is traced after `end`."""
    rows = jax.tree.leaves(batch)[0].shape[0]
    parts: dict[int, Pieces] = {}
    for layout in layouts(topology):
        for microbatches in divisors(rows // layout.replicas) if rows % layout.replicas == 0 else ():
            size = rows // layout.replicas // microbatches
            late = parts and time.monotonic() > end
            if microbatches > AHEAD * layout.stages or (size not in parts and (late or len(parts) > SIZES)):
                continue
            if size not in parts:
                parts[size] = Pieces(loss_sums, state, batch, size, topology)
            for table in (schedule(name, layout.stages, microbatches) for name in schedules):
                found = parts[size].staged(table, layout, memory)
                if found is not None:
                    yield _Bound(layout, table, found[1], found[0], parts[size])


def _planned(
    one: _Bound, trained: frozenset[int], topology: Topology, reduce_scatter: bool, end: float
) -> Staging:  # fmt: skip
    """The choice with every stage planned on its devices until `end`."""
    pieces, layout, table = one.pieces, one.layout, one.table
    width = layout.tensor
    stages = programs(pieces.line, pieces.constants, len(pieces.avals), pieces.kept, one.cuts, trained, width)
    shared = sharing(stages, width, topology, reduce_scatter=reduce_scatter, end=end)
    packs = gradient_packs(stages, shared.dims, width)
    moved = tuple(
        replace(each, axes=layout.over(each.axes)) for each in traffic(stages, shared, table, layout.replicas, packs)
    )
    outside = [each for each in moved if each.axes != layout.axes[2]]
    waits = sum(each.times * cost.seconds(each.kind, each.bytes, each.axes, layout.mesh, topology) for each in outside)
    held = _held(pieces, stages, shared, table, packs)
    computing, shown = (_ticks(shared, table, packs[0], stages, topology, exposed) for exposed in (False, True))
    update = (COPIED * held.state + SUMMED * held.gradients) / topology.device.bandwidth
    inside = shown - computing
    estimate = Estimate(computing + update, inside + waits, inside + waits, held.peak, held.state, moved)
    return Staging(
        one.cuts, layout.replicas, width, table.microbatches, table.name, estimate, layout.mesh,
        shared if width > 1 else None,
    )  # fmt: skip


def _ticks(
    shared: Shared, table: Schedule, packs: Sequence[Pack], stages: Programs, topology: Topology, exposed: bool
) -> float:  # fmt: skip
    """Seconds of all ticks, `exposed`: including the time a stage's devices wait for each other. Each pass unpacks the
    parameters from their vectors (read, written); a backward pass adds its gradients to the earlier ones (two vectors
    as long as the largest stage's are read, one is written). In every tick the loop copies the gradients, because a
    stage without a backward pass hands on those it was given, which costs it a copy too; and what arrives is stored
    where it is kept until it is read (`MOVED`)."""
    own, bandwidth = [sum(flat_bytes(pack.sizes).values()) for pack in packs], topology.device.bandwidth
    longest = sum(flat_bytes(largest(packs)).values())
    crossing = sum(sum(flat_bytes(sizes).values()) for sizes in (stages.sizes, stages.gradient_sizes))
    forward, backward = shared.seconds(exposed)
    forward = [*(f + 2 * bytes_ / bandwidth for f, bytes_ in zip(forward[:-1], own[:-1], strict=True)), 0.0]
    backward = [b + (2 * bytes_ + 3 * longest) / bandwidth for b, bytes_ in zip(backward, own, strict=True)]
    each = (2 * longest + MOVED * crossing) / bandwidth + KERNELS * topology.device.launch
    return table.ticks * each + table.seconds(forward, backward, 2 * longest / bandwidth)


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
