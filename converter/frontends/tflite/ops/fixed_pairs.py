"""Operators on two quantised tensors in LiteRT's fixed-point arithmetic (kernels/add.cc, sub.cc, mul.cc, div.cc,
squared_difference.cc, comparisons.cc, activations.cc). Sums and products of bytes are XNNPACK's, which our integer
operators compute, unless their scales are too far apart for it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.fixed_point import (
    QUIETLY,
    Factor,
    bounds,
    dtype_of,
    factor,
    narrowed,
    rescaled,
    scale_of,
    zero_of,
)
from converter.frontends.tflite.ops.operands import cast
from converter.ir import build

__all__: list[str] = []

_T = ir.DataType
_BYTES = (_T.INT8, _T.UINT8)
_SHORT = (*_BYTES, _T.INT16)
_SHIFT = {_T.INT8: 20, _T.UINT8: 20, _T.INT16: 15}
"""The bits by which operands of a sum are shifted to the left."""
_SUMS, _PRODUCTS = (2.0**-10, 2.0**8), (2.0**-16, 2.0**8)
"""The ratios of each operand's scale, and of the product of both, to the result's that XNNPACK takes."""
_HALF = Factor(np.asarray(1, np.int32), np.asarray(0, np.int32), "AWAY")


def _scales(op: Op) -> tuple[np.float32, ...] | None:
    """Of both operands and the result, if all are integers of one type."""
    tensors = [op.tensor(0), op.tensor(1), op.output()]
    found = [scale_of(t) for t in tensors]
    if {t.dtype for t in tensors} - {tensors[0].dtype} or tensors[0].dtype not in _SHORT or None in found:
        return None
    return tuple(np.float32(s) for s in found)


def _centred(op: Op, i: int, bits: int = 0) -> ir.Value:
    """Operand `i` minus its zero point, times 2**bits, in int32."""
    wide, zero = cast(op, op.raw(i), _T.INT32), zero_of(op.tensor(i))
    if zero:
        wide = op.emit("Sub", [wide, op.constant(np.asarray(zero, np.int32))])
    return op.emit("Mul", [wide, op.constant(np.asarray(1 << bits, np.int32))]) if bits else wide


def _finished(op: Op, total: ir.Value, by: Factor, ends: tuple[int, int] | None = None) -> ir.Value:
    """The stored result of integers in units of `by`, within the fused activation's bounds."""
    out = op.output()
    whole = rescaled(op, total, by, _T.INT32, zero_of(out))
    return narrowed(op, whole, dtype_of(op, out), *(ends or (None, None)))


# sums and products


@integers("ADD", "SUB")
@QUIETLY
def total(op: Op) -> ir.Value | None:
    """Both operands in units of twice the larger scale / 2**_SHIFT."""
    scales, ends = _scales(op), bounds(op)
    if scales is None or ends is None or (dtype_of(op, op.tensor(0)) in _BYTES and _within(scales, _SUMS)):
        return None
    binary = _powers_of_two(op, scales)
    if binary is not None:
        return narrowed(op, _emit_total(op, binary), dtype_of(op, op.output()), *ends)
    a, b, y = scales
    most, bits = 2 * float(max(a, b)), _SHIFT[dtype_of(op, op.tensor(0))]
    parts = [rescaled(op, _centred(op, i, bits), factor(float(s) / most), _T.INT32) for i, s in ((0, a), (1, b))]
    return _finished(op, _emit_total(op, parts), factor(most / float(np.float32(1 << bits) * y)), ends)


def _emit_total(op: Op, parts: list[ir.Value]) -> ir.Value:
    return op.emit("Sub" if op.name == "SUB" else "Add", parts)


def _within(scales: tuple[np.float32, ...], limits: tuple[float, float]) -> bool:
    *operands, y = scales
    return all(limits[0] <= s / y < limits[1] for s in operands)


def _powers_of_two(op: Op, scales: tuple[np.float32, ...]) -> list[ir.Value] | None:
    """Operands of 16 bits whose scales are powers of two, as the file declares: the finer one is rounded to the
    result's steps, which the other one has already."""
    if not op.option("pot_scale_int16", True) or dtype_of(op, op.tensor(0)) != _T.INT16:
        return None
    exponents = [float(np.log2(s)) for s in scales]
    if any(abs(e - round(e)) >= _NEARLY for e in exponents):
        return None
    *operands, out = (round(e) for e in exponents)
    return [
        rescaled(op, op.raw(i), _HALF._replace(shift=np.asarray(out - e, np.int32)), _T.INT32)
        for i, e in enumerate(operands)
    ]


