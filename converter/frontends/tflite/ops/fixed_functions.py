"""Functions of one quantised number as LiteRT computes them: tables for 8 bits, integer operators for 16.

XNNPACK, which LiteRT runs first, rescales bytes by multiples of 1/256; LiteRT's own kernels by 31-bit multipliers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op
from converter.frontends.tflite.ops.fixed_point import Factor, factor, rescaled, scale_of, typed, zero_of
from converter.frontends.tflite.ops.operands import same_quant
from converter.ir import build
from lite_runtime.reference import DEFINITIONS
from lite_runtime.reference.fixed_point import rounded_shift

__all__ = ["hard_swish", "leaky_relu", "requantized"]

_QUIETLY = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""Ratios of scales that a damaged file has may overflow: `factor` refuses them."""
_T = ir.DataType
_BYTES = (_T.INT8, _T.UINT8)
_SHORT = (*_BYTES, _T.INT16)
_RATIOS = (2.0**-8, 2.0**7)
"""The ratios of scales that XNNPACK's conversions and leaky ReLU take."""
Table = Callable[[np.ndarray], np.ndarray]


def _scales(op: Op) -> tuple[float, float] | None:
    """Of the operand and the result, if LiteRT's integer kernels take them."""
    x, y = op.tensor(0), op.output()
    one, other = scale_of(x), scale_of(y)
    if not op.litert or x.dtype not in _SHORT or y.dtype not in _SHORT or one is None or other is None:
        return None
    return float(one), float(other)


def _tabulated(op: Op, values: Table) -> ir.Value:
    """The table of an 8-bit function: `values` of all bytes minus the zero point, plus the result's, saturated."""
    x, y = op.tensor(0), op.output()
    into = _dtype(op, y)
    ends, limits = np.iinfo(_dtype(op, x).numpy()), np.iinfo(into.numpy())
    found = values(np.arange(ends.min, ends.max + 1, dtype=np.int64) - zero_of(x)) + zero_of(y)
    table = op.constant(np.clip(found, limits.min, limits.max).astype(into.numpy()))
    raw = op.raw(0)
    return typed(op.emit("LookupTable", [raw, table], domain=build.DOMAIN), into, raw)


def _times(x: np.ndarray, by: Factor) -> np.ndarray:
    rescale = DEFINITIONS["Rescale"]
    return np.asarray(rescale(x, by.multiplier, by.shift, np.int64(0), rounding=by.rounding))


def _times_by_vectors(x: np.ndarray, by: Factor) -> np.ndarray:
    """The same as LiteRT's vector code rounds it, from bytes to bytes: both times halves up. It covers all elements but
    those after the last multiple of 16, which are rounded as by `_times`; a table cannot tell them apart."""
    first = np.minimum(by.shift, 31)
    whole = _times(x, Factor(by.multiplier, first, "UP"))
    return _times(whole, Factor(np.ones_like(first), by.shift - first, "UP"))


def _by_xnnpack(op: Op, ratio: float) -> bool:
    """Whether XNNPACK has the operator: bytes of one type."""
    x, y = op.tensor(0), op.output()
    return x.dtype == y.dtype and x.dtype in _BYTES and _RATIOS[0] <= ratio <= _RATIOS[1]


def _fraction(ratio: np.float32) -> Factor:
    """The nearest multiple of 1/256."""
    return Factor(np.asarray(np.rint(np.float32(256) * ratio), np.int32), np.asarray(8, np.int32), "UP")


@_QUIETLY
def requantized(op: Op) -> ir.Value | None:
    """QUANTIZE between integers; None where exact arithmetic gives the same or is wanted."""
    scales = _scales(op)
    if scales is None or same_quant(op.tensor(0), op.output()):
        return None
    ratio = np.float32(scales[0]) / np.float32(scales[1])
    by = _fraction(ratio) if _by_xnnpack(op, float(ratio)) else factor(scales[0] / scales[1])
    return _rescaled_whole(op, by)


def _rescaled_whole(op: Op, by: Factor) -> ir.Value:
    x, y = op.tensor(0), op.output()
    if x.dtype in _BYTES and y.dtype in _BYTES and by.rounding == "DOUBLE":
        return _tabulated(op, lambda whole: _times_by_vectors(whole, by))
    if x.dtype in _BYTES:
        return _tabulated(op, lambda whole: _times(whole, by))
    return rescaled(op, op.raw(0), by, _dtype(op, y), zero_of(y), _zero(op))


def _zero(op: Op) -> ir.Value:
    x = op.tensor(0)
    return op.constant(np.asarray(zero_of(x), _dtype(op, x).numpy()))


def _dtype(op: Op, tensor: Tensor) -> ir.DataType:
    if tensor.dtype is None:
        op.fail(f"expected tensor {tensor.name!r} to have an element type, got none")
    return tensor.dtype


@_QUIETLY
def leaky_relu(op: Op) -> ir.Value | None:
    """LEAKY_RELU: another factor below zero; None where exact arithmetic is wanted, or for a negative slope."""
    scales, alpha = _scales(op), np.float32(op.option("alpha", 0.0))
    x, y = op.tensor(0), op.output()
    if scales is None or alpha < 0 or x.dtype != y.dtype or x.dtype is None:
        return None
    ratio = np.float32(scales[0]) / np.float32(scales[1])
    if _by_xnnpack(op, float(ratio)) and _by_xnnpack(op, float(ratio * alpha)):
        above, below = _fraction(ratio), _fraction(ratio * alpha)
    else:
        above, below = factor(ratio), factor(np.float32(scales[0]) * alpha / np.float32(scales[1]))
    if x.dtype in _BYTES:
        return _tabulated(op, lambda whole: np.where(whole >= 0, _times(whole, above), _times(whole, below)))
    parts = [rescaled(op, op.raw(0), by, x.dtype, zero_of(y), _zero(op)) for by in (below, above)]
    return op.emit("Where", [op.emit("Less", [op.raw(0), _zero(op)]), *parts])


@_QUIETLY
def hard_swish(op: Op) -> ir.Value | None:
    """HARD_SWISH of bytes, with 16-bit multipliers (kernels/internal/reference/hard_swish.h)."""
    scales = _scales(op)
    if scales is None or op.tensor(0).dtype not in _BYTES or op.output().dtype not in _BYTES:
        return None
    fine = np.float32(1 / 128) * np.float32(scales[0])
    out, down = _short_factor(fine / np.float32(scales[1]))
    gate, up = _short_factor(fine / (np.float32(3) / np.float32(32768)))
    if down > 0:
        return None  # which LiteRT refuses

    def values(x: np.ndarray) -> np.ndarray:
        x = x << 7
        opened = _saturated(x << max(up - 1, 0))
        opened = _saturated(_high_product(opened, gate) << (up > 0))
        opened = (rounded_shift(opened, max(-up, 0)) + (1 << 15)) >> 1
        product = opened * _high_product(x, out)
        return rounded_shift(np.sign(product) * (np.abs(product) >> 15), -down)

    return _tabulated(op, values)


def _short_factor(real: np.float32) -> tuple[int, int]:
    """A 15-bit multiplier and the exponent of two."""
    by = factor(real)
    return min((int(by.multiplier) + (1 << 15)) >> 16, (1 << 15) - 1), 31 - int(by.shift)


def _saturated(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(x, -(1 << 15), (1 << 15) - 1))


def _high_product(x: np.ndarray, multiplier: int) -> np.ndarray:
    """x * multiplier / 2**15, halves up."""
    return np.asarray((x * multiplier + (1 << 14)) >> 15)
