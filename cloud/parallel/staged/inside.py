"""Stages on several devices: the planner splits each stage over its devices, forward and backward in one graph.

The values that a stage receives and sends are split over its devices along the first dimension that divides, so that
each device sends and keeps a part; parameters and their gradients are sharded as in the plan, also between microbatches
and between steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from cloud._jax import shaped
from cloud.parallel.graph import Graph, Loop, Split
from cloud.parallel.plan import Assignment, Estimate, Mesh, Plan
from cloud.parallel.running.apply import emitted
from cloud.parallel.searching.options import degree
from cloud.parallel.searching.predict import predict
from cloud.parallel.searching.search import Pin, search
from cloud.parallel.staged.packing import TENSOR
from cloud.parallel.staged.programs import Arrays, Programs, is_float
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import digest, trace

__all__ = ["Half", "Inside", "inside", "restricted", "unsplit"]

_SPEC: Any = jax.sharding.PartitionSpec
_lie_as: Any = jax.lax.with_sharding_constraint

SECONDS = 20.0
"""Seconds for the plan of one stage."""


@dataclass(frozen=True, eq=False)
class Half:
    """One direction of a stage: a graph with the arguments of the stage's step, its plan and its cost."""

    graph: Graph
    plan: Plan
    topology: Topology

    @property
    def estimate(self) -> Estimate:
        """Collectives of one microbatch; axis 0 is the devices of the stage."""
        return self.plan.estimate

    @property
    def flops(self) -> float:
        """The cost on one device."""
        ops = zip(self.graph.ops, self.plan.ops, strict=True)
        return sum(op.flops / degree(sum(one.loops, ()), self.plan.mesh) for op, one in ops)

    def run(self, arguments: Arrays) -> list[Any]:
        """From the step's flat arguments to its flat results, inside a pipeline-parallel program."""
        given = [_lying(array, split) for array, split in zip(arguments, self.plan.entering, strict=True)]
        return emitted(self.graph, self.plan, self.topology, _lying)(given)


@dataclass(frozen=True, eq=False)
class Inside:
    """One stage on some devices. Arguments of both directions: `after` (gradients of the values sent), `came`,
    `params`, and the inputs from outside. `dims`: the split dimension of each parameter, None if it is whole."""

    forward: Half
    backward: Half
    dims: tuple[int | None, ...]


def inside(
    programs: Programs, number: int, width: int, topology: Topology, *, known: Mapping[int, int | None],
    expert: str = "", reduce_scatter: bool = True, end: float = np.inf,
) -> Inside:  # fmt: skip
    """The best plan of stage `number` on `width` devices of the topology's fastest links. `known`: splits of
    parameters, by number, already fixed by other stages. `expert`: see `cloud.parallel.searching.expert`. `end`: by
    `time.monotonic`, of the search, which takes at most `SECONDS`. Raises `PlanError` if there is no plan."""
    stage = programs.stages[number]
    params = programs.avals(stage.params)
    after = [v.aval for v in stage.gives if is_float(v.aval)]
    state = {"after": after, "came": [v.aval for v in stage.takes], "params": params}
    outside = [programs.line.jaxpr.invars[i].aval for i in programs.outside(number)]
    shapes = jax.tree.map(lambda a: shaped(a.shape, a.dtype), (state, outside))
    step = _step(programs, number)
    graph = _rigid(trace(step, *shapes, loops=False))
    crossing = {"after": stage.goes.floats.dims, "came": stage.came.dims}
    pins = [_pin(name, i, state[name][i], dim) for name, dims in crossing.items() for i, dim in enumerate(dims)]
    places = {i: place for place, i in enumerate(stage.params)}
    pins += [_pin("params", places[i], params[places[i]], dim) for i, dim in known.items() if i in places]
    mesh = Mesh((width,), (len(topology.levels) - 1,))
    plan = unsplit(graph, mesh) if width == 1 else search(
        graph, topology, memory=np.inf, meshes=[mesh], pins=pins, expert=expert,
        seconds=max(min(SECONDS, end - time.monotonic()), 1.0),
        backend="gpu" if reduce_scatter else "cpu",
    )  # fmt: skip
    new, (integers, sums) = _numbers(jax.eval_shape(step, *shapes))
    forward, backward = (
        _half(graph, plan, topology, results, reduce_scatter)
        for results in ([*new["after"], *integers], [*new["came"], *new["params"], sums])
    )
    named = [(graph.values[v].name, split) for v, split in zip(graph.entering, plan.entering, strict=True)]
    return Inside(forward, backward, tuple(_dim(split) for name, split in named if name.startswith("params.")))


