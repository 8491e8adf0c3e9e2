"""Convolutions. Images come channels last, weights with output channels first (CONV_2D) or in the last place.

Each becomes the ONNX operator between two Transposes, which the channels-last pass removes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.weights import Scheme, bias, dynamic, dynamic_range, stored_weights
from converter.frontends.tflite.ops.windows import Window, image_sizes, images, padding, same, window
from converter.ir import build

__all__ = ["attributes", "channels_of", "transposed_window"]


@translate("CONV_2D")
def conv_2d(op: Op) -> ir.Value:
    """Weights (out, height, width, in / groups)."""
    out, height, width, inner = _weight_shape(op, 4)
    channels = channels_of(op)
    if channels % inner or out % max(channels // inner, 1):
        op.fail(f"expected weights of {channels} input channels (or a divisor of that), got {inner} by {out} outputs")
    win, x = window(op, (height, width)), images(op, op.real(0))
    attrs = attributes(op, x, win, channels // inner)
    if not dynamic_range(op, 1):
        return _conv(op, x, op.permuted(1, (0, 3, 1, 2)), attrs)
    if channels == inner and win.kernel == win.strides == (1, 1) and not _scheme(op):
        return op.activation(_pixelwise(op, x))
    return op.activation(_dynamic(op, x, (0, 3, 1, 2), attrs))


def _pixelwise(op: Op, x: ir.Value) -> ir.Value:
    """A dynamic-range convolution that only mixes channels: a matrix product, with a range for each pixel."""
    weights = stored_weights(op, 1, (0, 3, 1, 2)).reshape(op.tensor(1).shape[0], -1)
    return dynamic(op, "QLinearMatMul", x, 3, weights, 1, 2, {"transB": 1})


def _dynamic(op: Op, x: ir.Value, perm: Sequence[int], attrs: dict[str, Any]) -> ir.Value:
    """A dynamic-range convolution, with a range for each image."""
    weights = stored_weights(op, 1, perm)
    return dynamic(op, "QLinearConv", x, 1, weights, 1, 2, {**attrs, "layout": "NHWC"}, _scheme(op))


def _scheme(op: Op) -> Scheme:
    """XNNPACK has no convolutions by 4-bit weights."""
    tensor = op.tensor(1)
    if not op.litert or tensor.quant is None or tensor.type_name != "INT4":
        return ""
    return "SYMMETRIC" if tensor.quant.per_tensor else "ASYMMETRIC"


@translate("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(op: Op) -> ir.Value:
    """Weights (1, height, width, in * multiplier): output channel c * multiplier + m comes from input channel c."""
    _, height, width, out = _weight_shape(op, 4)
    channels = channels_of(op)
    if not channels or out % channels:
        op.fail(f"expected weights of a multiple of {channels} channels, got {out}")
    win, x = window(op, (height, width)), images(op, op.real(0))
    attrs = attributes(op, x, win, channels)
    if dynamic_range(op, 1):
        return op.activation(_dynamic(op, x, (3, 0, 1, 2), attrs))
    return _conv(op, x, op.permuted(1, (3, 0, 1, 2)), attrs)


@translate("CONV_3D")
def conv_3d(op: Op) -> ir.Value:
    """Weights (depth, height, width, in / groups, out)."""
    *kernel, inner, _ = _weight_shape(op, 5)
    channels = channels_of(op)
    if not inner or channels % inner:
        op.fail(f"expected weights of {channels} input channels, got {inner}")
    win, x = window(op, kernel), images(op, op.real(0), 5)
    return _conv(op, x, op.permuted(1, (4, 3, 0, 1, 2)), attributes(op, x, win, channels // inner))


@translate("TRANSPOSE_CONV")
def transpose_conv(op: Op) -> ir.Value:
    """Operands: the result's shape, weights (out, height, width, in), images, and maybe a bias."""
    return _transposed(op, (3, 0, 1, 2), 4)


@translate("CONV_3D_TRANSPOSE")
def conv_3d_transpose(op: Op) -> ir.Value:
    """Operands: the result's shape, weights (depth, height, width, out, in), volumes, and maybe a bias."""
    return _transposed(op, (4, 3, 0, 1, 2), 5)


def _conv(op: Op, x: ir.Value, weights: ir.Value, attrs: dict[str, Any]) -> ir.Value:
    inputs = [op.nchw(x), weights, bias(op, 2, 1)]
    return op.activation(op.nhwc(op.emit("Conv", inputs if inputs[2] is not None else inputs[:2], attrs)))


