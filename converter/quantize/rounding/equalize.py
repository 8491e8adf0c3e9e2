"""Cross-layer equalisation, after Nagel et al., "Data-free quantization" (2019), with factors from a noise model.

A channel between two layers may be made s times larger in the first and s times smaller in the second, if everything
between them commutes with the factor: the function stays the same, the ranges change. All channels of a tensor share
one 8-bit scale; those that are small in it gain bits by their factor.

1. Producers are Conv, ConvTranspose, Gemm and MatMul with a constant weight; their constant bias is scaled too.
2. Between them, operators that commute with positive factors: Relu, LeakyRelu, PRelu, pools, ReduceMean and ReduceMax
   of other axes, Transpose, Flatten, Identity, Mul and Div by constants, Add and Sub of constants, which are then
   scaled too. Clip, if factors are at least 1 and no observed result of the Clip itself leaves the bounds when it is
   scaled (a mean behind it says nothing about that): larger values are then clipped where the 8-bit range ends.
3. Every path from there must end in a layer of (1), depthwise ones included, whose weight reverses the factors.

Larger channels cost the second layer: its weights of one output share a scale too, and the largest of them sets it.
Depthwise layers have one channel an output, so nothing is lost there. `_noise` predicts both for given factors; of a
small family of factors the least noise wins.
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
from converter.quantize.calibration import exact
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.effort import affordable, run_seconds
from converter.quantize.calibration.observe import Runner, observable
from lite_runtime.operators import having

__all__ = ["Seen", "links", "measure", "run"]

Array = np.ndarray[Any, np.dtype[Any]]
_SAMPLES = 128
"""The most samples that are run to measure ranges."""
_SECONDS = 3.0
"""The estimated time of these runs."""
_LARGEST = 64.0
"""The largest factor: a channel that is 64 times smaller than another adds next to nothing."""
_STEPS = 4
"""The most steps of the search for factors."""
_EXPONENTS = tuple((a, b) for a in (0.0, 0.25, 0.5, 0.75, 1.0) for b in (0.0, 0.25, 0.5))
"""Factors are room ** a * (the next layer's largest weight of the channel) ** b; see `_factors`."""
_WORTH = 0.95
"""Factors are applied if they leave at most this share of the noise."""
_HEADROOM = 1.25
"""An enlarged channel keeps this much room for values that calibration data do not show: the separable wrist network
loses 1.7 dB on other recordings without it."""


@dataclass
class Seen:
    """One channel axis on calibration data: [channels] each."""

    largest: Array
    """Largest absolute values."""
    power: Array
    """Variances."""
    low: float
    """The smallest value of all channels."""


@dataclass
class _Reach:
    """Everything that a channel factor after one layer affects: layers that reverse it, constants that are scaled
    too."""

    layers: list[tuple[ir.Node, int]] = field(default_factory=list)
    """(node, features of it that one channel became)."""
    constants: list[tuple[ir.Node, int, int, int]] = field(default_factory=list)
    """(node, operand, channel axis counted from the end, features a channel)."""
    clips: list[tuple[ir.Value, int, int, float]] = field(default_factory=list)
    """Results of Clips: (value, channel axis, features a channel, the smaller bound)."""


def run(model: ir.Model, seen: Mapping[str, Seen]) -> int:
    """Equalise in place; the number of layers whose channels were scaled. `seen`: from `measure`."""
    build.adopt(model)
    found = [(node, reach) for node in build.nodes(model) if (reach := _reach(node)) is not None]
    return sum(_balance(node, reach, seen) for node, reach in found)


def measure(model: ir.Model, samples: Samples, *, threads: int = 0) -> dict[str, Seen]:
    """What calibration data show of the tensors between layers that can be equalised, by name."""
    reaches = [reach for node in build.nodes(model) if (reach := _reach(node)) is not None]
    behind = [layer.inputs[0] for reach in reaches for layer, _ in reach.layers]
    axes = {v.name: axis for reach in reaches for v, axis, *_ in reach.clips}
    axes |= {v.name: _axis(v) for v in behind if v is not None}
    names = sorted({name for name in axes if name} & observable(model).keys())
    if not names:
        return {}
    runner, found = Runner(model, names, threads=threads), dict[str, Seen]()
    sums: dict[str, tuple[exact.Mean, exact.Mean]] = {name: (exact.Mean(), exact.Mean()) for name in names}
    for sample in samples.first(affordable(_SECONDS, run_seconds(model), 8, _SAMPLES)):
        results = runner.run(sample)
        for name in names:
            rows = np.moveaxis(results[name], axes[name], -1).reshape(-1, results[name].shape[axes[name]])
            largest, low = np.abs(rows).max(axis=0, initial=0), float(rows.min(initial=0))
            if name in found:
                largest, low = np.maximum(found[name].largest, largest), min(found[name].low, low)
            found[name] = Seen(largest, largest, low)
            sums[name][0].add(rows)
            sums[name][1].add(np.square(rows.astype(np.float64)))
    for name, (mean, square) in sums.items():
        found[name].power = np.maximum(square.value() - np.square(mean.value()), 0)
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


def _clip(node: ir.Node, operand: int, value: ir.Value, axis: int, times: int, reach: _Reach) -> tuple[int, int] | None:
    low, high = (build.scalar(v) if v is not None else None for v in (*node.inputs[1:], None, None)[:2])
    if operand != 0 or high is None or low is None or not low <= 0 < high:
        return None
    reach.clips.append((node.outputs[0], axis, times, min(float(high), float(-low) if low < 0 else np.inf)))
    return axis, times


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
    "Clip": _clip,
}


