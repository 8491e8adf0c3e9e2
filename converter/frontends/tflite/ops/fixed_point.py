"""LiteRT's fixed-point arithmetic for rules: multipliers with shifts, and nodes that rescale integers by them.

A real factor is a 31-bit multiplier and a shift (QuantizeMultiplier in kernels/internal/quantization_util.cc); its
products are rounded twice (MultiplyByQuantizedMultiplier in kernels/internal/common.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op
from converter.ir import build
from lite_runtime.reference.fixed_point import multiplier_of

__all__ = ["Factor", "factor", "narrowed", "rescaled", "scale_of", "typed", "zero_of"]

_T = ir.DataType


class Factor(NamedTuple):
    """A real factor as multiplier / 2**shift: int32, one number, or one for each index of the last axis."""

    multiplier: np.ndarray
    shift: np.ndarray
    rounding: str = "DOUBLE"


def factor(reals: float | np.floating | Sequence[float] | np.ndarray) -> Factor:
    """The nearest 31-bit multipliers of positive numbers, computed in float64. Raises ConvertError."""
    if not np.isfinite(reals).all():
        raise ConvertError(f"expected scales whose ratios are finite, got {reals}; export the model again")
    found = [multiplier_of(float(real)) for real in np.asarray(reals, np.float64).reshape(-1)]
    multipliers, shifts = (np.asarray(part, np.int32).reshape(np.shape(reals)) for part in zip(*found, strict=True))
    return Factor(multipliers, shifts)


def rescaled(
    op: Op, x: ir.Value, by: Factor, dtype: ir.DataType, zero: int = 0, x_zero: ir.Value | None = None
) -> ir.Value:
    """(x - x_zero) * factor + zero, rounded, and saturated to `dtype`."""
    inputs = [x, op.constant(by.multiplier), op.constant(by.shift), op.constant(np.asarray(zero, dtype.numpy()))]
    inputs += [] if x_zero is None else [x_zero]
    return typed(op.emit("Rescale", inputs, {"rounding": by.rounding}, domain=build.DOMAIN), dtype, x)


def typed(made: ir.Value, dtype: ir.DataType, like: ir.Value) -> ir.Value:
    """The result of an operator of our domain, with its element type and the shape of an operand."""
    made.type = ir.TensorType(dtype)
    if made.shape is None:
        made.shape = like.shape
    return made


def narrowed(op: Op, x: ir.Value, dtype: ir.DataType, low: int | None = None, high: int | None = None) -> ir.Value:
    """int32 `x` saturated to `dtype`, or to [low, high]."""
    ends = np.iinfo(dtype.numpy())
    bounds = (ends.min if low is None else low, ends.max if high is None else high)
    clipped = op.emit("Clip", [x, *(op.constant(np.asarray(bound, np.int32)) for bound in bounds)])
    return op.emit("Cast", [clipped], {"to": int(dtype)})


def scale_of(tensor: Tensor | None) -> np.float32 | None:
    """The one scale of a quantised tensor; None for any other."""
    if tensor is None or tensor.quant is None or not tensor.quant.per_tensor:
        return None
    return np.float32(tensor.quant.scale)


def zero_of(tensor: Tensor) -> int:
    """The zero point of a tensor with one scale."""
    return 0 if tensor.quant is None else int(tensor.quant.zero_point)