def _weight_shape(op: Op, rank: int, i: int = 1) -> tuple[int, ...]:
    shape = op.tensor(i).shape
    if len(shape) != rank or 0 in shape:
        op.fail(f"expected weights of {rank} dimensions of at least 1, got shape {list(shape)}")
    return shape


def channels_of(op: Op, i: int = 0) -> int:
    """The number of channels, the last axis of input `i`."""
    dims = build.dims(op.raw(i)) or op.tensor(i).shape_signature
    channels = dims[-1] if dims else None
    if not isinstance(channels, int) or channels < 1:
        op.fail(f"expected images with a known number of channels, got shape {list(dims)}")
    return channels


def attributes(op: Op, x: ir.Value, win: Window, groups: int) -> dict[str, Any]:
    """Of a convolution of `x`, channels last, in `groups`."""
    return {
        "kernel_shape": win.kernel,
        "strides": win.strides,
        "dilations": win.dilations,
        "group": groups,
        **padding(op, image_sizes(x), win),
    }


def _transposed(op: Op, perm: Sequence[int], rank: int) -> ir.Value:
    shape = _weight_shape(op, rank, 1)
    weight_of = [shape[p] for p in perm]  # (in, out, *kernel)
    x = images(op, op.real(2), rank)
    if channels_of(op, 2) != weight_of[0]:
        op.fail(f"expected weights of {channels_of(op, 2)} input channels, got {weight_of[0]}")
    win = window(op, weight_of[2:])
    attrs = {"kernel_shape": win.kernel, "strides": win.strides, "dilations": win.dilations}
    attrs |= _transposed_pads(op, image_sizes(x), win)
    if dynamic_range(op, 1, x=2):
        stored = stored_weights(op, 1, perm)
        return op.activation(dynamic(op, "QLinearConvTranspose", x, 1, stored, 1, 3, {**attrs, "layout": "NHWC"}))
    inputs, added = [op.nchw(x), op.permuted(1, perm)], bias(op, 3, 1, x=2)
    return op.activation(op.nhwc(op.emit("ConvTranspose", inputs if added is None else [*inputs, added], attrs)))


def transposed_window(op: Op, sizes: tuple[int, ...]) -> tuple[Window, tuple[int, ...], tuple[int, ...]]:
    """The window of TRANSPOSE_CONV on images of `sizes`, how much it crops before the result, and the result's
    sizes."""
    win = window(op, _weight_shape(op, 4, 1)[1:3])
    pads = _transposed_pads(op, sizes, win)
    spans = [(n - 1) * s + k for n, s, k in zip(sizes, win.strides, win.kernel, strict=True)]
    cuts = [begin + end for begin, end in zip(pads["pads"][:2], pads["pads"][2:], strict=True)]
    wanted = [span - cut + rest for span, cut, rest in zip(spans, cuts, pads["output_padding"], strict=True)]
    return win, tuple(pads["pads"][:2]), tuple(wanted)


def _transposed_pads(op: Op, sizes: tuple[int, ...] | None, win: Window) -> dict[str, Any]:
    """The padding of the forward convolution is cropped from the result; a remainder that it did not cover is added."""
    spans = [(k - 1) * d + 1 for k, d in zip(win.kernel, win.dilations, strict=True)]
    wanted = _result_sizes(op, len(win.kernel))
    if wanted is not None and sizes is not None:
        cuts = [(n - 1) * s + k - out for n, s, k, out in zip(sizes, win.strides, spans, wanted, strict=True)]
    elif same(op):
        cuts = [k - s for s, k in zip(win.strides, spans, strict=True)]
    else:
        cuts = [min(k - s, 0) for s, k in zip(win.strides, spans, strict=True)]
    rests = [max(-cut, 0) for cut in cuts]
    if any(rest >= max(s, d) for rest, s, d in zip(rests, win.strides, win.dilations, strict=True)):
        op.fail(f"expected a result of about stride times the input's size {sizes}, got {wanted}")
    if not same(op) and any(cut > 0 for cut in cuts):
        op.fail(f"expected a result of at least {sizes} windows for VALID padding, got {wanted}")
    cuts = [max(cut, 0) for cut in cuts]
    return {"pads": [c // 2 for c in cuts] + [c - c // 2 for c in cuts], "output_padding": rests}


def _result_sizes(op: Op, count: int) -> tuple[int, ...] | None:
    """The image sizes given by operand 0, or declared in the file."""
    asked = op.ints(0)
    if asked is not None:
        if len(asked) != count + 2 or min(asked) < 0:
            op.fail(f"expected the result's shape of {count + 2} sizes, got {list(asked)}")
        return asked[1:-1]
    declared = op.output().shape_signature[1:-1]
    return declared if len(declared) == count and min(declared, default=-1) > 0 else None
