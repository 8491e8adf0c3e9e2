"""LiteRT's fixed-point arithmetic for rules: multipliers with shifts, and nodes that rescale integers by them.

A real factor is a 31-bit multiplier and a shift (QuantizeMultiplier in kernels/internal/quantization_util.cc); its
products are rounded twice (MultiplyByQuantizedMultiplier in kernels/internal/common.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op
from converter.ir import build
from lite_runtime.reference.fixed_point import multiplier_of, short_multiplier_of

__all__ = [
    "QUIETLY",
    "RANGES",
    "Factor",
    "bounds",
    "dtype_of",
    "factor",
    "narrowed",
    "rescaled",
    "scale_of",
    "short_factor",
    "zero_of",
]

_T = ir.DataType
QUIETLY = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""Ratios of scales that a damaged file has may overflow: `factor` refuses them."""
RANGES: Mapping[str, tuple[float, float]] = {
    "RELU": (0, np.inf), "RELU_N1_TO_1": (-1, 1), "RELU6": (0, 6), "RELU_0_TO_1": (0, 1),
}  # fmt: skip
"""Activations that are ranges, by name."""
_FUSED = ("", "RELU", "RELU_N1_TO_1", "RELU6")
"""Fused activations, by the schema's number."""


class Factor(NamedTuple):
    """A real factor as multiplier / 2**shift: int32, one number, or one for each index of the last axis."""

    multiplier: np.ndarray
    shift: np.ndarray
    rounding: str = "DOUBLE"


def factor(reals: float | np.floating | Sequence[float] | np.ndarray) -> Factor:
    """The nearest 31-bit multipliers of positive numbers, computed in float64. Raises ConvertError."""
    return _factor(multiplier_of, reals)


def _factor(
    multiplier: Callable[[float], tuple[int, int]], reals: float | np.floating | Sequence[float] | np.ndarray
) -> Factor:
    if not np.isfinite(reals).all():
        raise ConvertError(f"expected scales whose ratios are finite, got {reals}; export the model again")
    found = [multiplier(float(real)) for real in np.asarray(reals, np.float64).reshape(-1)]
    multipliers, shifts = (np.asarray(part, np.int32).reshape(np.shape(reals)) for part in zip(*found, strict=True))
    return Factor(multipliers, shifts)


def short_factor(reals: float | np.floating | Sequence[float] | np.ndarray) -> Factor:
    """The nearest 15-bit multipliers, by which LiteRT multiplies sums of 64 bits and rounds once."""
    return _factor(short_multiplier_of, reals)._replace(rounding="UP")


def rescaled(
    op: Op, x: ir.Value, by: Factor, dtype: ir.DataType, zero: int = 0, x_zero: ir.Value | None = None
) -> ir.Value:
    """(x - x_zero) * factor + zero, rounded, and saturated to `dtype`."""
    inputs = [x, op.constant(by.multiplier), op.constant(by.shift), op.constant(np.asarray(zero, dtype.numpy()))]
    inputs += [] if x_zero is None else [x_zero]
    return op.emit("Rescale", inputs, {"rounding": by.rounding}, domain=build.DOMAIN)


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


def dtype_of(op: Op, tensor: Tensor) -> ir.DataType:
    """The element type of a tensor that must have one."""
    if tensor.dtype is None:
        op.fail(f"expected tensor {tensor.name!r} to have an element type, got none")
    return tensor.dtype


def bounds(op: Op, activation: str = "") -> tuple[int, int] | None:
    """The least and greatest stored result after an activation, the fused one by default; None: it is no range, or the
    result is no integer."""
    number, out = int(op.option("fused_activation_function", 0)), op.output()
    known = activation or 0 <= number < len(_FUSED)
    if not known or dtype_of(op, out).numpy().kind not in "iu":  # nor of 4 bits
        return None
    low, high = RANGES.get(activation or _FUSED[number], (-np.inf, np.inf))
    ends, zero = np.iinfo(dtype_of(op, out).numpy()), zero_of(out)
    scale = scale_of(out)

    def stored(real: float) -> float:
        """Halves are rounded away from zero."""
        steps = np.float32(real) / np.float32(1 if scale is None else scale)
        return float(np.trunc(steps + np.copysign(np.float32(0.5), steps))) + zero

    return int(max(stored(low), ends.min)), int(min(stored(high), ends.max))
