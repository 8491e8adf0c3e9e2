"""Rounding weights by the statistics of their inputs, after Frantar et al., "GPTQ" (2022).

A layer's error on calibration data is e' H e, with e the rounding errors of one output's weights and H the mean of
x x' over the layer's inputs x. Weights are rounded one after the other, and each is first changed to compensate the
errors of the ones before it. With H = M M' and M upper triangular, that change is

    c[i] = sum over j < i of M[j, i] e[j] / M[i, i]

since e' H e = |M' e|**2 and row i of M' e holds e[0..i] only: the nearest-plane form of GPTQ (Chen et al., 2025), equal
to the original's updates by the inverse Hessian, and needing one factorisation and no inverse.

If the operator has a bias, or a place for one, that bias absorbs the mean of e' x (`Quantized.shift`), and H is the
covariance of x: after a Relu the mean makes up most of x x'. The groups of a convolution, including single channels of
depthwise ones, are separate layers, stacked.

H of a long layer is cut into diagonal blocks: errors are compensated within a block only. The estimated work of all
layers decides how long blocks may be.

Results do not depend on the order of samples or on threads: H is an exact sum, and every product of matrices is
`exact.product`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import attr
from converter.quantize.calibration import exact
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.effort import affordable, run_seconds
from converter.quantize.calibration.observe import Runner
from converter.quantize.rounding import bias, weights
from converter.quantize.rounding.weights import BLOCK, SMALLEST, Bits, Place, Quantized

__all__ = ["DAMPING", "round_layer", "round_weights"]

Array = np.ndarray[Any, np.dtype[Any]]
DAMPING = 0.01
"""Added to the diagonal of H, as a share of its mean, so that errors in unseen directions also count."""
_CHUNK = 64
"""Rows that are updated one by one before their errors are propagated by a matrix product."""
_RAISED = 8
"""How often damping is multiplied by ten before the factorisation is given up."""
_ROWS = 512
"""The most input rows of one sample that a layer uses, evenly spread: a convolution's patches overlap."""
_SAMPLES = 256
"""The most samples that are run; the mean of x x' hardly changes with more."""
_SECONDS: Mapping[int, float] = {8: 8.0, 4: 32.0}
"""By bits: the estimated time of all runs, sums and rounding. Eight bits gain little: their noise is 10 dB and more
below that of activations."""
_SUMS = 5e9
"""Products added in a second, only an estimate."""
_LENGTHS = (1 << 20, 2048, 1024, 512, 256, 128)
"""Lengths of a block of H, the first whose estimated work fits `_SECONDS`; else the last."""
_ALIGNED = 64
"""Blocks of H start at multiples of this."""
_FEWEST = 4
"""The fewest samples."""
_MEMORY = 1 << 29
"""The most bytes of Hessians in memory at a time; more layers mean more passes over the samples."""


def round_layer(
    weight: Array,
    hessian: Array,
    groups: Array,
    *,
    bits: Bits,
    search: bool = True,
    damping: float = DAMPING,
    activation_order: bool = True,
    scales: Array | None = None,
) -> tuple[Array, Array]:
    """Integers (int8 [..., k, n]) and scales (float32 [..., groups, n]) for the weights `weight` [..., k, n] of layers
    x @ weight; leading axes stack independent layers.

    `hessian`: [..., k, k], the mean of x x'. `groups`: [k] non-decreasing integers from 0; rows of one group share
    scales. Scales of small groups are chosen when their first row is reached, for the weights as changed by then. With
    `activation_order`, rows with the strongest inputs come first and all scales are chosen beforehand, unless `scales`
    [..., groups, n] are given. Outputs for which plain rounding has the smaller error e' H e get plain rounding.
    """
    shape, weight = weight.shape, weight.astype(np.float64).reshape(-1, *weight.shape[-2:])
    hessian = hessian.reshape(-1, *hessian.shape[-2:])
    spans = _spans(groups)
    beforehand = scales is not None or activation_order or max((b - a for a, b in spans), default=0) > _CHUNK
    if scales is None:
        scales = _scales_of(weight, groups, bits, search)
    moved = _moved(weight, hessian, groups, scales, bits, search, damping, activation_order, beforehand)
    plain = weights.round_to(weight, scales[:, groups], bits), scales
    values, scales = _least(weight, hessian, groups, moved, plain)
    return values.reshape(shape), scales.reshape(*shape[:-2], -1, shape[-1])


