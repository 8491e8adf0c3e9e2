"""The quantised model in float arithmetic, with everything that a search changes as inputs: compiled once, run with any
ranges.

A planned tensor becomes round(x / scale) between two bounds, times scale, minus a correction for each channel; scale,
bounds and corrections are given at each run. The correction is the mean error of the channel's rounding and clipping:
what biases absorb in the result. Weights are those integers that the quantiser will write, times their scales. What is
left out, the rounding of integer results and of biases, is the same for all ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.quantize.calibration.calibrate import LIMITS, Params
from converter.quantize.calibration.observe import Runner, channel_axis, channels
from converter.quantize.rounding import bias
from converter.quantize.rounding.weights import Quantized, per_channel
from converter.quantize.schemes import Plan, weight_place
from lite_runtime.graph import Array

__all__ = ["Simulation"]


@dataclass(frozen=True)
class _Rounding:
    """The names of the inputs of one tensor's rounding, and the shape of its correction."""

    scale: str
    low: str
    high: str
    shift: str
    shape: tuple[int, ...]


class Simulation:
    """`model` (float, not changed), quantised by `plan` with `weights` by initialiser name (missing ones are rounded to
    the nearest); None: weights stay float."""

    def __init__(
        self, model: ir.Model, plan: Plan, weights: Mapping[str, Quantized] | None, *, threads: int = 0
    ) -> None:
        copy = model.clone()
        build.adopt(copy)
        twins = dict(zip(build.nodes(model), build.nodes(copy), strict=True))  # those of subgraphs read values too
        values = {v.name: v for v in (*copy.graph.inputs, *(o for n in copy.graph for o in n.outputs)) if v.name}
        for node, scheme in plan.integer.items():
            if scheme.role == "contraction" and weights is not None:
                _round_weights(node, twins[node], weights)
        self._given = dict[ir.Value, _Rounding]()
        for value in plan.tensors:
            if plan.enters(value):
                readers = {twins[use.node] for use in value.uses() if plan.reads_integers(use.node, value)}
                self._given[value] = _insert(copy, value, values[value.name or ""], readers)
        self._runner = Runner(copy, (), threads=threads)

    def run(
        self, row: Mapping[str, Array], params: Mapping[ir.Value, Params], shifts: Mapping[ir.Value, Array]
    ) -> list[Array]:
        """The model's outputs, in order, for one row. `shifts`: corrections of tensors ([channels]), zero where
        missing."""
        given: dict[str, Array] = dict(row)
        for value, names in self._given.items():
            found, shift = params[value], shifts.get(value)
            low, high = LIMITS[found.dtype]
            given[names.scale] = np.asarray(found.scale, np.float32)
            given[names.low] = np.asarray(low - found.zero_point, np.float32)
            given[names.high] = np.asarray(high - found.zero_point, np.float32)
            zero = shift is None or shift.size != np.prod(names.shape)
            given[names.shift] = np.zeros(names.shape, np.float32) if zero else shift.reshape(names.shape)  # type: ignore[union-attr]
        return list(self._runner.run(given).values())


def _round_weights(node: ir.Node, twin: ir.Node, weights: Mapping[str, Quantized]) -> None:
    found = weight_place(node)
    if found is None:
        return
    place, value, weight = found
    name = value.name or ""
    made = weights.get(name) or per_channel(weight, place.channels, search=True, name=name)
    twin.replace_input_with(place.operand, build.Edit(twin).const(made.dequantize().astype(weight.dtype), hint=name))
    bias.compensate(twin, made.shift)


def _insert(copy: ir.Model, value: ir.Value, here: ir.Value, readers: set[ir.Node]) -> _Rounding:
    """Round `here`, the twin of `value`, for `readers`."""
    dims, axis = build.dims(value) or (), channel_axis(value)
    count = channels(value)
    shape = () if count is None else (count, *(1,) * (len(dims) - 2 if axis == 1 else 0))
    inputs = [_input(copy, part, ()) for part in ("scale", "low", "high")] + [_input(copy, "shift", shape)]
    scale, low, high, shift = inputs
    uses = [use for use in here.uses() if use.node in readers]
    last, made = here, list[ir.Node]()
    for op, *operands in (("Div", scale), ("Round",), ("Max", low), ("Min", high), ("Mul", scale), ("Sub", shift)):
        result = ir.Value(name=build.fresh(copy.graph, "simulated"), type=here.type, shape=here.shape)
        made.append(ir.Node("", op, [last, *operands], outputs=[result], name=build.fresh(copy.graph, op)))
        last = result
    producer = here.producer()
    if producer is None:
        copy.graph.insert_before(next(iter(copy.graph)), made)
    else:
        copy.graph.insert_after(producer, made)
    for use in uses:
        use.node.replace_input_with(use.idx, last)
    names = [v.name or "" for v in inputs]
    return _Rounding(names[0], names[1], names[2], names[3], shape)


def _input(model: ir.Model, hint: str, shape: tuple[int, ...]) -> ir.Value:
    name = build.fresh(model.graph, hint)
    made = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    model.graph.inputs.append(made)
    return made
