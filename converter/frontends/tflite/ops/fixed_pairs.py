"""Sums, differences and products of two int16 tensors in LiteRT's fixed-point arithmetic (kernels/add.cc, sub.cc,
mul.cc); those of bytes are XNNPACK's, which our integer operators compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op
from converter.frontends.tflite.ops.fixed_point import factor, narrowed, rescaled, scale_of, zero_of
from converter.frontends.tflite.ops.operands import cast

__all__ = ["fixed_pair"]

_T = ir.DataType
_SHIFT = 15
"""The bits by which operands of a sum are shifted to the left."""
_RANGES: Mapping[int, tuple[float, float]] = {1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}
"""Fused activations that are ranges, by the schema's number."""


def fixed_pair(op: Op) -> ir.Value | None:
    """The stored result; None where exact arithmetic is wanted, or LiteRT computes otherwise."""
    rule = _RULES.get(op.name)
    activation = int(op.option("fused_activation_function", 0))
    tensors = [op.tensor(0), op.tensor(1), op.output()]
    if rule is None or not op.litert or (activation and activation not in _RANGES):
        return None
    if any(t.dtype != _T.INT16 or scale_of(t) is None or zero_of(t) for t in tensors):
        return None
    total = rule(op, *(np.float32(scale_of(t)) for t in tensors))
    low, high = _RANGES.get(activation, (-np.inf, np.inf))
    ends, step = np.iinfo(np.int16), float(np.float32(scale_of(op.output())))
    bounds = [float(np.clip(np.floor(abs(v) / step + 0.5) * np.sign(v), ends.min, ends.max)) for v in (low, high)]
    return narrowed(op, total, _T.INT16, int(bounds[0]), int(bounds[1]))


def _sum(op: Op, a: np.float32, b: np.float32, y: np.float32) -> ir.Value:
    """Both operands in units of twice the larger scale / 2**15."""
    most = 2 * float(max(a, b))

    def operand(i: int, scale: np.float32) -> ir.Value:
        wide = op.emit("Mul", [cast(op, op.raw(i), _T.INT32), op.constant(np.asarray(1 << _SHIFT, np.int32))])
        return rescaled(op, wide, factor(float(scale) / most), _T.INT32)

    total = op.emit("Sub" if op.name == "SUB" else "Add", [operand(0, a), operand(1, b)])
    return rescaled(op, total, factor(most / float(np.float32(1 << _SHIFT) * y)), _T.INT32)


def _product(op: Op, a: np.float32, b: np.float32, y: np.float32) -> ir.Value:
    product = op.emit("Mul", [cast(op, op.raw(0), _T.INT32), cast(op, op.raw(1), _T.INT32)])
    return rescaled(op, product, factor(a * b / y), _T.INT32)


_RULES: Mapping[str, Callable[[Op, np.float32, np.float32, np.float32], ir.Value]] = {
    "ADD": _sum,
    "SUB": _sum,
    "MUL": _product,
}
