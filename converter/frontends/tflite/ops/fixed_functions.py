"""Functions of one quantised number as LiteRT computes them: tables for 8 bits, integer operators for 16.

XNNPACK, which LiteRT runs first, rescales bytes by multiples of 1/256; LiteRT's own kernels by 31-bit multipliers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.fixed_point import (
    QUIETLY,
    RANGES,
    Factor,
    bounds,
    dtype_of,
    factor,
    narrowed,
    rescaled,
    scale_of,
    zero_of,
)
from converter.frontends.tflite.ops.operands import cast, same_quant
from converter.ir import build
from lite_runtime.reference import DEFINITIONS
from lite_runtime.reference.fixed_point import inverse_root, rounded_shift

__all__ = ["reciprocal_root", "scales_of"]

_T = ir.DataType
_BYTES = (_T.INT8, _T.UINT8)
_SHORT = (*_BYTES, _T.INT16)
_RATIOS = (2.0**-8, 2.0**7)
"""The ratios of scales that XNNPACK's conversions and leaky ReLU take."""
_VECTOR, _LANES = 16, 8
"""Bytes, and numbers of 16 bits, that LiteRT's vector code converts at a time."""
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
Values = Callable[[np.ndarray], np.ndarray]
Half = Callable[[ir.Value], ir.Value]


def scales_of(op: Op) -> tuple[np.float32, np.float32] | None:
    """Of the operand and the result, if LiteRT's integer kernels take them."""
    x, y = op.tensor(0), op.output()
    one, other = scale_of(x), scale_of(y)
    if x.dtype not in _SHORT or y.dtype not in _SHORT or one is None or other is None:
        return None
    return one, other


def tabulated(op: Op, values: Values) -> ir.Value:
    """An 8-bit function as a table: `values` of all bytes minus the zero point, plus the result's, saturated."""
    return _looked_up(op, op.raw(0), _bytes(op, values))


def _bytes(op: Op, values: Values) -> np.ndarray:
    x, y = op.tensor(0), op.output()
    into = dtype_of(op, y).numpy()
    ends, limits = np.iinfo(dtype_of(op, x).numpy()), np.iinfo(into)
    found = values(np.arange(ends.min, ends.max + 1, dtype=np.int64) - zero_of(x)) + zero_of(y)
    return np.asarray(np.clip(found, limits.min, limits.max)).astype(into)


def _looked_up(op: Op, x: ir.Value, table: np.ndarray) -> ir.Value:
    return op.emit("LookupTable", [x, op.constant(table)], domain=build.DOMAIN)


def _times(x: np.ndarray, by: Factor) -> np.ndarray:
    rescale = DEFINITIONS["Rescale"]
    return np.asarray(rescale(x, by.multiplier, by.shift, np.int64(0), rounding=by.rounding))


def _zero(op: Op) -> ir.Value:
    x = op.tensor(0)
    return op.constant(np.asarray(zero_of(x), dtype_of(op, x).numpy()))


# conversions


def _by_xnnpack(op: Op, ratio: float) -> bool:
    """Whether XNNPACK has the operator: bytes of one type."""
    x, y = op.tensor(0), op.output()
    return x.dtype == y.dtype and x.dtype in _BYTES and _RATIOS[0] <= ratio <= _RATIOS[1]


def _fraction(ratio: np.float32) -> Factor:
    """The nearest multiple of 1/256."""
    return Factor(np.asarray(np.rint(np.float32(256) * ratio), np.int32), np.asarray(8, np.int32), "UP")


@integers("QUANTIZE")
@QUIETLY
def requantized(op: Op) -> ir.Value | None:
    """Between integers, or of real numbers to 16 bits."""
    if op.tensor(0).dtype == _T.FLOAT and op.output().dtype == _T.INT16:
        return _from_reals(op)
    scales = scales_of(op)
    if scales is None or same_quant(op.tensor(0), op.output()):
        return None
    ratio = scales[0] / scales[1]
    by = _fraction(ratio) if _by_xnnpack(op, float(ratio)) else factor(float(scales[0]) / float(scales[1]))
    x, y = op.tensor(0), op.output()
    if x.dtype in _BYTES and y.dtype in _BYTES and by.rounding == "DOUBLE":
        return _by_vectors(op, by)
    if x.dtype in _BYTES:
        return tabulated(op, lambda whole: _times(whole, by))
    return rescaled(op, op.raw(0), by, dtype_of(op, y), zero_of(y), _zero(op))