def _rigid(graph: Graph) -> Graph:
    """The graph with loops that slide whole: stages run in branches, where no others can exchange edges."""
    ops = [replace(op, loops=tuple(Loop(1) if n == op.slides else loop for n, loop in enumerate(op.loops)))
           for op in graph.ops]  # fmt: skip
    return replace(graph, ops=tuple(ops))


def unsplit(graph: Graph, mesh: Mesh) -> Plan:
    """Nothing split."""

    def lies(values: Sequence[int]) -> tuple[Split, ...]:
        return tuple(((),) * len(graph.values[v].shape) for v in values)

    ops = tuple(Assignment(((),) * len(op.loops), lies(op.outputs)) for op in graph.ops)
    return Plan(mesh, lies(graph.entering), ops, Estimate(0.0, 0.0, 0.0, 0, 0), digest(graph), "")


def restricted(graph: Graph, plan: Plan, results: Sequence[int]) -> tuple[Graph, Plan]:
    """The part of a planned step that these results need; its arguments stay."""
    wanted = {graph.leaving[j] for j in results}
    kept = set[int]()
    for k in range(len(graph.ops) - 1, -1, -1):
        if not wanted.isdisjoint(graph.ops[k].outputs):
            kept.add(k)
            wanted.update(graph.ops[k].inputs)
    order = sorted(kept)
    jaxpr = graph.jaxpr.jaxpr
    part = jaxpr.replace(eqns=[jaxpr.eqns[k] for k in order], outvars=[jaxpr.outvars[j] for j in results])
    cut = replace(
        graph, ops=tuple(graph.ops[k] for k in order), leaving=tuple(graph.leaving[j] for j in results),
        carried=tuple(graph.carried[j] for j in results), jaxpr=graph.jaxpr.replace(jaxpr=part),
    )  # fmt: skip
    return cut, replace(plan, ops=tuple(plan.ops[k] for k in order), graph=digest(cut))


def _half(graph: Graph, plan: Plan, topology: Topology, results: Sequence[int], reduce_scatter: bool) -> Half:
    cut, part = restricted(graph, plan, results)
    estimate = predict(cut, part, topology, reduce_scatter=reduce_scatter)
    return Half(cut, replace(part, estimate=estimate), topology)


def _step(programs: Programs, number: int) -> Any:
    """The step of a stage: `(state, outside) -> (state, (integers sent, sums))`. Gradients take the places of their
    values, and the values sent those of their gradients, so that both are sharded in the same way."""
    stage = programs.stages[number]

    def step(state: Any, outside: Any) -> Any:
        params, came = state["params"], state["came"]
        own, back, sums, gives = programs.both(number, params, outside, came, state["after"])
        new = {
            "after": [v for v in gives if is_float(v)],
            "came": _replaced(came, back, [is_float(v) for v in came]),
            "params": _replaced(params, own, [i in programs.trained for i in stage.params]),
        }
        return new, ([v for v in gives if not is_float(v)], sums)

    return step


def _replaced(values: Arrays, new: Arrays, chosen: Sequence[bool]) -> list[Any]:
    source = iter(new)
    return [next(source) if taken else value for value, taken in zip(values, chosen, strict=True)]


def _numbers(tree: Any) -> Any:
    """The tree with numbers as leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, range(len(leaves)))


def _pin(name: str, index: int, aval: Any, dim: int | None) -> Pin:
    return Pin(f"{name}.{index}", tuple((0,) if d == dim else () for d in range(len(aval.shape))))


def _dim(split: Split) -> int | None:
    return next((dim for dim, axes in enumerate(split) if axes), None)


def _lying(array: Any, split: Split) -> Any:
    """Keys of random generators are always whole."""
    if not isinstance(array.dtype, np.dtype):
        return array
    return _lie_as(array, _SPEC(*(TENSOR if axes else None for axes in split)))
