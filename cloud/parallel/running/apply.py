"""Applying a plan: the step's equations emitted again, every value constrained to the plan's sharding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from cloud._jax import auto_mesh, bound, everywhere, is_literal, split_over
from cloud.errors import PlanError
from cloud.parallel.cost import landing, route
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Mesh, Plan
from cloud.parallel.running.sliding import slid
from cloud.parallel.searching.options import partial_axes, wanted
from cloud.parallel.searching.walk import lying, reading_times
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.bodies import CARRY, CLOSE, SLICE, STACK, TEST
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
    """A planned step. `step(state, batch)` returns the results of the user's step; it consumes the given state. `said`:
    what was compiled to choose the plan, or why nothing was; "" for a plan that was given."""

    plan: Plan
    graph: Graph
    mesh: jax.sharding.Mesh
    arguments: tuple[Any, ...]
    shardings: tuple[Any, ...]
    compiled: Any = field(repr=False)
    state_argument: int = 0
    said: str = ""

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
    _check_inner_meshes(graph, mesh)
    leaves, tree = jax.tree.flatten(tuple(arguments))
    shardings = jax.tree.unflatten(tree, [split_over(mesh, split) for split in plan.entering])
    out_tree = jax.tree.structure(results)
    ends = [everywhere(mesh) if a is None else split_over(mesh, plan.entering[a]) for a in graph.carried]
    emit = emitted(graph, plan, topology, lambda array, split: _lie_as(array, split_over(mesh, split)), mesh)

    def step(*given: Any) -> Any:
        return jax.tree.unflatten(out_tree, emit(jax.tree.leaves(given)))

    compiled = jax.jit(
        step, in_shardings=shardings, out_shardings=jax.tree.unflatten(out_tree, ends), donate_argnums=state_argument
    )
    places = jax.tree.leaves(shardings)
    # With these shardings the program that `lower().compile()` makes is the one that the step runs.
    shapes = [_Shape(leaf.shape, leaf.dtype, sharding=at) for leaf, at in zip(leaves, places, strict=True)]
    return Applied(plan, graph, mesh, jax.tree.unflatten(tree, shapes), shardings, compiled, state_argument)


def _check_inner_meshes(graph: Graph, mesh: jax.sharding.Mesh) -> None:
    """A `shard_map` of the user's is kept as it is: it must be over the plan's devices."""
    for op, eqn in zip(graph.ops, graph.jaxpr.jaxpr.eqns, strict=True):
        inner = eqn.params.get("mesh") if eqn.primitive.name == "shard_map" else None
        if isinstance(inner, jax.sharding.Mesh) and set(inner.devices.flat) != set(mesh.devices.flat):
            raise PlanError(
                f"the step has a shard_map over {inner.size} devices ({inner.devices.flat[0].platform}) at {op.where}; "
                f"the plan is for {mesh.size} ({mesh.devices.flat[0].platform}): give it a mesh of the same devices, "
                "or leave that split to the planner"
            )


Flat = Callable[[Sequence[Any]], list[Any]]
"""A step from flat arguments to flat results."""


Lie = Callable[[Any, Split], Any]
"""(array, split) -> the array, constrained to the split."""


def emitted(
    graph: Graph, plan: Plan, topology: Topology, constrained: Lie, mesh: jax.sharding.Mesh | None = None
) -> Flat:
    """A function from the step's flat arguments to its flat results, with all constraints. `mesh`: for plans that split
    loops that slide."""
    consts = graph.jaxpr.consts
    constants = [v for v, value in enumerate(graph.values) if value.kind == "constant"][: len(consts)]
    outvars = graph.jaxpr.jaxpr.outvars
    lies = lying(graph, plan)
    ends = [lies[v] if a is None else plan.entering[a] for v, a in zip(graph.leaving, graph.carried, strict=True)]

    def run(arguments: Sequence[Any]) -> list[Any]:
        arrays: dict[int, Any] = dict(zip(constants, consts, strict=True))
        arrays.update(zip(graph.entering, arguments, strict=True))
        emission = _Emission(graph, plan, topology, constrained, mesh, arrays, {})
        emission.emit(-1, 0, len(graph.ops))
        return [
            atom.val if is_literal(atom) else emission.seen(value, split, 0)
            for atom, value, split in zip(outvars, graph.leaving, ends, strict=True)
        ]

    return run


class _Emission:
    """The arrays of one body, or of the whole step, while its equations are emitted. `moved`: the copies in other
    splits, by (value, split, reading time)."""

    def __init__(self, graph: Graph, plan: Plan, topology: Topology, constrained: Lie,
                 mesh: jax.sharding.Mesh | None, arrays: dict[int, Any],
                 moved: dict[tuple[int, Split, int], Any]) -> None:  # fmt: skip
        self.graph, self.plan, self.topology, self.constrained = graph, plan, topology, constrained
        self.mesh = mesh
        self.arrays, self.moved = arrays, moved
        self.lies = lying(graph, plan)
        self.times = reading_times(graph) if plan.regather else {}
        self.rows = {row[0]: row for row in _barriers(graph)}

    def within(self, carry: Mapping[int, Any]) -> _Emission:
        """For a body inside this one: it sees these arrays and copies, and keeps its own to itself. `carry`: what a
        trip reads in place of the initial values, whose copies are not its own."""
        moved = {key: array for key, array in self.moved.items() if key[0] not in carry}
        about = self.graph, self.plan, self.topology, self.constrained, self.mesh
        return _Emission(*about, {**self.arrays, **carry}, moved)

    def seen(self, value: int, split: Split, time: int) -> Any:
        """The value with this split; made once for all readers of one reading time."""
        if split == self.lies[value]:
            return self.arrays[value]
        if (value, split, time) not in self.moved:
            about = self.graph.values[value]
            array = _apart(self.arrays[value]) if time else self.arrays[value]
            stops = route(about.shape, about.dtype.itemsize, self.lies[value], split, self.plan.mesh, self.topology)
            self.moved[value, split, time] = functools.reduce(self.constrained, stops, array)
        return self.moved[value, split, time]

    def operand(self, k: int, i: int) -> Any:
        op, value = self.graph.ops[k], self.graph.ops[k].inputs[i]
        if value < 0:
            return self.graph.jaxpr.jaxpr.eqns[k].invars[i].val
        return self.seen(value, wanted(op, i, self.plan.ops[k].loops), self.times.get((k, i), 0))

    def operands(self, k: int) -> list[Any]:
        return [self.operand(k, i) for i in range(len(self.graph.ops[k].inputs))]

    def emit(self, body: int, start: int, stop: int) -> None:
        """Operators `start` to `stop` - 1 of `body`, with the loops among them."""
        inner = {one.start: b for b, one in enumerate(self.graph.bodies) if one.outer == body}
        held_up: dict[int, Any] = {}
        k = start
        while k < stop:
            if k in inner:
                self.loop(inner[k])
                k = self.graph.bodies[inner[k]].stop
                continue
            if k in self.rows:
                held_up.update(zip(self.rows[k], _apart([self.operand(j, 0) for j in self.rows[k]]), strict=True))
            if self.graph.ops[k].primitive in (SLICE, CLOSE, STACK, TEST):
                k += 1  # by `loop`
                continue
            self.land(k, [held_up.pop(k)] if k in held_up else self.bound(k))
            k += 1

    def bound(self, k: int) -> list[Any]:
        eqn, operands = self.graph.jaxpr.jaxpr.eqns[k], self.operands(k)
        op, assignment = self.graph.ops[k], self.plan.ops[k]
        if op.slides >= 0 and assignment.loops[op.slides] and self.mesh is not None:
            return slid(eqn, op, assignment, self.plan.mesh, self.mesh)(*operands)
        if self.graph.ops[k].primitive == CARRY:
            return [jnp.asarray(operands[0], eqn.outvars[0].aval.dtype) if is_literal(eqn.invars[0]) else operands[0]]
        return bound(eqn, operands)

    def land(self, k: int, results: Sequence[Any]) -> None:
        """Constrains the results of operator k to the plan's split."""
        op, assignment = self.graph.ops[k], self.plan.ops[k]
        for j, (value, result) in enumerate(zip(op.outputs, results, strict=True)):
            about, parts = self.graph.values[value], partial_axes(op, j, assignment.loops)
            whole = about.shape, about.dtype.itemsize
            stops = landing(*whole, parts, assignment.results[j], self.plan.mesh, self.topology)
            self.arrays[value] = functools.reduce(self.constrained, stops, result)

    def loop(self, body: int) -> None:
        """A whole loop: its operands are moved before it, its body emitted once."""
        graph, one = self.graph, self.graph.bodies[body]
        ties = {name: [k for k in range(one.start, one.stop) if graph.ops[k].inside == body
                       and graph.ops[k].primitive == name] for name in (SLICE, CLOSE, STACK)}  # fmt: skip
        carried = [graph.ops[k].inputs[1] for k in ties[CLOSE]]
        if len({*carried}) != len(carried):
            raise PlanError(f"a carry of the loop at {graph.ops[one.start].where} is closed twice")
        for k in range(one.start, one.stop):
            for i, value in enumerate(graph.ops[k].inputs):
                if value in self.arrays and value not in carried:
                    self.operand(k, i)

        def opened(carry: Sequence[Any], slices: Sequence[Any]) -> _Emission:
            constrained = map(self.constrained, carry, (self.lies[value] for value in carried))
            inside = self.within(dict(zip(carried, constrained, strict=True)))
            for k, array in zip(ties[SLICE], slices, strict=True):
                inside.land(k, [array])
            return inside

        def trip(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            inside = opened(carry, slices)
            inside.emit(body, one.start, one.stop)
            last, made = ([_shaped_like(graph, k, inside.operand(k, 0)) for k in ties[name]] for name in (CLOSE, STACK))
            return last, made

        start = [self.arrays[value] for value in carried]
        if one.bounded:
            stacks = [self.operand(k, 0) for k in ties[SLICE]]
            ends, made = jax.lax.scan(trip, start, stacks, one.trips, one.loop.params["reverse"],
                                      one.loop.params["unroll"])  # fmt: skip
        else:
            ends, made = jax.lax.while_loop(self._test(body, carried), lambda carry: trip(carry, ())[0], start), []
        for k, array in zip([*ties[CLOSE], *ties[STACK]], [*ends, *made], strict=True):
            self.land(k, [array])

    def _test(self, body: int, carried: Sequence[int]) -> Callable[[Any], Any]:
        """The condition of a `while`: of its arguments, those that it reads are operands of `loop_test`."""
        one = self.graph.bodies[body]
        k, closed, asks = one.start, one.loop.params["cond_jaxpr"], one.loop.params["cond_nconsts"]
        read = {atom for eqn in closed.jaxpr.eqns for atom in eqn.invars if not is_literal(atom)}
        read.update(atom for atom in closed.jaxpr.outvars if not is_literal(atom))
        places = dict(zip([n for n, var in enumerate(closed.jaxpr.invars) if var in read],
                          range(len(self.graph.ops[k].inputs)), strict=True))  # fmt: skip
        outside = {n: self.operand(k, i) for n, i in places.items() if n < asks}

        def test(carry: Sequence[Any]) -> Any:
            inside = self.within(dict(zip(carried, carry, strict=True)))
            given = [outside.get(n) if n < asks else inside.operand(k, places[n]) if n in places else carry[n - asks]
                     for n in range(len(closed.jaxpr.invars))]  # fmt: skip
            given = [jnp.zeros(var.aval.shape, var.aval.dtype) if each is None else each
                     for each, var in zip(given, closed.jaxpr.invars, strict=True)]  # fmt: skip
            return core.jaxpr_as_fun(closed)(*given)[0]

        return test


def _shaped_like(graph: Graph, k: int, array: Any) -> Any:
    """An operand of `loop_close` or `loop_stack`; a literal as an array of its type."""
    aval = graph.jaxpr.jaxpr.eqns[k].invars[0].aval
    return array if isinstance(array, jax.Array) else jnp.asarray(array, aval.dtype)


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