def _by_vectors(op: Op, by: Factor) -> ir.Value:
    """From bytes to other bytes: LiteRT's vector code takes _VECTOR elements at a time, another loop the rest."""
    vectors = by._replace(rounding="TWICE")
    tables = _bytes(op, lambda x: _times(x, vectors)), _bytes(op, lambda x: _times(x, by))
    main, rest = (lambda x, table=table: _looked_up(op, x, table) for table in tables)
    return _apart(op, _VECTOR, main, main if np.array_equal(*tables) else rest)


def _apart(op: Op, width: int, main: Half, rest: Half) -> ir.Value:
    """Input 0 by `main`, the elements after the last multiple of `width` by `rest`."""
    shape = op.tensor(0).shape_signature
    count, x = prod(shape), op.raw(0)
    if main is rest or min(shape, default=1) < 0 or count % width == 0:
        return main(x)
    flat, last = op.emit("Reshape", [x, op.constant([-1])]), count % width
    parts = op.emit("Split", [flat, op.constant([count - last, last])], {"axis": 0}, outputs=2)
    whole = op.emit("Concat", [main(parts[0]), rest(parts[1])], {"axis": 0})
    return op.emit("Reshape", [whole, op.constant(list(shape), np.int64)])


def _from_reals(op: Op) -> ir.Value | None:
    """Vector code multiplies by the scale's reciprocal, halves to even; the rest is divided in float64, halves away."""
    y = op.output()
    scale = scale_of(y)
    if scale is None:
        return None
    zero = op.constant(np.asarray(zero_of(y), np.int16))

    def main(x: ir.Value) -> ir.Value:
        steps = op.emit("Mul", [x, op.constant(np.float32(1) / scale)])
        return op.emit("QuantizeLinear", [steps, op.constant(np.float32(1)), zero])

    def rest(x: ir.Value) -> ir.Value:
        steps = op.emit("Div", [cast(op, x, _T.DOUBLE), op.constant(np.float64(scale))])
        size = op.emit("Floor", [op.emit("Add", [op.emit("Abs", [steps]), op.constant(np.float64(0.5))])])
        whole = op.emit("Mul", [size, op.emit("Sign", [steps])])
        whole = op.emit("Add", [whole, op.constant(np.float64(zero_of(y)))])
        ends = (op.constant(np.float64(end)) for end in (_LEAST, _MOST))
        return cast(op, op.emit("Clip", [whole, *ends]), _T.INT16)

    return _apart(op, _LANES, main, rest)


# activations


@integers(*RANGES)
@QUIETLY
def clamped(op: Op) -> ir.Value | None:
    """The stored result's range is the activation's."""
    scales, ends = scales_of(op), bounds(op, op.name)
    if scales is None or ends is None:
        return None
    by, y = factor(scales[0] / scales[1]), op.output()
    if op.tensor(0).dtype in _BYTES:
        low, high = (end - zero_of(y) for end in ends)
        return tabulated(op, lambda whole: np.clip(_times(whole, by), low, high))
    whole = rescaled(op, op.raw(0), by, _T.INT32, zero_of(y), _zero(op))
    return narrowed(op, whole, dtype_of(op, y), *ends)


@integers("LEAKY_RELU")
@QUIETLY
def leaky_relu(op: Op) -> ir.Value | None:
    """Another factor below zero; None for a negative slope."""
    scales, alpha = scales_of(op), np.float32(op.option("alpha", 0.0))
    x, y = op.tensor(0), op.output()
    if scales is None or alpha < 0 or x.dtype != y.dtype or x.dtype is None:
        return None
    ratio = scales[0] / scales[1]
    if _by_xnnpack(op, float(ratio)) and _by_xnnpack(op, float(ratio * alpha)):
        above, below = _fraction(ratio), _fraction(ratio * alpha)
    else:
        above, below = factor(ratio), factor(scales[0] * alpha / scales[1])
    if x.dtype in _BYTES:
        return tabulated(op, lambda whole: np.where(whole >= 0, _times(whole, above), _times(whole, below)))
    parts = [rescaled(op, op.raw(0), by, x.dtype, zero_of(y), _zero(op)) for by in (below, above)]
    return op.emit("Where", [op.emit("Less", [op.raw(0), _zero(op)]), *parts])


