"""Weights as small integers: symmetric, per channel or in blocks; and writing them into the graph.

`per_channel` and `blockwise` turn an array into integers and scales; `attach` puts them into the model as
DequantizeLinear of constants, the form ONNX gives weight-only quantisation; `quantize_weights_only` does that for every
large weight. Eight bits use [-127, 127], so that a weight and its negative have equal error; four bits use all of
[-8, 7], where the sixteenth level is worth the asymmetry.

Scales of blocks are rounded to float16 before any weight is rounded, and kept as float32: the integers fit the rounded
scale (eleven bits of mantissa change an error of half a step by 1/2048 of itself), and a file may store such scales in
two bytes without changing a single result: 4.5 bits a weight in blocks of 32 rather than 5. Tensors with scales outside
float16's normal range keep full float32 scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.ir.build import attr
from converter.passes.quantized import depthwise_transposed
from converter.quantize.rounding import bias

__all__ = [
    "BLOCK",
    "LEVELS",
    "SMALLEST",
    "Bits",
    "Place",
    "Quantized",
    "Stored",
    "attach",
    "blockwise",
    "group_scales",
    "per_channel",
    "places",
    "quantize_place",
    "quantize_weights_only",
    "round_to",
    "width",
]

Bits = Literal[4, 8]
Array = np.ndarray[Any, np.dtype[Any]]

LEVELS: Mapping[int, tuple[int, int]] = {8: (-127, 127), 4: (-8, 7)}
"""Smallest and largest integer of each width."""
BLOCK = 32
"""Weights that share a scale in block-wise quantisation."""
SMALLEST = 512
"""The fewest elements of a weight that is worth its own DequantizeLinear in the file."""

_SHRINK: Mapping[int, Array] = {8: np.linspace(1, 0.70, 31), 4: np.linspace(1, 0.50, 26)}
"""Candidates of the clipping search, as fractions of the scale that clips nothing; that one first, so it wins ties."""
_EMPTY_SCALE = np.float32(2.0**-7)
"""The scale of a tensor of zeros: integers then span [-1, 1]."""
_HALF_RANGE = (float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max))


@dataclass(frozen=True)
class Quantized:
    """Integers and their scales.

    `values`: int8 array of the weight's shape, within `LEVELS[bits]`. `scales`: float32; one number for each index of
    `axis` when `block` is 0, else the weight's shape with `axis` divided by `block`, rounded up.
    `shift`: float32 [channels], a correction for the operator's bias that belongs to these integers, or None.
    """

    values: Array
    scales: Array
    axis: int
    block: int
    bits: Bits
    shift: Array | None = None

    def steps(self) -> Array:
        """The scale of every single weight, float32, broadcastable against `values`."""
        if not self.block:
            return self.scales.reshape([-1 if i == self.axis else 1 for i in range(self.values.ndim)])
        repeated = np.repeat(self.scales, self.block, axis=self.axis)
        return repeated.take(np.arange(self.values.shape[self.axis]), axis=self.axis)

    def dequantize(self) -> Array:
        """The result of DequantizeLinear: float32(values) * scale, rounded once."""
        return self.values.astype(np.float32) * self.steps()

    @property
    def nbytes(self) -> int:
        """Bytes in a file: packed integers and scales (two bytes each where float16 holds them exactly)."""
        exact = bool((self.scales == _half(self.scales)).all())
        return -(-self.values.size * self.bits // 8) + self.scales.size * (2 if exact else 4)


class Place(NamedTuple):
    """The weights of an operator: the operand, the axis of output channels, the axis summed over, whether further axes
    stack independent matrices (the directions of an LSTM) rather than belong to the sum (a kernel's), the fewest
    suitable bits, and the default number of weights that share a scale (0: a channel's)."""

    operand: int
    channels: int
    reduction: int
    stacked: bool = False
    fewest: Bits = 4
    block: int = 0


class Stored(NamedTuple):
    """A weight that became integers: the initialiser's name, its quantised form, bytes before, and its first reader."""

    name: str
    quantized: Quantized
    bytes_before: int
    node: str


def per_channel(
    weight: Array, axis: int, *, bits: Bits = 8, search: bool = False, least: Array | float = 0, name: str = ""
) -> Quantized:
    """One scale for each index of `axis`. `weight`: floats of any rank above 0; NaN and infinities are refused.

    `search`: pick the clipping with the least squared error instead of none. `least`: scales are at least this
    (a number, or one per channel), if a bias must be stored in the same unit. `name` is for error messages.
    """
    axis = _checked(weight, axis, name)
    groups = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).astype(np.float32)
    scales = np.maximum(group_scales(groups, bits, search=search), np.asarray(least, np.float32))
    shape = [-1 if i == axis else 1 for i in range(weight.ndim)]
    return Quantized(round_to(weight, scales.reshape(shape), bits), scales, axis, 0, bits)


def blockwise(
    weight: Array, axis: int, block: int = BLOCK, *, bits: Bits = 4, search: bool = True, name: str = ""
) -> Quantized:
    """One scale for each run of `block` weights along `axis`; the last run may be shorter, as ONNX allows.

    Scales are float16 numbers held as float32 (see the module's text). NaN and infinities are refused.
    """
    axis = _checked(weight, axis, name)
    if block < 1:
        raise QuantizeError(f"expected a block of at least 1 weight for {name or 'the weight'}, got {block}")
    length = weight.shape[axis]
    block = min(block, max(length, 1))
    moved = np.moveaxis(weight, axis, -1).astype(np.float32)
    moved = np.pad(moved, [(0, 0)] * (weight.ndim - 1) + [(0, -length % block)])
    count = moved.shape[-1] // block
    scales = _halved(group_scales(moved.reshape(-1, block), bits, search=search))
    scales = np.moveaxis(scales.reshape(*moved.shape[:-1], count), -1, axis)
    made = Quantized(np.zeros(weight.shape, np.int8), np.ascontiguousarray(scales), axis, block, bits)
    return Quantized(round_to(weight, made.steps(), bits), made.scales, axis, block, bits)


def _checked(weight: Array, axis: int, name: str) -> int:
    where = f"weight {name!r}" if name else "the weight"
    if weight.dtype.kind != "f" and weight.dtype != ml_dtypes.bfloat16:
        raise QuantizeError(f"expected floats in {where}, got {weight.dtype}: it cannot be quantised")
    bad = weight.size - int(np.count_nonzero(np.isfinite(weight)))
    if bad:
        raise QuantizeError(
            f"{where} holds {bad} of {weight.size} values that are NaN or infinite: quantising them has no meaning; "
            "repair the source model (a training run that diverged, or a fold that overflowed)"
        )
    if not -weight.ndim <= axis < weight.ndim:
        raise QuantizeError(f"expected an axis of {where} below its rank {weight.ndim}, got {axis}")
    return axis % weight.ndim


def group_scales(groups: Array, bits: Bits, *, search: bool = False) -> Array:
    """float32 [n]: a positive scale for each row of `groups` ([n, size] float32). Rows of zeros take the median."""
    low, high = LEVELS[bits]
    groups = groups.reshape(len(groups), -1)
    top, bottom = groups.max(axis=1, initial=0), groups.min(axis=1, initial=0)
    full = np.maximum(top / np.float32(high), bottom / np.float32(low)).astype(np.float32)
    # a subnormal scale would make every quotient overflow
    full = np.where(full < np.finfo(np.float32).tiny, np.float32(0), full)
    some = full > 0
    if search and some.any():
        full[some] = _least_squares(groups[some], full[some], bits)
    full[~some] = np.median(full[some]) if some.any() else _EMPTY_SCALE
    return full


def _least_squares(groups: Array, full: Array, bits: Bits) -> Array:
    """For each row, the candidate scale with the smallest squared error; the largest of equal ones."""
    best, chosen = np.full(len(groups), np.inf), full.copy()
    for fraction in _SHRINK[bits]:
        scale = np.maximum(full * np.float32(fraction), np.finfo(np.float32).tiny)
        step = scale[:, None]
        error = np.square((round_to(groups, step, bits) * step - groups).astype(np.float64)).sum(axis=1)
        better = error < best
        best[better], chosen[better] = error[better], scale[better]
    return chosen


def round_to(weight: Array, steps: Array, bits: Bits) -> Array:
    """int8: weight / steps to the nearest integer (halves to even), clamped to the width's levels."""
    low, high = LEVELS[bits]
    with np.errstate(over="ignore"):
        return np.clip(np.rint(weight.astype(np.float32) / steps), low, high).astype(np.int8)


def _half(scales: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return scales.astype(np.float16).astype(np.float32)


def _halved(scales: Array) -> Array:
    """Scales rounded to float16 if all of them are normal numbers there, else unchanged."""
    low, high = _HALF_RANGE
    fits = scales.size == 0 or (float(scales.min()) >= low and float(scales.max()) <= high)
    return _half(scales) if fits else scales


_RECURRENT = (Place(1, 1, 2, True, block=BLOCK), Place(2, 1, 2, True, block=BLOCK))
"""Errors of recurrent weights add up over time steps: finer scales are worth their bytes (an LSTM of 128 units, eight
bits: 37.7 dB with a scale per channel; 42.5 dB in blocks, for 6 % of the file)."""


def _matmul(node: ir.Node) -> tuple[Place, ...]:
    return Place(1, -1, -2, True), Place(0, -2, -1, True)


def _gemm(node: ir.Node) -> tuple[Place, ...]:
    return (Place(1, 0, 1) if attr(node, "transB", 0) else Place(1, 1, 0),)


def _conv_transpose(node: ir.Node) -> tuple[Place, ...]:
    """Axis 1 has the channels of a group. A depthwise operator has one there, and all of them on axis 0, where they do
    not share a scale: folded batch norms make them very different."""
    return (Place(1, 0, 1) if depthwise_transposed(node) else Place(1, 1, 0),)


_PLACES: Mapping[str, Callable[[ir.Node], tuple[Place, ...]]] = {
    "Conv": lambda node: (Place(1, 0, 1),),
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Gather": lambda node: (Place(0, 0, -1, fewest=8),) if attr(node, "axis", 0) == 0 else (),
    "LSTM": lambda node: _RECURRENT,
    "GRU": lambda node: _RECURRENT,
    "RNN": lambda node: _RECURRENT,
}
"""ONNX operators with weights -> the places of these."""


def places(node: ir.Node, smallest: int = SMALLEST) -> Iterator[tuple[Place, ir.Value, Array]]:
    """Constant float weights of rank 2 and more and at least `smallest` elements: (place, value, contents)."""
    if node.domain != "" or node.op_type not in _PLACES:
        return
    for place in _PLACES[node.op_type](node):
        value = node.inputs[place.operand] if place.operand < len(node.inputs) else None
        weight = build.array(value)
        if value is None or weight is None or weight.dtype.kind != "f":
            continue
        if weight.ndim >= 2 and weight.size >= smallest:
            yield place, value, weight


def width(weight: Array, place: Place, bits: Bits) -> Bits:
    """The bits that a weight gets if `bits` are requested; see `quantize_place`."""
    shared = weight.shape[place.reduction] if place.stacked else weight.size // weight.shape[place.channels]
    return bits if bits >= place.fewest and shared >= BLOCK else 8


def quantize_place(
    weight: Array, place: Place, *, bits: Bits, block: int, search: bool = True, name: str = ""
) -> Quantized:
    """Quantise `weight` as suits its place: in blocks along the axis summed over, or with a scale for each channel if
    `block` is 0 or not smaller than that axis.

    Channels of stacked matrices have separate scales: one block then spans the whole reduction axis. Channels of
    fewer than `BLOCK` weights (depthwise kernels, first layers) get eight bits: four bits harm them most, and they are
    a tiny part of the file. So do lookup tables (embeddings): no sum averages their errors, and no later layer can
    compensate for them (a small transformer in four bits, embedding included: 17.8 dB; without it: 26.9 dB).
    """
    channels, reduction = place.channels % weight.ndim, place.reduction % weight.ndim
    if width(weight, place, bits) != bits:
        bits, block = 8, 0
    stacked = place.stacked and weight.size > weight.shape[channels] * weight.shape[reduction]
    block = block if 0 < block < weight.shape[reduction] else weight.shape[reduction] if stacked else 0
    if block:
        return blockwise(weight, reduction, block, bits=bits, search=search, name=name)
    return per_channel(weight, channels, bits=bits, search=search, name=name)


def attach(value: ir.Value, quantized: Quantized) -> ir.Value:
    """Replace the initialiser `value` for all its readers by `quantized`, as DequantizeLinear of constants.

    The model must be adopted (`build.adopt`). Returns the dequantised value; the old initialiser is removed.
    """
    graph = value.graph
    assert graph is not None and value.name is not None, "an initialiser belongs to a graph and has a name"
    assert value.dtype is not None
    edit = build.Edit(next(iter(graph)))
    integers = quantized.values.astype(ml_dtypes.int4) if quantized.bits == 4 else quantized.values
    stored = edit.const(integers, hint=f"{value.name}.int{quantized.bits}")
    scales = edit.const(quantized.scales.astype(value.dtype.numpy()), hint=f"{value.name}.scale")
    made = ir.Node(
        "",
        "DequantizeLinear",
        [stored, scales],
        [ir.AttrInt64("axis", quantized.axis)]
        + ([ir.AttrInt64("block_size", quantized.block)] if quantized.block else []),
        outputs=[
            ir.Value(
                name=build.fresh(graph, f"{value.name}.float"),
                type=ir.TensorType(value.dtype),
                shape=ir.Shape(quantized.values.shape),
            )
        ],
        name=build.fresh(graph, f"{value.name}.dequantize"),
    )
    graph.insert_before(edit.node, made)
    value.replace_all_uses_with(made.outputs[0])
    graph.initializers.pop(value.name)
    return made.outputs[0]


def quantize_weights_only(
    model: ir.Model,
    *,
    bits: Bits = 8,
    block_size: int | None = None,
    search: bool = True,
    smallest: int = SMALLEST,
    ready: Mapping[str, Quantized] | None = None,
) -> list[Stored]:
    """Store the weights of Conv, ConvTranspose, MatMul, Gemm, Gather and recurrent operators as integers, in place.

    `block_size`: weights per scale along the axis summed over; 0: one scale for each output channel; None: blocks of
    `BLOCK` for four bits and recurrent weights, else channels (whose error of 1/254 of the range finer scales hardly
    improve). Weights with fewer than `smallest` elements stay float. `ready`: results of GPTQ, by initialiser name. A
    weight that several operators read is stored once, in the form for the first of them. Returns the stored weights, in
    graph order.
    """
    build.adopt(model)
    stored: list[Stored] = []
    for node in build.nodes(model):
        for place, value, weight in places(node, smallest):
            if value.name is None or value.is_graph_output() or not value.is_initializer():
                continue
            usual = BLOCK if bits == 4 else place.block
            block = usual if block_size is None else block_size
            made = (ready or {}).get(value.name) or quantize_place(
                weight, place, bits=bits, block=block, search=search, name=value.name
            )
            bias.compensate(node, made.shift)
            attach(value, made)
            stored.append(Stored(value.name, made, weight.nbytes, node.name or node.op_type))
    return stored
