"""Cross-layer equalisation, after Nagel et al., "Data-free quantization" (2019).

A channel between two layers may be made s times smaller in the first and s times larger in the second, if everything
between them commutes with the factor: the function stays the same, the ranges change. Values that share one 8-bit scale
(all channels of the activation; all inputs of one output channel of the second weight) then have a smaller range, and
small channels keep more bits.

1. Producers are Conv, ConvTranspose, Gemm and MatMul with a constant weight; their constant bias is scaled too.
2. Between them, operators that commute with positive factors: Relu, LeakyRelu, PRelu, pools, ReduceMean and ReduceMax
   of other axes, Transpose, Flatten, Identity, Mul and Div by constants, Add and Sub of constants, which are then
   scaled too. Not Clip: its bounds would have to differ by channel.
3. Every path from there must end in a layer of (1), depthwise ones included, whose weight reverses the factors.

Factors are powers of two. So no float rounds differently: results before and after are equal bit for bit (except for
underflow), "unchanged" needs no tolerance, and repeating until no factor changes ends at a fixed point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import attr
from converter.passes import quantized
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.effort import affordable, run_seconds
from converter.quantize.calibration.observe import Runner, observable
from lite_runtime.operators import having

__all__ = ["links", "measure", "run"]

Array = np.ndarray[Any, np.dtype[Any]]
_ROUNDS = 16
"""The most sweeps; chains converge in two to eight."""
_SAMPLES = 128
"""The most samples that are run to measure ranges."""
_SECONDS = 3.0
"""The estimated time of these runs."""
_WORTHWHILE = 0.6
"""The smallest imbalance, as a power of two, at which a channel is scaled."""
_LIMIT = 12.0
"""Largest change of one channel in one sweep, as a power of two."""


@dataclass
class _Reach:
    """Everything that a channel factor after one layer affects: layers that reverse it, constants that are scaled
    too."""

    layers: list[tuple[ir.Node, int]] = field(default_factory=list)
    """(node, features of it that one channel became)."""
    constants: list[tuple[ir.Node, int, int, int]] = field(default_factory=list)
    """(node, operand, channel axis counted from the end, features a channel)."""


def run(model: ir.Model, ranges: Mapping[str, Array] | None = None) -> int:
    """Equalise in place until no factor changes; the number of layers whose channels were scaled.

    `ranges`: from `measure`, the largest absolute value of each channel of the tensors that layers read. Without it,
    the largest weight or bias of a channel is used instead.
    """
    build.adopt(model)
    known = {name: np.asarray(values, np.float64) for name, values in (ranges or {}).items()}
    found = [(node, reach) for node in build.nodes(model) if (reach := _reach(node)) is not None]
    moved: set[int] = set()
    for _ in range(_ROUNDS):
        changed = [index for index, (node, reach) in enumerate(found) if _balance(node, reach, known)]
        moved.update(changed)
        if not changed:
            break
    return len(moved)


def measure(model: ir.Model, samples: Samples, *, threads: int = 0) -> dict[str, Array]:
    """Largest absolute value of each channel ([channels]) of the tensors between layers that can be equalised."""
    behind = [layer.inputs[0] for _, layers in links(model) for layer in layers]
    names = sorted({v.name for v in behind if v is not None and v.name} & observable(model).keys())
    axes = {v.name: _axis(v) for v in behind if v is not None}
    if not names:
        return {}
    runner, found = Runner(model, names, threads=threads), dict[str, Array]()
    for sample in samples.first(affordable(_SECONDS, run_seconds(model), 8, _SAMPLES)):
        seen = runner.run(sample)
        for name in names:
            values = np.moveaxis(np.abs(seen[name]), axes[name], -1)
            largest = values.reshape(-1, values.shape[-1]).max(axis=0, initial=0)
            found[name] = np.maximum(found[name], largest) if name in found else largest
    return found


def _axis(value: ir.Value) -> int:
    """The channel axis of a tensor that a layer reads."""
    return 1 if any(use.idx == 0 and "Conv" in use.node.op_type for use in value.uses()) else -1


def links(model: ir.Model) -> list[tuple[ir.Node, tuple[ir.Node, ...]]]:
    """Every layer that could be equalised with the layers after it."""
    found = ((node, _reach(node)) for node in build.nodes(model))
    return [(node, tuple(n for n, _ in reach.layers)) for node, reach in found if reach is not None]


def _canonical(node: ir.Node, weight: Array) -> Array:
    """A view [groups, outputs, inputs, taps] of a weight of `node`; outputs and inputs count within a group."""
    if node.op_type in ("Gemm", "MatMul"):
        return (weight if attr(node, "transB", 0) else weight.T)[None, :, :, None]
    groups = attr(node, "group", 1)
    view = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return view.swapaxes(1, 2) if node.op_type == "ConvTranspose" else view


def _weight(node: ir.Node) -> Array | None:
    """The weight of a layer that may be scaled, else None."""
    if node.domain != "" or node.op_type not in quantized.CONTRACTIONS:
        return None
    weight = _own(node, 1)
    if weight is None or weight.ndim < 2 or (node.op_type == "MatMul" and weight.ndim != 2):
        return None
    return None if attr(node, "transA", 0) or weight.dtype.kind != "f" or not weight.size else weight


def _own(node: ir.Node, operand: int) -> Array | None:
    """A constant operand that nothing else reads."""
    value = node.inputs[operand] if operand < len(node.inputs) else None
    return None if value is None or len(value.uses()) != 1 or value.is_graph_output() else build.array(value)


def _reach(node: ir.Node) -> _Reach | None:
    weight = _weight(node)
    bias = node.inputs[2] if weight is not None and len(node.inputs) > 2 else None
    if weight is None or (bias is not None and _own(node, 2) is None):
        return None
    rank = build.rank(node.outputs[0])
    if rank is None or rank < 2:
        return None
    view, reach = _canonical(node, weight), _Reach()
    if not _follow(node.outputs[0], 1 if "Conv" in node.op_type else rank - 1, 1, reach) or not reach.layers:
        return None
    channels = view.shape[0] * view.shape[1]
    return reach if all(_inputs(n) == channels * times for n, times in reach.layers) else None


def _inputs(node: ir.Node) -> int:
    weight = _weight(node)
    assert weight is not None, "only layers with a weight are reached"
    view = _canonical(node, weight)
    return int(view.shape[0] * view.shape[2])


def _follow(value: ir.Value, axis: int, times: int, reach: _Reach) -> bool:
    """Collect everything that channels on `axis` of `value` (each `times` features) affect; False if scaling is
    impossible."""
    if value.is_graph_output() or not value.uses():
        return False
    return all(_enter(use.node, use.idx, value, axis, times, reach) for use in value.uses())


def _enter(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, reach: _Reach) -> bool:
    rank = build.rank(value)
    if node.domain != "" or rank is None:
        return False
    if operand == 0 and _weight(node) is not None:
        reach.layers.append((node, times))
        return axis == (1 if "Conv" in node.op_type else rank - 1)
    step = _BETWEEN.get(node.op_type)
    on = None if step is None else step(node, operand, value, axis, times, reach)
    return on is not None and len(node.outputs) == 1 and _follow(node.outputs[0], on[0], on[1], reach)


_Step = Callable[[ir.Node, int, ir.Value, int, int, _Reach], "tuple[int, int] | None"]
"""(node, operand, value, axis, times, reach) -> axis and times after the node, or None if it does not commute."""


def _same(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, _: _Reach) -> tuple[int, int] | None:
    return (axis, times) if operand == 0 else None


def _pool(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, _: _Reach) -> tuple[int, int] | None:
    return (axis, times) if axis == 1 else None


def _transpose(node: ir.Node, _: int, value: ir.Value, axis: int, times: int, __: _Reach) -> tuple[int, int] | None:
    rank = build.rank(value) or 0
    return list(attr(node, "perm", list(range(rank))[::-1])).index(axis), times


def _reduce(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, _: _Reach) -> tuple[int, int] | None:
    axes = build.array(node.inputs[1]) if len(node.inputs) > 1 else None
    if operand != 0 or axes is None or not axes.size:
        return None
    gone = {int(a) % (build.rank(value) or 1) for a in axes}
    if axis in gone:
        return None
    return axis - (0 if attr(node, "keepdims", 1) else sum(a < axis for a in gone)), times


def _flatten(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, _: _Reach) -> tuple[int, int] | None:
    """[n, channels, rest] -> [n, channels * rest]"""
    shape = build.dims(value) or ()
    rest = shape[2:]
    into = build.dims(node.outputs[0])
    if operand != 0 or axis != 1 or into is None or len(into) != 2 or not all(isinstance(d, int) for d in shape[1:]):
        return None
    size = int(np.prod([d for d in rest if isinstance(d, int)]))
    features = size * int(shape[1] or 0)
    return (1, times * size) if into[1] == features else None


def _constant(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, _: _Reach) -> tuple[int, int] | None:
    """Mul and Div by a constant."""
    other, same = node.inputs[1 - operand], build.rank(value) == build.rank(node.outputs[0])
    return (axis, times) if same and build.array(other) is not None and (node.op_type, operand) != ("Div", 1) else None


def _shift(
    node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, reach: _Reach
) -> tuple[int, int] | None:
    """Add and Sub of a constant, which is scaled too."""
    other, rank = _own(node, 1 - operand), build.rank(value) or 0
    if other is None or not build.same_dims(value, node.outputs[0]):
        return None
    reach.constants.append((node, 1 - operand, axis - rank, times))
    return axis, times


_BETWEEN: Mapping[str, _Step] = {
    **dict.fromkeys(having("homogeneous"), _same),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _pool),
    **dict.fromkeys(("ReduceMean", "ReduceMax"), _reduce),
    **dict.fromkeys(("Flatten", "Reshape"), _flatten),
    **dict.fromkeys(("Mul", "Div"), _constant),
    **dict.fromkeys(("Add", "Sub"), _shift),
    "Transpose": _transpose,
}


def _balance(node: ir.Node, reach: _Reach, known: dict[str, Array]) -> bool:
    """Scale one layer's channels and reverse it in the layers after; whether any factor was not 1."""
    weight = _weight(node)
    assert weight is not None, "found by its weight"
    view = _canonical(node, weight)
    read = {layer.inputs[0].name or "": times for layer, times in reach.layers if layer.inputs[0] is not None}
    if read.keys() <= known.keys():
        first = np.max([known[name].reshape(-1, times).max(axis=1) for name, times in read.items()], axis=0)
    else:
        first = np.abs(view).max(axis=(2, 3)).reshape(-1).astype(np.float64)
        bias = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
        if bias is not None:
            first = np.maximum(first, np.broadcast_to(np.abs(bias.reshape(-1)), first.shape))
    second = np.max([_taken(n, times) for n, times in reach.layers], axis=0)
    power = _powers(first, second)
    if not power.any():
        return False
    for name in read.keys() & known.keys():
        known[name] = np.ldexp(known[name], np.repeat(-power, read[name]))
    _scale_outputs(node, -power)
    for constant in reach.constants:
        _scale_constant(*constant, -power)
    for layer, times in reach.layers:
        _scale_inputs(layer, np.repeat(power, times))
    return True