@integers("HARD_SWISH")
@QUIETLY
def hard_swish(op: Op) -> ir.Value | None:
    """Of bytes, with 16-bit multipliers (kernels/internal/reference/hard_swish.h)."""
    scales = scales_of(op)
    if scales is None or op.tensor(0).dtype not in _BYTES or op.output().dtype not in _BYTES:
        return None
    fine = np.float32(1 / 128) * scales[0]
    out, down = _short_factor(fine / scales[1])
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

    return tabulated(op, values)


def _short_factor(real: np.float32) -> tuple[int, int]:
    """A 15-bit multiplier and the exponent of two."""
    by = factor(real)
    return min((int(by.multiplier) + (1 << 15)) >> 16, (1 << 15) - 1), 31 - int(by.shift)


def _saturated(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(x, -(1 << 15), (1 << 15) - 1))


def _high_product(x: np.ndarray, multiplier: int) -> np.ndarray:
    """x * multiplier / 2**15, halves up."""
    return np.asarray((x * multiplier + (1 << 14)) >> 15)


# arithmetic


@integers("ABS")
@QUIETLY
def absolute(op: Op) -> ir.Value | None:
    """Rescaled if the scales differ."""
    scales = scales_of(op)
    if scales is None:
        return None
    by, y = factor(scales[0] / scales[1]), op.output()
    if scales[0] == scales[1]:
        by = Factor(np.asarray(1, np.int32), np.asarray(0, np.int32), "UP")
    if op.tensor(0).dtype in _BYTES:
        return tabulated(op, lambda whole: _times(np.abs(whole), by))
    centred = op.emit("Sub", [cast(op, op.raw(0), _T.INT32), cast(op, _zero(op), _T.INT32)])
    return rescaled(op, op.emit("Abs", [centred]), by, dtype_of(op, y), zero_of(y))


@integers("NEG")
def negated(op: Op) -> ir.Value | None:
    """LiteRT negates the stored number, whatever its scale and zero point."""
    return None if scales_of(op) is None else op.emit("Neg", [op.raw(0)])


@integers("SQRT")
def square_root(op: Op) -> ir.Value | None:
    """In float32, the quotient truncated. Of numbers below zero, which LiteRT refuses, as of zero."""
    scales, x, y = scales_of(op), op.tensor(0), op.output()
    if scales is None or scales[1] <= 0:
        return None
    if x.dtype in _BYTES:
        return tabulated(op, lambda whole: np.trunc(_root(whole, scales[0]) / scales[1]).astype(np.int64))
    real = op.emit("Max", [op.real(0), op.constant(np.float32(0))])
    steps = op.emit("Div", [op.emit("Sqrt", [real]), op.constant(scales[1])])
    into = dtype_of(op, y)
    low, high = (float(v) - zero_of(y) for v in (np.iinfo(into.numpy()).min, np.iinfo(into.numpy()).max))
    whole = cast(op, op.emit("Clip", [steps, op.constant(low), op.constant(high)]), _T.INT32)
    return cast(op, op.emit("Add", [whole, op.constant(np.asarray(zero_of(y), np.int32))]), into)


def _root(whole: np.ndarray, scale: np.float32) -> np.ndarray:
    return np.asarray(np.sqrt(np.maximum(whole, 0).astype(np.float32) * scale))


_RSQRT_BITS = 20
"""Bits by which 1 / sqrt of an integer is kept before it is multiplied by the scales' factor."""


@QUIETLY
def reciprocal_root(op: Op) -> ir.Value | None:
    """Of bytes: an integer's inverse root times a factor. Of zero, and of what LiteRT refuses: the greatest result."""
    scales, x = scales_of(op), op.tensor(0)
    if scales is None or x.dtype not in _BYTES:
        return None
    by = factor(1 / float(np.sqrt(scales[0]) * scales[1]))
    fine = by._replace(shift=by.shift + _RSQRT_BITS)

    def values(whole: np.ndarray) -> np.ndarray:
        multiplier, shift = inverse_root(np.maximum(whole, 1))
        kept = _times(np.ones_like(whole), Factor(multiplier, shift - _RSQRT_BITS))
        return np.where(whole > 0, _times(kept, fine), np.iinfo(np.int32).max)

    return tabulated(op, values)
