"""Convolutions and matrix products that LiteRT's own kernels compute on integers, each with its own rounding; XNNPACK's
are in the rules on real numbers.

Of 16-bit activations: sums of 64 bits times 15-bit multipliers (kernels/conv.cc, depthwise_conv.cc, transpose_conv.cc,
batch_matmul.cc), or in float64 (fully_connected.cc); with 32-bit biases, sums of 32 bits times 31-bit multipliers, as
in the matrix library (ruy) or by vector code (kernels/internal/optimized/optimized_ops.h).
Of bytes: convolutions by 4-bit weights, and products whose right operand has a zero point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.convolution import attributes, channels_of, transposed_window
from converter.frontends.tflite.ops.dense import rows, transposed
from converter.frontends.tflite.ops.fixed_point import (
    QUIETLY,
    bounds,
    dtype_of,
    factor,
    narrowed,
    rescaled,
    scale_of,
    zero_of,
)
from converter.frontends.tflite.ops.operands import cast
from converter.frontends.tflite.ops.weights import stored_weights
from converter.frontends.tflite.ops.windows import image_sizes, images, window
from converter.ir import build

__all__: list[str] = []

_T = ir.DataType
_INT32, _INT64 = 2, 4
"""The schema's numbers of the types of a bias."""
Rounding = Literal["FIXED", "TWICE", "DOUBLE", "LANES", "REAL"]


class _Kind(NamedTuple):
    """Of a contraction's operand at the place `x`, its weights and its result."""

    x: ir.DataType
    weights: str
    y: ir.DataType


def _kind(op: Op, x: int = 0) -> _Kind | None:
    """None for what is not quantised as the kernels here need it."""
    a, w, y = op.tensor(x), op.tensor(1), op.output()
    if scale_of(a) is None or scale_of(y) is None or w.quant is None or w.quant.block or a.dtype is None:
        return None
    return None if y.dtype is None else _Kind(a.dtype, w.type_name, y.dtype)


def _narrow_bias(op: Op) -> bool:
    return bool(op.option("quantized_bias_type", 0) == _INT32)


def _contraction(
    op: Op,
    kind: str,
    x: ir.Value,
    weights: np.ndarray,
    added: int,
    rounding: Rounding,
    attrs: dict[str, Any],
    at: int = 0,
) -> ir.Value | None:
    """`kind` of integers `x`, which are those of input `at`; `weights` in its layout; input `added` is the bias. None
    for an activation that is no range."""
    ends, tensor, y = bounds(op), op.tensor(1), op.output()
    if ends is None or tensor.quant is None:
        return None
    if tensor.type_name == "INT4":
        weights = weights.astype(ml_dtypes.int4)
    scale, zero = np.float32(scale_of(y)), np.asarray(tensor.quant.zero_point)
    low, high = (float((end - zero_of(y)) * scale) for end in ends)
    operands = [
        x, *_parameters(op, at), op.constant(weights, hint=tensor.name), op.constant(tensor.quant.scale),
        op.constant(zero.astype(np.int16 if weights.dtype == np.int16 else np.int8)), *_parameters(op, None),
    ]  # fmt: skip
    bias = op.const(added) if op.has(added) else None
    if op.has(added) and bias is None:
        return None
    if bias is not None:
        operands.append(op.constant(bias.astype(np.int64 if op.tensor(at).dtype == _T.INT16 else np.int32)))
    attrs = {**attrs, "rounding": rounding, "activation": "Clip", "activation_min": low, "activation_max": high}
    return op.emit(kind, operands, attrs, domain=build.DOMAIN)


def _parameters(op: Op, i: int | None) -> list[ir.Value]:
    """Scale and zero point of input `i`, or of the result."""
    tensor = op.output() if i is None else op.tensor(i)
    zero = np.asarray(zero_of(tensor), dtype_of(op, tensor).numpy())
    return [op.constant(np.float32(scale_of(tensor))), op.constant(zero)]


# convolutions


@integers("CONV_2D", "DEPTHWISE_CONV_2D")
def convolution(op: Op) -> ir.Value | None:
    """Of 16 bits, or of bytes by 4-bit weights."""
    kind = _kind(op)
    if kind is None or kind.x != kind.y or op.const(1) is None or kind.weights not in ("INT8", "INT4"):
        return None
    deep = op.name == "DEPTHWISE_CONV_2D"
    shape, channels = op.tensor(1).shape, channels_of(op)
    groups = channels if deep else channels // shape[-1]
    rounding: Rounding = "FIXED"
    if kind.x != _T.INT16 and kind.weights == "INT4":
        rounding = "LANES" if deep else "TWICE"
    elif kind.x != _T.INT16:
        return None
    elif _narrow_bias(op):
        rounding = "TWICE" if groups == 1 else "DOUBLE"
    win, x = window(op, shape[1:3]), images(op, op.raw(0))
    attrs = {**attributes(op, x, win, groups), "layout": "NHWC"}
    return _contraction(
        op, "QLinearConv", x, stored_weights(op, 1, (3, 0, 1, 2) if deep else (0, 3, 1, 2)), 2, rounding, attrs
    )