def _moved(
    weight: Array,
    hessian: Array,
    groups: Array,
    scales: Array,
    bits: Bits,
    search: bool,
    damping: float,
    activation_order: bool,
    beforehand: bool,
) -> tuple[Array, Array]:
    """The algorithm itself for stacked layers: integers [g, k, n] and scales [g, groups, n]."""
    layers, length, _ = weight.shape
    order = np.broadcast_to(np.arange(length), (layers, length))
    if activation_order:
        order = np.argsort(-np.diagonal(hessian, axis1=1, axis2=2), axis=1, kind="stable")
    across = np.arange(layers)
    ratio = _ratios(hessian[across[:, None, None], order[:, :, None], order[:, None, :]], damping)
    spans = _spans(groups)
    scales = scales.copy()
    values, error = np.zeros(weight.shape, np.int8), np.zeros(weight.shape)
    for start, stop in _chunks(length) if beforehand else spans:
        move = exact.product(ratio[:, :start, start:stop].swapaxes(1, 2), error[:, :start])
        if not beforehand:
            for a, b in spans:
                if start <= a < stop:
                    scales[:, groups[a]] = _scales(weight[:, a:b] + move[:, a - start : b - start], bits, search)
        for i in range(start, stop):
            row = order[:, i]
            step, wanted = scales[across, groups[row]], weight[across, row]
            rounded = weights.round_to(wanted + move[:, i - start], step, bits)
            values[across, row] = rounded
            error[:, i] = wanted - rounded * step.astype(np.float64)
            move[:, i + 1 - start :] += ratio[:, i, i + 1 : stop, None] * error[:, i, None]
    return values, scales


def _least(
    weight: Array, hessian: Array, groups: Array, moved: tuple[Array, Array], plain: tuple[Array, Array]
) -> tuple[Array, Array]:
    """For every output the candidate with less error e' H e; `moved` if they are equal."""

    def cost(values: Array, scales: Array) -> Array:
        error = weight - values * scales[:, groups].astype(np.float64)
        return np.asarray((error * exact.product(hessian, error)).sum(axis=1, keepdims=True))

    worse = cost(*plain) < cost(*moved)
    return np.where(worse, plain[0], moved[0]), np.where(worse, plain[1], moved[1])


def _scales(rows: Array, bits: Bits, search: bool) -> Array:
    """[g, k, n] -> [g, n]"""
    columns = np.ascontiguousarray(rows.swapaxes(-1, -2), np.float32)
    return weights.group_scales(columns.reshape(-1, rows.shape[-2]), bits, search=search).reshape(-1, rows.shape[-1])


def _scales_of(weight: Array, groups: Array, bits: Bits, search: bool) -> Array:
    """[g, k, n] -> [g, groups, n]"""
    return np.stack([_scales(weight[:, a:b], bits, search) for a, b in _spans(groups)], 1)


def _spans(groups: Array) -> list[tuple[int, int]]:
    """(first row, row past the last) of each group."""
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    return list(pairwise(edges))


def _chunks(rows: int) -> list[tuple[int, int]]:
    return [(a, min(a + _CHUNK, rows)) for a in range(0, rows, _CHUNK)]


