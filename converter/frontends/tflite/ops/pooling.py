"""Pools over images, channels last."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import relabelled, same_quant
from converter.frontends.tflite.ops.windows import Window, image_sizes, images, padding, positive
from converter.ir import build

__all__ = ["averaged"]

_MAX_OF_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)


@translate("AVERAGE_POOL_2D")
def average_pool(op: Op) -> ir.Value:
    """The mean of the window's elements inside the image."""
    return op.activation(_pool(op, op.real(0), "AveragePool"))


@translate("MAX_POOL_2D")
def max_pool(op: Op) -> ir.Value:
    """The largest of the window's elements; of stored integers where they mean the same before and after."""
    plain = not op.option("fused_activation_function", 0) and same_quant(op.tensor(0), op.output())
    if plain and op.tensor(0).dtype in _MAX_OF_INTEGERS:
        return _pool(op, op.raw(0), "MaxPool")
    return op.activation(_pool(op, relabelled(op) if op.litert else op.real(0), "MaxPool"))


@translate("L2_POOL_2D")
def l2_pool(op: Op) -> ir.Value:
    """The root of the mean of squares."""
    x = op.real(0)
    return op.activation(op.emit("Sqrt", [_pool(op, op.emit("Mul", [x, x]), "AveragePool")]))


def _pool(op: Op, x: ir.Value, kind: str) -> ir.Value:
    attrs = _attributes(op, x)
    return op.nhwc(op.emit(kind, [op.nchw(x)], attrs))


def _attributes(op: Op, x: ir.Value) -> dict[str, Any]:
    kernel = positive(op, "filter_height"), positive(op, "filter_width")
    win = Window(kernel, (positive(op, "stride_h"), positive(op, "stride_w")), (1, 1))
    return {"kernel_shape": win.kernel, "strides": win.strides, **padding(op, image_sizes(images(op, x)), win)}


def averaged(op: Op) -> ir.Value:
    """The average pool of a quantised operand's stored integers, without the activation."""
    x, tensor = op.raw(0), op.tensor(0)
    if tensor.quant is None or tensor.dtype is None:
        op.fail(f"expected a quantised operand, got {tensor.type_name} {tensor.name!r}")
    own = [op.constant(tensor.quant.scale), op.constant(tensor.quant.zero_point.astype(tensor.dtype.numpy()))]
    attrs = {**_attributes(op, x), "layout": "NHWC"}
    return op.emit("QLinearAveragePool", [x, *own, *own], attrs, domain=build.DOMAIN)