def _balance(node: ir.Node, reach: _Reach, seen: Mapping[str, Seen]) -> bool:
    """Scale one layer's channels and reverse it in the layers after; whether any factor was not 1."""
    names = [layer.inputs[0].name or "" for layer, _ in reach.layers if layer.inputs[0] is not None]
    if not seen.keys() >= {*names, *(value.name for value, *_ in reach.clips)}:
        return False
    readers = [_Reader.of(layer, times, seen[name]) for (layer, times), name in zip(reach.layers, names, strict=True)]
    factor = _factors(readers, _least_room(reach, seen))
    if factor is None:
        return False
    _scale_outputs(node, factor)
    for constant in reach.constants:
        _scale_constant(*constant, factor)
    for layer, times in reach.layers:
        _scale_inputs(layer, np.repeat(1 / factor, times))
    return True


def _least_room(reach: _Reach, seen: Mapping[str, Seen]) -> Array | None:
    """[channels]: the largest factors that Clips allow; None if there is no Clip."""
    found = []
    for value, _, times, bound in reach.clips:
        most = seen[value.name or ""].largest.reshape(-1, times).max(axis=1).astype(np.float64)
        found.append(np.maximum(bound / (_HEADROOM * np.maximum(most, np.finfo(np.float32).tiny)), 1.0))
    return np.min(found, axis=0) if found else None


@dataclass(frozen=True)
class _Reader:
    """A layer that reads equalised channels, as the noise model sees it. Arrays [groups, outputs, inputs] hold its
    weights' squares, summed over taps, and their largest magnitudes."""

    energy: Array
    largest: Array
    taps: int
    power: Array
    """[groups, inputs]: the variance of each input."""
    most: Array
    """[channels]: the largest magnitude of each channel."""
    span: float
    """The width of the tensor's range over its largest magnitude: 1, or 2 if it has negative values."""
    times: int
    """Inputs a channel."""

    @classmethod
    def of(cls, layer: ir.Node, times: int, seen: Seen) -> _Reader:
        weight = _weight(layer)
        assert weight is not None, "found by its weight"
        view = _canonical(layer, weight).astype(np.float64)
        energy, largest = np.square(view).sum(axis=3), np.abs(view).max(axis=3)
        shape = (view.shape[0], view.shape[2])
        most = seen.largest.reshape(-1, times).max(axis=1).astype(np.float64)
        return cls(energy, largest, view.shape[3], seen.power.reshape(shape), most, 1 + (seen.low < 0), times)

    def noise(self, factor: Array) -> float:
        """The predicted noise of all outputs, each relative to its signal, if channels are `factor` times larger."""
        by_input = np.repeat(factor, self.times).reshape(self.power.shape)[:, None]
        step = self.span * float((self.most * factor).max()) / 255
        rounding = step**2 * (self.energy / by_input**2).sum(axis=2)
        grain = (self.largest / by_input).max(axis=2) / 127
        weights = grain**2 * self.taps * (self.power[:, None] * by_input**2).sum(axis=2)
        signal = (self.energy * self.power[:, None]).sum(axis=2)
        used = signal > 0
        return float(((rounding + weights)[used] / signal[used]).sum())

    def taken(self) -> Array:
        """[channels]: the largest weight of each channel."""
        return np.asarray(self.largest.max(axis=1).reshape(-1, self.times).max(axis=1))