def _powers(first: Array, second: Array) -> Array:
    """int [channels]: divide the first by 2**power and multiply the second by it, so that both have equal spread.

    Channels without a range on either side stay; so does the median level, because a factor common to all changes
    nothing. Changes below `_WORTHWHILE` are not made: when every half step was, 3 of 60 random chains oscillated for
    ever; with this limit, 80 of 80 converged within eight sweeps.
    """
    alive = (first > 0) & (second > 0)
    power = np.zeros(first.shape)
    if alive.any():
        ideal = (np.log2(first[alive]) - np.log2(second[alive])) / 2
        away = ideal - np.median(ideal)
        power[alive] = np.where(np.abs(away) > _WORTHWHILE, np.rint(away), 0)
    return np.clip(power, -_LIMIT, _LIMIT).astype(np.int64)


def _taken(node: ir.Node, times: int) -> Array:
    """The largest weight that multiplies each channel in a layer that reads it."""
    weight = _weight(node)
    assert weight is not None, "found by its weight"
    per_input = np.abs(_canonical(node, weight)).max(axis=(1, 3)).reshape(-1).astype(np.float64)
    return np.asarray(per_input.reshape(-1, times).max(axis=1))


def _scale_outputs(node: ir.Node, power: Array) -> None:
    old = _weight(node)
    assert old is not None, "found by its weight"
    weight = np.array(old)
    view = _canonical(node, weight)
    view *= np.ldexp(np.ones(view.shape[:2]), power.reshape(view.shape[:2]))[:, :, None, None].astype(weight.dtype)
    _store(node, 1, weight)
    bias = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        _store(node, 2, _scaled(np.broadcast_to(bias, (*bias.shape[:-1], power.size)), power))


