"""A training step, traced once, as a graph of operators and their loops."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import dtypes
from jax.extend import core

from cloud._jax import written_at
from cloud.errors import PlanError
from cloud.parallel.graph import Body, Graph, Op, Value
from cloud.parallel.tracing.bodies import CARRY, CLOSE, STACK, opened
from cloud.parallel.tracing.inline import flat
from cloud.parallel.tracing.rules import describe

__all__ = ["digest", "trace", "variants"]


def trace(step: Callable[..., Any], *args: Any, state_argument: int | None = 0, unroll: bool = False,
          loops: bool = True, parts: int = 1) -> Graph:  # fmt: skip
    """The graph of `step(*args)`; arguments are trees of arrays or `jax.ShapeDtypeStruct`s, nothing is computed.

    Argument `state_argument` is carried: the step's result, or the first of several, is its next value and must be of
    the same tree, shapes and dtypes (else PlanError). None: nothing is carried, all arguments are the batch.
    `unroll`: scans of up to 64 trips (stacks of layers) are unrolled, each trip planned by itself. `loops`: the bodies
    of other loops are part of the graph; else each loop is one operator. `parts`: what loops add up over the batch is
    kept in that many parts, which devices may hold without combining them in each trip (`tracing.sums`).
    Names of inputs are paths: "params.w1" within the state, "batch.x" within an argument called batch."""
    closed, results = jax.make_jaxpr(step, return_shape=True)(*args)
    entering = _entering(step, args, state_argument)
    carried = _carried(args, results, state_argument)
    inlined = flat(closed, unroll=unroll, parts=parts)
    return _graph(*(opened(inlined, parts) if loops else (inlined, ())), entering, carried)


def variants(step: Callable[..., Any], *args: Any, sizes: Sequence[int] = ()) -> dict[int, Graph]:
    """The graphs of `trace(step, *args, parts=n)` by their number of parts: 1, and those of `sizes` that make a
    difference."""
    found = {1: trace(step, *args)}
    if found[1].bodies:
        known = {digest(found[1])}
        for parts in sizes:
            graph = trace(step, *args, parts=parts)
            if digest(graph) not in known:
                known.add(digest(graph))
                found[parts] = graph
    return found


def digest(graph: Graph) -> str:
    """The identity of the step a plan is made for: BLAKE2b of values, operators and their loops; the same in every
    process, and for steps that differ only in line numbers or in constants."""
    state = hashlib.blake2b(digest_size=16)
    for value in graph.values:
        state.update(repr((value.shape, str(value.dtype), value.kind, value.name)).encode())
    for op in graph.ops:
        loops = tuple((loop.size, loop.reduces) for loop in op.loops)
        state.update(repr((op.primitive, op.inputs, op.outputs, loops, op.reads, op.writes, op.times)).encode())
    state.update(repr((graph.entering, graph.leaving, graph.carried)).encode())
    if graph.bodies:
        state.update(repr([(each.start, each.stop, each.trips, each.outer) for each in graph.bodies]).encode())
    return state.hexdigest()


def _entering(step: Callable[..., Any], args: Sequence[Any], state_argument: int | None) -> list[tuple[str, str]]:
    """Kind and name of every leaf of the arguments."""
    roles = _roles(step, len(args))
    made = []
    for i, tree in enumerate(args):
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if i == state_argument:
                made.append(("state", name or roles[i]))
            else:
                made.append(("batch", f"{roles[i]}.{name}" if name else roles[i]))
    return made


def _roles(step: Callable[..., Any], count: int) -> list[str]:
    """The names of the arguments, as far as the function's signature gives them."""
    try:
        parameters = inspect.signature(step).parameters.values()
        names = [each.name for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument{i}" for i in range(count)]


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def _carried(args: Sequence[Any], results: Any, state_argument: int | None) -> list[int | None]:
    leaves = jax.tree.leaves(results)
    if state_argument is None:
        return [None] * len(leaves)
    state = args[state_argument]
    before = len(jax.tree.leaves(list(args[:state_argument])))
    old, tree = jax.tree_util.tree_flatten_with_path(state)
    new = results[0] if isinstance(results, tuple) and results and _structure(results) != tree else results
    if _structure(new) != tree:
        raise PlanError(
            f"the step's first result should be the next state, a tree like {tree}; got a tree like"
            f" {_structure(new)}; return (state, metrics), or set state_argument=None"
        )
    for (path, was), now in zip(old, jax.tree.leaves(new), strict=True):
        if (was.shape, was.dtype) != (now.shape, now.dtype):
            raise PlanError(
                f"the state's {jax.tree_util.keystr(path)} enters as {was.dtype}{list(was.shape)} and leaves as"
                f" {now.dtype}{list(now.shape)}; the state must keep its shapes and dtypes"
            )
    return [before + j if j < len(old) else None for j in range(len(leaves))]


def _graph(closed: Any, bodies: Sequence[Body], entering: Sequence[tuple[str, str]],
           carried: Sequence[int | None]) -> Graph:  # fmt: skip
    jaxpr = closed.jaxpr
    values: list[Value] = []
    numbers: dict[Any, int] = {}

    def added(atom: Any, kind: str = "computed", name: str = "", inside: int = -1) -> int:
        values.append(Value(tuple(getattr(atom.aval, "shape", ())), _dtype(atom.aval), kind, name, inside))
        return len(values) - 1

    def number(var: Any, *about: Any) -> int:
        numbers[var] = added(var, *about)
        return numbers[var]

    def leaving(atom: Any) -> int:
        return added(atom, "constant") if isinstance(atom, core.Literal) else numbers[atom]

    for var in jaxpr.constvars:
        number(var, "constant")
    arguments = tuple(number(var, *about) for var, about in zip(jaxpr.invars, entering, strict=True))
    ops, homes, times = [], _homes(bodies, len(jaxpr.eqns)), {-1: 1}
    for b, body in enumerate(bodies):
        times[b] = times[body.outer] * body.trips
    for eqn, home in zip(jaxpr.eqns, homes, strict=True):
        inputs = tuple(-1 if isinstance(atom, core.Literal) else numbers[atom] for atom in eqn.invars)
        lives = home
        if eqn.primitive.name == CARRY:
            lives = eqn.params["body"]
        elif eqn.primitive.name in (CLOSE, STACK):
            lives = bodies[home].outer
        outputs = tuple(number(var, "computed", "", lives) for var in eqn.outvars)
        nest = describe(eqn)
        ops.append(Op(eqn.primitive.name, inputs, outputs, nest.loops, nest.reads, nest.writes, nest.flops,
                      nest.follows, times[home], written_at(eqn.source_info), home, nest.slides,
                      nest.edges))  # fmt: skip
    results = tuple(leaving(atom) for atom in jaxpr.outvars)
    return Graph(tuple(values), tuple(ops), arguments, results, tuple(carried), closed, tuple(bodies))


def _homes(bodies: Sequence[Body], count: int) -> list[int]:
    """The innermost body of each operator; a body comes after those around it."""
    found = [-1] * count
    for b, body in enumerate(bodies):
        found[body.start : body.stop] = [b] * (body.stop - body.start)
    return found


def _dtype(aval: Any) -> np.dtype[Any]:
    """Random keys count as their bits, tokens as 0."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return np.dtype("V0")
    return np.dtype(f"V{dtype.itemsize}" if jnp.issubdtype(dtype, dtypes.prng_key) else dtype)