def _ratios(hessian: Array, damping: float) -> Array:
    """M[j, i] / M[i, i] for the upper triangular M with M M' = hessian + damping * mean(diagonal), of each [k, k].

    Matrices that cannot be factorised even with repeatedly raised damping become the identity: no changes."""
    size = hessian.shape[-1]
    found = np.broadcast_to(np.eye(size), hessian.shape).copy()
    mean = np.diagonal(hessian, axis1=1, axis2=2).mean(axis=1) if size else np.zeros(len(hessian))
    added = np.where(mean > 0, mean, 1.0)[:, None, None] * np.eye(size)
    left = np.arange(len(hessian))
    for attempt in range(_RAISED):
        lower, fine = _cholesky(hessian[left, ::-1, ::-1] + damping * 10.0**attempt * added[left])
        upper = lower[fine, ::-1, ::-1]
        found[left[fine]] = upper / np.diagonal(upper, axis1=1, axis2=2)[:, None, :]
        left = left[~fine]
        if not left.size:
            break
    return found


def _cholesky(matrix: Array) -> tuple[Array, Array]:
    """Lower triangular factors of [g, k, k], by panels of `_CHUNK` columns; and for which all pivots were positive."""
    lower, fine = np.zeros(matrix.shape), np.ones(len(matrix), bool)
    for start, stop in _chunks(matrix.shape[-1]):
        done = exact.product(lower[:, start:, :start], lower[:, start:stop, :start].swapaxes(1, 2))
        panel = matrix[:, start:, start:stop] - done
        for j in range(stop - start):
            pivot = panel[:, j, j]
            fine &= pivot > 0
            column = panel[:, j:, j] / np.sqrt(np.where(fine, pivot, 1.0))[:, None]
            column[~fine] = 0
            lower[:, start + j :, start + j] = column
            panel[:, j:, j + 1 :] -= column[:, :, None] * column[:, None, 1 : stop - start - j]
    return lower, fine


@dataclass(frozen=True)
class _Layer:
    """A weight, the tensor that it multiplies, and their conversion to matrices."""

    value: ir.Value
    place: Place
    weight: Array
    inputs: str
    patches: Callable[[Array], Array]
    """Values of the input tensor -> [groups, rows, k]; groups are a convolution's."""
    matrix: Callable[[Array], Array]
    """Anything of the weight's shape (or its scales') -> [groups, k, n], the reduction axis innermost in k."""
    restore: Callable[[Array, int], Array]
    """[groups, k', n] and the size of the reduction axis in k' -> the weight's axes."""
    centred: bool
    """Whether a bias can absorb the mean effect of the rounding errors, so that only the rest counts."""

    @property
    def name(self) -> str:
        return self.value.name or ""


def round_weights(
    model: ir.Model,
    samples: Samples,
    *,
    bits: Bits,
    block_size: int = BLOCK,
    search: bool = True,
    smallest: int = SMALLEST,
    activation_order: bool = True,
    threads: int = 0,
) -> dict[str, Quantized]:
    """GPTQ for the weights of MatMul, Gemm and Conv in the main graph; by initialiser name, for
    `weights.quantize_weights_only(ready=...)`. `block_size` 0: one scale for each output channel. The model is not
    changed. Weights that two operators read, or whose inputs cannot be observed, are not among the results.
    """
    found: dict[str, Quantized] = {}
    every = list(_layers(model, smallest))
    shapes = [layer.matrix(layer.weight).shape for layer in every]
    most = next((n for n in _LENGTHS if _work(shapes, n, _FEWEST) <= _SECONDS[bits]), _LENGTHS[-1])
    each = 2 * run_seconds(model) + _work(shapes, most, 1) - _work(shapes, most, 0)
    used = samples.first(affordable(_SECONDS[bits], each, _FEWEST, _SAMPLES))
    for layers in _batches(every, most):
        runner = Runner(model, {layer.inputs for layer in layers}, threads=threads)
        for layer, grams in zip(layers, _grams(layers, runner, used, most), strict=True):
            found[layer.name] = _round(layer, grams, most, bits, block_size, search, activation_order)
    return found