def _scale_inputs(node: ir.Node, power: Array) -> None:
    old = _weight(node)
    assert old is not None, "found by its weight"
    weight = np.array(old)
    view = _canonical(node, weight)
    groups, inputs = view.shape[0], view.shape[2]
    view *= np.ldexp(np.ones((groups, inputs)), power.reshape(groups, inputs))[:, None, :, None].astype(weight.dtype)
    _store(node, 1, weight)


def _scale_constant(node: ir.Node, operand: int, axis: int, times: int, power: Array) -> None:
    constant = build.array(node.inputs[operand])
    assert constant is not None, "found as a constant"
    wide = constant.reshape((1,) * max(0, -axis - constant.ndim) + constant.shape)
    factors = np.repeat(power, times)
    shape = list(wide.shape)
    shape[axis] = factors.size
    _store(node, operand, _scaled(np.broadcast_to(wide, shape), factors, axis))


def _scaled(x: Array, power: Array, axis: int = -1) -> Array:
    return np.ldexp(x, power.reshape([-1] + [1] * (-axis - 1))).astype(x.dtype)


def _store(node: ir.Node, operand: int, values: Array) -> None:
    old = node.inputs[operand]
    assert old is not None
    node.replace_input_with(operand, build.Edit(node).const(values, hint=old.name or ""))
    if old.is_initializer() and not old.uses() and node.graph is not None:
        owner = old.graph or node.graph
        owner.initializers.pop(old.name or "", None)