def _factors(readers: list[_Reader], bounds: Array | None) -> Array | None:
    """[channels]: by how much to enlarge each channel; None if that gains nothing. Found by steps, each the best of a
    family, until none gains. `bounds` [channels]: the largest factors, if none may be less than 1."""
    most = np.max([reader.most for reader in readers], axis=0)
    taken = np.max([reader.taken() for reader in readers], axis=0)
    alive = (most > 0) & (taken > 0)
    if not alive.any():
        return None

    def noise(factor: Array) -> float:
        return sum(reader.noise(factor) for reader in readers)

    factor, least = np.ones(most.shape), noise(np.ones(most.shape))
    for step in range(_STEPS):
        tried = [
            np.clip(factor * one, 1 / _LARGEST, _LARGEST)
            for one in _family(most * factor, taken / factor, alive, None if bounds is None else bounds / factor)
        ]
        best = min(tried, key=noise)
        if noise(best) >= least * _WORTH:
            return factor if step else None
        factor, least = best, noise(best)
    return factor


def _family(most: Array, taken: Array, alive: Array, bounds: Array | None) -> list[Array]:
    """Factors for channels whose largest values are `most` and whose largest weights in the next layer are `taken`.

    `room`, how many times a channel fits into the range of the largest one, is the most that a factor may be.
    """
    room = np.where(alive, np.maximum(float(most.max()) / (_HEADROOM * np.where(alive, most, 1)), 1.0), 1.0)
    if bounds is not None:
        room = np.maximum(np.minimum(room, bounds), 1.0)
    weight = np.where(alive, taken, taken[alive].max()) / taken[alive].max()
    found = []
    for a, b in _EXPONENTS:
        factor = room**a * weight**b
        factor = np.minimum(factor / float((factor / room).max()), room)
        factor = factor if bounds is None else np.maximum(factor, 1.0)
        found.append(np.where(alive, factor, 1.0))
    return found


def _scale_outputs(node: ir.Node, factor: Array) -> None:
    old = _weight(node)
    assert old is not None, "found by its weight"
    weight = np.array(old)
    view = _canonical(node, weight)
    view *= factor.reshape(view.shape[:2])[:, :, None, None].astype(weight.dtype)
    _store(node, 1, weight)
    bias = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
    if bias is not None:
        _store(node, 2, (np.broadcast_to(bias, (*bias.shape[:-1], factor.size)) * factor).astype(bias.dtype))


def _scale_inputs(node: ir.Node, factor: Array) -> None:
    old = _weight(node)
    assert old is not None, "found by its weight"
    weight = np.array(old)
    view = _canonical(node, weight)
    groups, inputs = view.shape[0], view.shape[2]
    view *= factor.reshape(groups, inputs)[:, None, :, None].astype(weight.dtype)
    _store(node, 1, weight)


def _scale_constant(node: ir.Node, operand: int, axis: int, times: int, factor: Array) -> None:
    constant = build.array(node.inputs[operand])
    assert constant is not None, "found as a constant"
    wide = constant.reshape((1,) * max(0, -axis - constant.ndim) + constant.shape)
    factors = np.repeat(factor, times)
    shape = list(wide.shape)
    shape[axis] = factors.size
    scaled = np.broadcast_to(wide, shape) * factors.reshape([-1] + [1] * (-axis - 1))
    _store(node, operand, scaled.astype(constant.dtype))


def _store(node: ir.Node, operand: int, values: Array) -> None:
    old = node.inputs[operand]
    assert old is not None
    node.replace_input_with(operand, build.Edit(node).const(values, hint=old.name or ""))
    if old.is_initializer() and not old.uses() and node.graph is not None:
        owner = old.graph or node.graph
        owner.initializers.pop(old.name or "", None)
