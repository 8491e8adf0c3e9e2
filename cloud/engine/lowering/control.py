"""If, Loop and Scan. Conditions known while tracing are decided then; the others use `lax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from cloud.engine.lowering.registry import Context, Program, Tensor, is_static, lowering
from cloud.errors import EngineError

__all__: list[str] = []


@lowering("If")
def if_else(condition: Tensor, *, context: Context, then_branch: Program, else_branch: Program) -> tuple[Tensor, ...]:
    """A dynamic condition needs branches whose results have the same shapes and dtypes."""
    if is_static(condition):
        return tuple(context.run(then_branch if np.asarray(condition).reshape(()) else else_branch, ()))
    branches = [lambda program=p: tuple(map(jnp.asarray, context.run(program, ()))) for p in (then_branch, else_branch)]
    return tuple(lax.cond(jnp.reshape(condition, ()), *branches))


def _always_goes_on(body: Program) -> bool:
    """Whether a Loop's body returns its condition unchanged."""
    made_by = {name: step for step in body.steps for name in step.outputs}
    name = body.outputs[0]
    while name in made_by and made_by[name].op == "Identity":
        name = made_by[name].inputs[0]
    if name in made_by and made_by[name].op == "Constant":
        held = made_by[name].attributes.get("value", made_by[name].attributes.get("value_int"))
        return bool(np.asarray(held).all())
    return name == body.inputs[1] or (name in body.constants and bool(body.constants[name].all()))


@lowering("Loop")
def loop(
    trips: Tensor | None, condition: Tensor | None, *carried: Tensor, context: Context, body: Program
) -> tuple[Tensor, ...]:
    """A known number of trips becomes a scan; otherwise a while-loop, which has no scan outputs and no reverse
    gradient."""
    count = len(carried)
    start = tuple(jnp.asarray(v) for v in carried)

    def once(i: Tensor, go: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        go_on, *rest = context.run(body, (i, go, *state), salt=i)
        same = tuple(jnp.asarray(new, old.dtype) for new, old in zip(rest[:count], state, strict=True))
        return jnp.reshape(go_on, ()), same, tuple(rest[count:])

    if trips is not None and is_static(trips) and (condition is None or is_static(condition)) and _always_goes_on(body):
        length = int(np.asarray(trips).reshape(())) if condition is None or np.asarray(condition).all() else 0

        def step(state: Any, i: Tensor) -> Any:
            _, after, scanned = once(i, jnp.array(True), state)
            return after, scanned

        last, stacked = lax.scan(step, start, jnp.arange(length))
        return *last, *stacked
    if len(body.outputs) - 1 > count:
        raise EngineError("a Loop whose trip count depends on data cannot have scan outputs: their shape is unknown")
    limit = np.iinfo(np.int32).max if trips is None else jnp.reshape(trips, ())
    first = jnp.array(True) if condition is None else jnp.reshape(condition, ())

    def turn(carry: Any) -> Any:
        i, go, state = carry
        go_on, after, _ = once(i, go, state)
        return i + 1, go_on, after

    _, _, last = lax.while_loop(lambda c: (c[0] < limit) & c[1], turn, (jnp.array(0), first, start))
    return tuple(last)


def _per(values: Sequence[int] | None, count: int) -> Sequence[int]:
    return values if values else (0,) * count


@lowering("Scan")
def scan(
    *operands: Tensor, context: Context, body: Program, num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None, scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None, scan_output_directions: Sequence[int] | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    states = len(operands) - num_scan_inputs
    outs = len(body.outputs) - states
    start = tuple(jnp.asarray(v) for v in operands[:states])
    axes, directions = (_per(values, num_scan_inputs) for values in (scan_input_axes, scan_input_directions))
    items = []
    for x, axis, backwards in zip(operands[states:], axes, directions, strict=True):
        moved = jnp.moveaxis(jnp.asarray(x), axis, 0)
        items.append(jnp.flip(moved, 0) if backwards else moved)

    def step(state: Any, item: Any) -> Any:
        i, xs = item
        results = context.run(body, (*state, *xs), salt=i)
        return tuple(map(jnp.asarray, results[:states])), tuple(map(jnp.asarray, results[states:]))

    last, stacked = lax.scan(step, start, (jnp.arange(items[0].shape[0]), tuple(items)))
    axes, directions = (_per(values, outs) for values in (scan_output_axes, scan_output_directions))
    results = []
    for y, axis, backwards in zip(stacked, axes, directions, strict=True):
        results.append(jnp.moveaxis(jnp.flip(y, 0) if backwards else y, 0, axis))
    return *last, *results