@integers("TRANSPOSE_CONV")
def transpose_conv(op: Op) -> ir.Value | None:
    """Of 16 bits: a convolution of the image with zeros between its pixels by the flipped weights. None for open
    sizes."""
    kind, x = _kind(op, 2), op.raw(2)
    sizes = image_sizes(images(op, x))
    if kind is None or kind.x != kind.y or kind.x != _T.INT16 or kind.weights != "INT8" or op.const(1) is None:
        return None
    if sizes is None:
        return None
    win, begins, wanted = transposed_window(op, sizes)
    for axis, (size, stride) in enumerate(zip(sizes, win.strides, strict=True), 1):
        x = _spread(op, x, axis, size, stride)
    spread = [size * stride for size, stride in zip(sizes, win.strides, strict=True)]
    before = [k - 1 - begin for k, begin in zip(win.kernel, begins, strict=True)]
    after = [out - n - b + k - 1 for out, n, b, k in zip(wanted, spread, before, win.kernel, strict=True)]
    x = _cropped(op, x, [max(-b, 0) for b in before], [n - max(-a, 0) for n, a in zip(spread, after, strict=True)])
    attrs = {"layout": "NHWC", "kernel_shape": win.kernel, "pads": [max(p, 0) for p in (*before, *after)]}
    weights = np.ascontiguousarray(stored_weights(op, 1, (0, 3, 1, 2))[:, :, ::-1, ::-1])
    rounding: Rounding = "LANES" if _narrow_bias(op) else "FIXED"
    return _contraction(op, "QLinearConv", x, weights, 3, rounding, attrs, 2)


def _spread(op: Op, x: ir.Value, axis: int, size: int, stride: int) -> ir.Value:
    """`stride` - 1 zeros after each index of an axis."""
    if stride == 1:
        return x
    place = op.constant([axis + 1])
    apart = op.emit("Unsqueeze", [x, place])
    zero = op.constant(np.zeros((), np.int16))
    apart = op.emit("Pad", [apart, op.constant([0, stride - 1]), zero, place])
    shape = [0] * axis + [size * stride] + [0] * (3 - axis)
    before = op.emit("Shape", [x])
    target = op.emit("Where", [op.constant(np.array(shape) > 0), op.constant(shape, np.int64), before])
    return op.emit("Reshape", [apart, target])


def _cropped(op: Op, x: ir.Value, starts: Sequence[int], ends: Sequence[int]) -> ir.Value:
    axes = op.constant([1, 2])
    return op.emit("Slice", [x, op.constant(list(starts), np.int64), op.constant(list(ends), np.int64), axes])


# matrix products


@integers("FULLY_CONNECTED")
def fully_connected(op: Op) -> ir.Value | None:
    """Of 16 bits, or from bytes to 16 bits."""
    kind, stored = _kind(op), op.const(1)
    if kind is None or stored is None or stored.ndim != 2 or kind.y != _T.INT16:
        return None
    x = rows(op, op.raw(0), stored.shape[1])
    if kind.x == _T.UINT8 and kind.weights == "UINT8":
        return _widened(op, x, stored)
    if kind.x != kind.y or kind.weights not in ("INT16", "INT8", "INT4"):
        return None
    bias = op.tensor(2).dtype if op.has(2) else None
    rounding: Rounding = "FIXED"
    if kind.weights != "INT16":
        rounding = "REAL" if bias == _T.INT64 or op.option("quantized_bias_type", 0) == _INT64 else "TWICE"
    return _contraction(op, "QLinearMatMul", x, stored, 2, rounding, {"transB": 1})


@QUIETLY
def _widened(op: Op, x: ir.Value, stored: np.ndarray) -> ir.Value | None:
    """Of bytes to 16 bits."""
    (x_scale, w_scale, y_scale), ends = (scale_of(t) for t in (op.tensor(0), op.tensor(1), op.output())), bounds(op)
    if x_scale is None or w_scale is None or y_scale is None or ends is None:
        return None
    zeros = [op.constant(np.asarray(zero_of(op.tensor(i)), np.uint8)) for i in (0, 1)]
    total = op.emit("MatMulInteger", [x, op.constant(np.ascontiguousarray(stored.T)), *zeros])
    if op.has(2):
        total = op.emit("Add", [total, op.raw(2)])
    by = factor(float(x_scale) * float(w_scale) / float(y_scale))._replace(rounding="TWICE")
    return narrowed(op, rescaled(op, total, by, _T.INT32, zero_of(op.output())), _T.INT16, *ends)


@integers("BATCH_MATMUL")
def batch_matmul(op: Op) -> ir.Value | None:
    """Of 16 bits; of bytes where the right operand has a zero point, which XNNPACK does not take; to sums of bytes,
    which LiteRT leaves as they are, zero points included."""
    a, b, y = op.tensor(0), op.tensor(1), op.output()
    pair = transposed(op, op.raw(0)) if op.option("adj_x") else op.raw(0), op.raw(1)
    if a.dtype == b.dtype == _T.INT8 and y.dtype == _T.INT32:
        return op.emit("MatMulInteger", [pair[0], transposed(op, pair[1]) if op.option("adj_y") else pair[1]])
    scales = [scale_of(t) for t in (a, b, y)]
    if None in scales or a.dtype != y.dtype:
        return None
    if a.dtype == b.dtype == _T.INT8 and zero_of(b):
        rounding: Rounding = "DOUBLE"
    elif a.dtype == _T.INT16 and b.dtype in (_T.INT16, _T.INT8):
        rounding = "FIXED"
    else:
        return None
    left = [pair[0], *_parameters(op, 0)]
    right = [cast(op, pair[1], a.dtype), op.constant(scales[1]), op.constant(np.asarray(zero_of(b), a.dtype.numpy()))]
    attrs = {"rounding": rounding, "transB": int(bool(op.option("adj_y")))}
    return op.emit("QLinearMatMul", [*left, *right, *_parameters(op, None)], attrs, domain=build.DOMAIN)
