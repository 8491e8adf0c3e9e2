"""Functions of one 16-bit number that LiteRT interpolates in tables of 513 entries, or in one table of sigmoid; and
softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erfc

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op, Result, integers
from converter.frontends.tflite.ops.fixed_functions import reciprocal_root, scales_of
from converter.frontends.tflite.ops.fixed_point import QUIETLY, Factor, dtype_of, narrowed, rescaled, zero_of
from converter.frontends.tflite.ops.operands import cast
from converter.ir import build
from lite_runtime.reference.fixed_point import Units, sampled

__all__: list[str] = []

_T = ir.DataType
_f = np.float32
_LEAST, _MOST = -(1 << 15), (1 << 15) - 1


def _sixteen_bits(op: Op) -> tuple[np.float32, np.float32] | None:
    found = scales_of(op)
    return found if found is not None and op.tensor(0).dtype == op.output().dtype == _T.INT16 else None


# tables


def _in_doubles(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A function of float32, rounded once."""
    return lambda x: np.asarray(function(x.astype(np.float64)), np.float32)


_EXP, _LOG, _TANH = map(_in_doubles, (np.exp, np.log, np.tanh))
_ERFC = _in_doubles(np.vectorize(erfc, otypes=[np.float64]))
_ROOT_HALF, _ROOT_2_BY_PI = _f(0.5**0.5), _f((2 / np.pi) ** 0.5)


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(_f(0.5) * x * _ERFC(x * -_ROOT_HALF))


def _gelu_by_tanh(x: np.ndarray) -> np.ndarray:
    return _f(0.5) * x * (_f(1) + _TANH(_ROOT_2_BY_PI * (x + _f(0.044715) * x * x * x)))


def _log(step: np.float32) -> Callable[[np.ndarray], np.ndarray]:
    """Of numbers that are not positive: the least result."""
    return lambda x: np.where(x > 0, _LOG(np.where(x > 0, x, _f(1))), _f(_LEAST) * step)


def _rsqrt(step: np.float32) -> Callable[[np.ndarray], np.ndarray]:
    """Of numbers that are not positive: the greatest result."""
    return lambda x: np.where(x > 0, _f(1) / np.sqrt(np.where(x > 0, x, _f(1))), _f(_MOST) * step)


_FUNCTIONS: Mapping[str, Callable[[Op, np.float32], Callable[[np.ndarray], np.ndarray]]] = {
    "EXP": lambda op, step: _EXP,
    "GELU": lambda op, step: _gelu_by_tanh if op.option("approximate") else _gelu,
    "LOG": lambda op, step: _log(step),
    "RSQRT": lambda op, step: _rsqrt(step),
}
"""By operator: its options and the result's scale give the function."""


@integers("RSQRT")
def rsqrt(op: Op) -> Result | None:
    """Of 16 bits a table, of 8 bits Newton's iteration."""
    return interpolated(op) or reciprocal_root(op)


@integers("EXP", "GELU", "LOG")
@QUIETLY
def interpolated(op: Op) -> ir.Value | None:
    """A table of 16-bit results."""
    scales = _sixteen_bits(op)
    if scales is None:
        return None
    x, y = (Units(float(scale)) for scale in scales)
    table = sampled(_FUNCTIONS[op.name](op, scales[1]), x, y)
    return op.emit("InterpolatedTable", [op.raw(0), op.constant(table)], domain=build.DOMAIN)


# sigmoid and tanh

_NEARLY = 1e-3
"""How far the logarithm of a scale may be from a whole number."""
_UNIT = 3 * 4096.0
"""The reciprocal of the unit in which the table of sigmoid counts."""
_FINEST = 30


@integers("LOGISTIC", "TANH")
@QUIETLY
def sigmoid(op: Op) -> ir.Value | None:
    """gemmlowp's functions where the scale is 2**-12 (tanh: or 2**-11), else LiteRT's table."""
    scales = _sixteen_bits(op)
    if scales is None:
        return None
    kind = "FixedPointSigmoid" if op.name == "LOGISTIC" else "FixedPointTanh"
    exponent, raised = float(np.log2(scales[0])), op.raw(0)
    up = round(exponent) + 12
    if abs(exponent - round(exponent)) < _NEARLY and (up == 0 or (up == 1 and op.name == "TANH")):
        if up:
            doubled = op.emit("Add", [cast(op, raised, _T.INT32)] * 2)
            raised = narrowed(op, doubled, _T.INT16)
        return op.emit(kind, [raised], {"integer_bits": 3}, domain=build.DOMAIN)
    multiplier, down = float(scales[0]) * _UNIT, 0
    while multiplier <= _MOST / 2 and down <= _FINEST:
        multiplier, down = multiplier * 2, down + 1
    by = Factor(np.asarray(int(multiplier), np.int32), np.asarray(down, np.int32), "UP")
    whole = rescaled(op, op.raw(0), by, _T.INT32)
    return op.emit(kind, [whole], {"interpolated": 1}, domain=build.DOMAIN)


@integers("SOFTMAX")
@QUIETLY
def softmax(op: Op) -> ir.Value | None:
    """Of bytes with sums in the order of memory; of 16 bits by tables. beta scales the operand."""
    scales, x, y = scales_of(op), op.tensor(0), op.output()
    if scales is None or (x.dtype == _T.INT16) > (y.dtype == _T.INT16):
        return None
    step = scales[0] * _f(op.option("beta", 1.0))
    if not 0 < step < np.inf:
        return None
    parameters = [step, _zero(op, x), scales[1], _zero(op, y)]
    operands = [op.raw(0), *(op.constant(np.asarray(v)) for v in parameters)]
    return op.emit("QLinearSoftmax", operands, {"axis": -1, "rounding": "ORDERED"}, domain=build.DOMAIN)


def _zero(op: Op, tensor: Tensor) -> np.ndarray:
    return np.asarray(zero_of(tensor), dtype_of(op, tensor).numpy())
