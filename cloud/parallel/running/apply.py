"""Applying a plan: the step's equations emitted again, every value constrained to the plan's sharding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud._jax import auto_mesh, bound, everywhere, is_literal, split_over
from cloud.errors import PlanError
from cloud.parallel.cost import landing, route
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.searching.options import partial_axes, wanted
from cloud.parallel.searching.walk import lying, reading_times
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import digest

__all__ = ["Applied", "Lie", "apply", "emitted", "mesh_of"]

_Shape: Any = jax.ShapeDtypeStruct
_apart: Any = jax.lax.optimization_barrier
_lie_as: Any = jax.lax.with_sharding_constraint


def mesh_of(mesh: Mesh, devices: Sequence[Any]) -> jax.sharding.Mesh:
    """`mesh` over these devices, its axes named m0, m1, ... Raises `PlanError` where their number differs."""
    size = int(np.prod(mesh.sizes))
    if len(devices) != size:
        sizes = " x ".join(map(str, mesh.sizes))
        raise PlanError(f"the plan is for {size} devices ({sizes}); got {len(devices)}: make a new plan")
    return auto_mesh(np.array(devices).reshape(mesh.sizes), tuple(f"m{axis}" for axis in range(len(mesh.sizes))))


@dataclass(frozen=True)
class Applied:
    """A planned step. `step(state, batch)` returns the results of the user's step; it consumes the given state."""

    plan: Plan
    graph: Graph
    mesh: jax.sharding.Mesh
    arguments: tuple[Any, ...]
    shardings: tuple[Any, ...]
    compiled: Any = field(repr=False)
    state_argument: int = 0

    def step(self, *arguments: Any) -> Any:
        """One step; arguments are those of the traced step, on the devices or not."""
        return self.compiled(*arguments)

    def place(self, state: Any) -> Any:
        """A copy of the state on the devices, sharded as planned."""
        # Replicated arrays would keep their buffer on the first device, which the step then donates.
        return jax.device_put(jax.tree.map(jnp.copy, state), self.shardings[self.state_argument])

    def place_batch(self, batch: Any, argument: int = 1) -> Any:
        """A batch on the devices."""
        return jax.device_put(batch, self.shardings[argument])

    def gather(self, state: Any) -> Any:
        """The state, replicated to every device, also those of other processes."""
        return jax.jit(lambda tree: tree, out_shardings=everywhere(self.mesh))(state)

    def lower(self) -> Any:
        """The step lowered for the mesh's devices, which need not be present."""
        return self.compiled.lower(*self.arguments)


def apply(graph: Graph, plan: Plan, topology: Topology, arguments: Sequence[Any], results: Any,
          devices: Sequence[Any] | None = None, state_argument: int = 0) -> Applied:  # fmt: skip
    """`arguments`: trees like those traced; `results`: the tree of the step's results. Raises `PlanError` for a
    plan made for another step or another number of devices."""
    if plan.graph != digest(graph):
        this = digest(graph)[:8]
        raise PlanError(f"the plan was made for another step (graph {plan.graph[:8]}, this is {this}): make a new plan")
    mesh = mesh_of(plan.mesh, devices if devices is not None else jax.devices())
    leaves, tree = jax.tree.flatten(tuple(arguments))
    shardings = jax.tree.unflatten(tree, [split_over(mesh, split) for split in plan.entering])
    out_tree = jax.tree.structure(results)
    ends = [everywhere(mesh) if a is None else split_over(mesh, plan.entering[a]) for a in graph.carried]
    emit = emitted(graph, plan, topology, lambda array, split: _lie_as(array, split_over(mesh, split)))

    def step(*given: Any) -> Any:
        return jax.tree.unflatten(out_tree, emit(jax.tree.leaves(given)))

    compiled = jax.jit(
        step, in_shardings=shardings, out_shardings=jax.tree.unflatten(out_tree, ends), donate_argnums=state_argument
    )
    shapes = [_Shape(leaf.shape, leaf.dtype) for leaf in leaves]
    return Applied(plan, graph, mesh, jax.tree.unflatten(tree, shapes), shardings, compiled, state_argument)


Flat = Callable[[Sequence[Any]], list[Any]]
"""A step from flat arguments to flat results."""


Lie = Callable[[Any, Split], Any]
"""(array, split) -> the array, constrained to the split."""


def emitted(graph: Graph, plan: Plan, topology: Topology, constrained: Lie) -> Flat:
    """A function from the step's flat arguments to its flat results, with all constraints."""
    lies = lying(graph, plan)
    times = reading_times(graph) if plan.regather else {}
    jaxpr, consts = graph.jaxpr.jaxpr, graph.jaxpr.consts
    constants = [v for v, value in enumerate(graph.values) if value.kind == "constant"][: len(consts)]
    rows = {row[0]: row for row in _barriers(graph)}

    def run(arguments: Sequence[Any]) -> list[Any]:
        arrays: dict[int, Any] = dict(zip(constants, consts, strict=True))
        arrays.update(zip(graph.entering, arguments, strict=True))
        moved: dict[tuple[int, Split, int], Any] = {}

        def seen(value: int, split: Split, time: int) -> Any:
            """The value with this split; made once for all readers of one reading time."""
            if split == lies[value]:
                return arrays[value]
            if (value, split, time) not in moved:
                about = graph.values[value]
                array = _apart(arrays[value]) if time else arrays[value]
                for stop in route(about.shape, about.dtype.itemsize, lies[value], split, plan.mesh, topology):
                    array = constrained(array, stop)
                moved[value, split, time] = array
            return moved[value, split, time]

        def operands(k: int) -> list[Any]:
            op, loops = graph.ops[k], plan.ops[k].loops
            return [
                atom.val if value < 0 else seen(value, wanted(op, i, loops), times.get((k, i), 0))
                for i, (atom, value) in enumerate(zip(jaxpr.eqns[k].invars, op.inputs, strict=True))
            ]

        held_up: dict[int, Any] = {}
        for k, (eqn, op, assignment) in enumerate(zip(jaxpr.eqns, graph.ops, plan.ops, strict=True)):
            if k in rows:
                held_up.update(zip(rows[k], _apart([operands(j)[0] for j in rows[k]]), strict=True))
            results = [held_up.pop(k)] if k in held_up else bound(eqn, operands(k))
            for j, (value, result) in enumerate(zip(op.outputs, results, strict=True)):
                about, parts = graph.values[value], partial_axes(op, j, assignment.loops)
                stops = landing(about.shape, about.dtype.itemsize, parts, assignment.results[j], plan.mesh, topology)
                arrays[value] = functools.reduce(constrained, stops, result)
        ends = [lies[v] if a is None else plan.entering[a] for v, a in zip(graph.leaving, graph.carried, strict=True)]
        return [
            atom.val if is_literal(atom) else seen(value, split, 0)
            for atom, value, split in zip(jaxpr.outvars, graph.leaving, ends, strict=True)
        ]

    return run


def _barriers(graph: Graph) -> Iterator[range]:
    """Consecutive independent optimisation barriers: those of one recomputed segment, one operator for each value
    (`tracing.inline`). Emitted as one barrier, they delay the whole recomputation until the incoming gradients are
    there, so that its values do not occupy memory long before."""
    start, made = 0, set[int]()
    for k, op in enumerate(graph.ops):
        alone = op.primitive == "optimization_barrier" and len(op.inputs) == 1
        if not alone or made.intersection(op.inputs):
            if k > start:
                yield range(start, k)
            start, made = (k, set()) if alone else (k + 1, set())
        if alone:
            made.update(op.outputs)