def _work(shapes: Iterable[tuple[int, ...]], most: int, samples: int) -> float:
    """An estimate of the seconds for layers [groups, k, n] with blocks of at most `most` of H."""
    total = 0
    for groups, length, outputs in shapes:
        block = min(length, most)
        total += groups * length * block * (samples * _ROWS + block + 4 * outputs)
    return total / _SUMS


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    """(first row, row past the last) of the blocks of H: as equal as multiples of `_ALIGNED` allow."""
    count = -(-length // most)
    size = -(-length // (count * _ALIGNED)) * _ALIGNED if count > 1 else length
    return [(a, min(a + size, length)) for a in range(0, length, size)]


def _round(
    layer: _Layer, grams: list[exact.Gram], most: int, bits: Bits, block: int, search: bool, activation_order: bool
) -> Quantized:
    matrix = layer.matrix(layer.weight)
    axis = layer.place.reduction % layer.weight.ndim
    length = layer.weight.shape[axis]
    block = block if block < length else 0
    if weights.width(layer.weight, layer.place, bits) != bits:
        bits, block = 8, 0
    rows = np.arange(matrix.shape[1])
    per_slice = -(-length // block) if block else 1
    groups = rows // length * per_slice + rows % length // block if block else np.zeros_like(rows)
    parts = _parts(len(rows), most)
    scales = _scales_of(matrix.astype(np.float64), groups, bits, search) if len(parts) > 1 else None
    values = np.zeros(matrix.shape, np.int8)
    for (a, b), gram in zip(parts, grams, strict=True):
        own = groups[a:b] - groups[a]
        given = None if scales is None else scales[:, groups[a] : groups[b - 1] + 1]
        hessian = gram.covariance if layer.centred else gram.matrix
        values[:, a:b], made = round_layer(
            matrix[:, a:b], hessian, own, bits=bits, search=search, activation_order=activation_order, scales=given
        )
        scales = made if len(parts) == 1 else scales
    assert scales is not None, "there is at least one part"
    shift = None
    if layer.centred:
        error = matrix - values * scales[:, groups].astype(np.float64)
        mean = np.concatenate([gram.mean for gram in grams], axis=-1)
        shift = exact.product(mean[:, None], error).reshape(-1).astype(np.float32)
    restored = layer.restore(values, length)
    if not block:
        channels = layer.place.channels % layer.weight.ndim
        return Quantized(restored, scales.reshape(-1), channels, 0, bits, shift)
    return Quantized(restored, layer.restore(scales, per_slice), axis, block, bits, shift)


def _batches(layers: Sequence[_Layer], most: int) -> Iterator[list[_Layer]]:
    """Groups of layers whose Hessians fit into memory together."""
    batch: list[_Layer] = []
    held = 0
    for layer in layers:
        groups, length, _ = layer.matrix(layer.weight).shape
        size = 8 * groups * length * min(length, most)
        if batch and held + size > _MEMORY:
            yield batch
            batch, held = [], 0
        batch.append(layer)
        held += size
    if batch:
        yield batch


def _grams(layers: Sequence[_Layer], runner: Runner, samples: Samples, most: int) -> list[list[exact.Gram]]:
    """The blocks of each layer's H. Two passes: the largest input of each column, then the sums on the grid that it
    determines."""
    largest = [np.zeros(layer.matrix(layer.weight).shape[:2]) for layer in layers]
    for sample in samples:
        seen = runner.run(sample)
        for found, layer in zip(largest, layers, strict=True):
            np.maximum(found, np.abs(layer.patches(seen[layer.inputs])).max(axis=1, initial=0), out=found)
    parts = [_parts(found.shape[1], most) for found in largest]
    grams = [[exact.Gram(found[:, a:b]) for a, b in own] for found, own in zip(largest, parts, strict=True)]
    for sample in samples:
        seen = runner.run(sample)
        for layer, own, blocks in zip(layers, parts, grams, strict=True):
            rows = layer.patches(seen[layer.inputs])
            for (a, b), gram in zip(own, blocks, strict=True):
                gram.add(rows[..., a:b])
    return grams


def _layers(model: ir.Model, smallest: int) -> Iterator[_Layer]:
    for node in model.graph:
        make = _MAKERS.get(node.op_type)
        for place, value, weight in weights.places(node, smallest):
            x = node.inputs[0]
            if make is None or place.operand != 1 or x is None or not x.name or build.array(x) is not None:
                continue
            layer = make(node, place, value, weight, x.name) if len(value.uses()) == 1 else None
            if layer is not None:
                yield layer


def _dense(node: ir.Node, place: Place, value: ir.Value, weight: Array, inputs: str) -> _Layer | None:
    if weight.ndim != 2 or attr(node, "transA", 0):
        return None
    across = place.reduction % 2 == 1

    def matrix(x: Array) -> Array:
        return (x.T if across else x)[None]

    return _Layer(
        value,
        place,
        weight,
        inputs,
        lambda x: _some(x.reshape(-1, x.shape[-1]))[None],
        matrix,
        lambda x, _: _whole(matrix(x[0])[0]),
        bias.place(node) is not None,
    )


def _conv(node: ir.Node, place: Place, value: ir.Value, weight: Array, inputs: str) -> _Layer | None:
    """k runs over the kernel's taps and, innermost, over channels: blocks lie along channels."""
    if attr(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    kernel, groups = weight.shape[2:], attr(node, "group", 1)
    taps = int(np.prod(kernel))

    def patches(x: Array) -> Array:
        return np.moveaxis(_patches(x, node, kernel).reshape(-1, taps, groups, weight.shape[1]), 2, 0).reshape(
            groups, -1, taps * weight.shape[1]
        )

    def matrix(w: Array) -> Array:
        split = w.reshape(groups, -1, w.shape[1], taps)
        return split.transpose(0, 3, 2, 1).reshape(groups, taps * w.shape[1], -1)

    def restore(x: Array, channels: int) -> Array:
        split = x.reshape(groups, taps, channels, -1).transpose(0, 3, 2, 1)
        return _whole(split.reshape(-1, channels, *kernel))

    return _Layer(value, place, weight, inputs, patches, matrix, restore, bias.place(node) is not None)


def _patches(x: Array, node: ir.Node, kernel: Sequence[int]) -> Array:
    """The inputs of at most `_ROWS` output positions of a Conv over `x` [n, c, ...]: [positions, taps * c]."""
    space = len(kernel)
    pads = list(attr(node, "pads", [0] * 2 * space))
    strides, dilations = attr(node, "strides", [1] * space), attr(node, "dilations", [1] * space)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:space], pads[space:], strict=True)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + space)))
    positions = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    windows = windows[(slice(None), slice(None), *positions, *taps)]
    places = (len(x), *windows.shape[2 : 2 + space])
    first, *rest = np.unravel_index(_spread(int(np.prod(places))), places)
    where: tuple[Any, ...] = (first, slice(None), *rest)
    seen = windows[where]
    rows: Array = np.moveaxis(seen, 1, -1).reshape(-1, int(np.prod(kernel)) * x.shape[1])
    return rows


def _some(rows: Array) -> Array:
    return rows[_spread(len(rows))]


def _spread(rows: int) -> Array:
    """Indices of at most `_ROWS` rows, evenly spread."""
    return np.arange(0, rows, max(1, -(-rows // _ROWS)))


def _whole(x: Array) -> Array:
    return np.ascontiguousarray(x)


_MAKERS: Mapping[str, Callable[[ir.Node, Place, ir.Value, Array, str], _Layer | None]] = {
    "MatMul": _dense,
    "Gemm": _dense,
    "Conv": _conv,
}