_NEARLY = 1e-3
"""How far a logarithm may be from a whole number."""


@integers("MUL")
@QUIETLY
def product(op: Op) -> ir.Value | None:
    """The product of the integers, rescaled."""
    scales, ends = _scales(op), bounds(op)
    if scales is None or ends is None:
        return None
    a, b, y = scales
    if dtype_of(op, op.tensor(0)) in _BYTES and _within((a * b, y), _PRODUCTS):
        return None
    return _finished(op, op.emit("Mul", [_centred(op, 0), _centred(op, 1)]), factor(a * b / y), ends)


@integers("SQUARED_DIFFERENCE")
@QUIETLY
def squared_difference(op: Op) -> ir.Value | None:
    """The difference in units of twice the larger scale / 128."""
    scales = _scales(op)
    if scales is None or op.tensor(0).dtype != _T.INT8:
        return None
    a, b, y = scales
    most = 2 * float(max(a, b))
    parts = [rescaled(op, _centred(op, i, 7), factor(float(s) / most), _T.INT32) for i, s in ((0, a), (1, b))]
    apart = op.emit("Sub", parts)
    return _finished(op, op.emit("Mul", [apart, apart]), factor(most * most / float(np.float32(1 << 14) * y)))


@integers("PRELU")
@QUIETLY
def prelu(op: Op) -> ir.Value | None:
    """x, or the product of x and the slope where x is negative; each with a factor of its own."""
    x, slope, out = op.tensor(0), op.tensor(1), op.output()
    scales = [scale_of(t) for t in (x, slope, out)]
    if x.dtype not in _SHORT or slope.dtype not in _BYTES or x.dtype != out.dtype or None in scales:
        return None
    a, s, y = (np.float32(v) for v in scales)
    whole = _centred(op, 0)
    above = _finished(op, whole, factor(a / y))
    below = _finished(op, op.emit("Mul", [whole, _centred(op, 1)]), factor(a * s / y))
    zero = op.constant(np.asarray(zero_of(x), dtype_of(op, x).numpy()))
    return op.emit("Where", [op.emit("Less", [op.raw(0), zero]), below, above])


@integers("DIV")
@QUIETLY
def quotient(op: Op) -> ir.Value | None:
    """The numerator times the denominator's reciprocal, both by Newton's iteration on 32 bits."""
    scales, ends = _scales(op), bounds(op)
    if scales is None or ends is None:
        return None
    a, b, y = scales
    by, out = factor(a / (b * y)), op.output()
    attrs = {"multiplier": int(by.multiplier), "shift": int(by.shift)}
    whole = op.emit("FixedPointDiv", [_centred(op, 0), _centred(op, 1)], attrs, domain=build.DOMAIN)
    if zero_of(out):
        whole = op.emit("Add", [whole, op.constant(np.asarray(zero_of(out), np.int32))])
    return narrowed(op, whole, dtype_of(op, out), *ends)


# comparisons

_COMPARE: Mapping[str, tuple[str, bool]] = {
    "EQUAL": ("Equal", False),
    "NOT_EQUAL": ("Equal", True),
    "LESS": ("Less", False),
    "LESS_EQUAL": ("LessOrEqual", False),
    "GREATER": ("Greater", False),
    "GREATER_EQUAL": ("GreaterOrEqual", False),
}
"""The operator, and whether its result is negated."""
_STORED = ("LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
"""Comparisons that LiteRT makes of 16-bit numbers as they are stored, whatever their scales."""


@integers(*_COMPARE)
def compared(op: Op) -> ir.Value | None:
    """Integers in units of 1/256, each rounded; scales must be below 1."""
    tensors = op.tensor(0), op.tensor(1)
    scales = [scale_of(t) for t in tensors]
    if tensors[0].dtype != tensors[1].dtype or tensors[0].dtype not in _SHORT or None in scales:
        return None
    kind, negated = _COMPARE[op.name]
    if tensors[0].dtype == _T.INT16 and op.name in _STORED:
        return op.emit(kind, [op.raw(0), op.raw(1)])
    if not all(0 < float(s) < 1 for s in scales if s is not None):
        return None
    parts = [
        rescaled(op, _centred(op, i, 8), factor(float(s)), _T.INT32) for i, s in enumerate(scales) if s is not None
    ]
    found = op.emit(kind, parts)
    return op.emit("Not", [found]) if negated else found
