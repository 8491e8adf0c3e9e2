"""Branches and loops over subgraphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lite_runtime.graph import Array, Graph, numpy_dtype
from lite_runtime.reference.registry import Context, define
from lite_runtime.reference.support import axis_of, optional_scalar, require, scalar

__all__: list[str] = []


@define("If")
def _if(condition: Array, /, then_branch: Graph, else_branch: Graph, *, context: Context) -> tuple[Any, ...]:
    branch = then_branch if scalar(condition, "cond") else else_branch
    return tuple(context.run_graph(branch, []))


@define("Loop")
def _loop(
    trips: Array | None = None,
    condition: Array | None = None,
    /,
    *carried: Any,
    body: Graph,
    context: Context,
) -> tuple[Any, ...]:
    """The body takes (iteration, condition, carried…) and returns (condition, carried…, scanned…).

    Runs at most `trips` times and while the condition holds; forever if neither is given. Scanned values are stacked
    along a new first axis; after zero iterations their inner sizes are the body's static ones.
    """
    most = optional_scalar(trips, None, "M")
    going = bool(optional_scalar(condition, True, "cond"))
    scanned: list[list[Any]] = [[] for _ in body.outputs[1 + len(carried) :]]
    state, i = list(carried), 0
    while going and (most is None or i < most):
        results = context.run_graph(body, [np.array(i, np.int64), np.array(going), *state])
        going = bool(scalar(results[0], "the body's condition"))
        state = results[1 : 1 + len(carried)]
        for rows, row in zip(scanned, results[1 + len(carried) :], strict=True):
            rows.append(row)
        i += 1
    outputs = body.outputs[1 + len(carried) :]
    return (*state, *(_stacked(rows, out.dtype, out.shape, 0) for rows, out in zip(scanned, outputs, strict=True)))


def _stacked(rows: list[Any], dtype: str, shape: Sequence[Any] | None, axis: int) -> Array:
    if rows:
        return np.stack(rows, axis)
    inner = [n if isinstance(n, int) else 0 for n in shape or ()]
    return np.zeros((0, *inner), numpy_dtype(dtype))


@define("Scan")
def _scan(
    *inputs: Any,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    context: Context,
) -> tuple[Any, ...]:
    """The body takes (state…, one slice of each scan input…) and returns (state…, one slice of each scan output…)."""
    count = len(inputs) - num_scan_inputs
    require(count >= 0, f"expected at least {num_scan_inputs} inputs, got {len(inputs)}")
    state, sequences = list(inputs[:count]), inputs[count:]
    axes = scan_input_axes or (0,) * num_scan_inputs
    backwards = scan_input_directions or (0,) * num_scan_inputs
    ordered = []
    for x, axis, back in zip(sequences, axes, backwards, strict=True):
        first = np.moveaxis(x, axis_of(axis, x.ndim), 0)
        ordered.append(first[::-1] if back else first)
    lengths = {len(x) for x in ordered}
    require(len(lengths) == 1, f"expected scan inputs of one length, got {sorted(lengths)}")
    collected: list[list[Any]] = [[] for _ in body.outputs[count:]]
    for row in zip(*ordered, strict=True):
        results = context.run_graph(body, [*state, *(np.asarray(r) for r in row)])
        state = results[:count]
        for rows, y in zip(collected, results[count:], strict=True):
            rows.append(y)
    out_axes = scan_output_axes or (0,) * len(collected)
    out_back = scan_output_directions or (0,) * len(collected)
    outputs = []
    for rows, value, axis, back in zip(collected, body.outputs[count:], out_axes, out_back, strict=True):
        rank = rows[0].ndim + 1 if rows else len(value.shape or ()) + 1
        outputs.append(_stacked(rows[::-1] if back else rows, value.dtype, value.shape, axis_of(axis, rank)))
    return (*state, *outputs)


@define("SequenceMap")
def _sequence_map(*inputs: Any, body: Graph, context: Context) -> tuple[Any, ...]:
    """Apply the body to the elements of the first sequence and of further sequences; tensors are passed to every
    call."""
    require(len(inputs) > 0, "expected a sequence, got no input")
    length = len(inputs[0])
    lists = [x for x in inputs if isinstance(x, list)]
    require(all(len(x) == length for x in lists), f"expected sequences of one length, got {[len(x) for x in lists]}")
    rows = [context.run_graph(body, [x[i] if isinstance(x, list) else x for x in inputs]) for i in range(length)]
    return tuple([row[j] for row in rows] for j in range(len(body.outputs)))
