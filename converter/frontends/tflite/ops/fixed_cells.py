"""LiteRT's recurrent cells in integers: the LSTM of one weight matrix, SVDF, and what the other LSTM shares with them.

The formulas are those of kernels/internal/reference/lstm_cell.h and svdf.h.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.fixed_point import Factor, factor, narrowed, rescaled, scale_of, zero_of
from converter.frontends.tflite.ops.operands import cast, sizes
from converter.frontends.tflite.ops.variables import raw_state, raw_store
from converter.ir import build

__all__ = ["ONE", "basic_lstm", "is_stored", "plus", "product", "real_scale", "shifted", "times", "unit"]

_T = ir.DataType
ONE = (1 << 15) - 1
"""One, with 15 fractional bits."""
_BYTES_ZERO = 128
"""The zero point of what enters and leaves the LSTM of one weight matrix."""


def is_stored(tensor: Tensor | None, dtype: ir.DataType) -> bool:
    """Whether a tensor is quantised, as one, to this type."""
    return tensor is not None and tensor.dtype == dtype and scale_of(tensor) is not None


def real_scale(tensor: Tensor) -> np.float32:
    """The one scale of a tensor that must have one. Raises ConvertError."""
    found = scale_of(tensor)
    if found is None:
        raise ConvertError(f"tensor {tensor.name!r}: expected a scale, got none")
    return found


def product(op: Op, x: ir.Value, stored: np.ndarray, x_zero: int) -> ir.Value:
    """(x - zero) @ stored.T, in int32."""
    weights = op.constant(np.ascontiguousarray(stored.T))
    inputs = [x, weights] + ([op.constant(np.asarray(x_zero, np.int8))] if x_zero else [])
    return op.emit("MatMulInteger", inputs)


def times(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    """a * b in int32."""
    return op.emit("Mul", [cast(op, a, _T.INT32), cast(op, b, _T.INT32)])


def plus(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    """a + b in int32."""
    return op.emit("Add", [cast(op, a, _T.INT32), cast(op, b, _T.INT32)])


def shifted(op: Op, x: ir.Value, bits: int) -> ir.Value:
    """x / 2**bits, halves away from zero, as int16."""
    by = Factor(np.asarray(1, np.int32), np.asarray(bits, np.int32), "AWAY")
    return rescaled(op, x, by, _T.INT16)


def unit(op: Op, kind: str, x: ir.Value, integer_bits: int = 3) -> ir.Value:
    """`kind`, FixedPointSigmoid or FixedPointTanh, of int16."""
    return op.emit(kind, [x], {"integer_bits": integer_bits}, domain=build.DOMAIN)


def basic_lstm(op: Op) -> list[ir.Value] | None:
    """One step of the LSTM of one weight matrix, with bytes in and out and a 16-bit cell in units of 2**-11. The last
    two results are scratch. None for one of real numbers."""
    weights, bias, cell = op.const(2), op.const(3), op.tensor(4)
    bytes_ = all(is_stored(op.tensor(i), _T.UINT8) for i in range(3))
    if not (bytes_ and is_stored(cell, _T.INT16)) or weights is None or bias is None or scale_of(op.tensor(3)) is None:
        return None
    joint = op.emit("Concat", [op.raw(0), op.raw(1)], {"axis": -1})
    zeros = [op.constant(np.asarray(v, np.uint8)) for v in (_BYTES_ZERO, zero_of(op.tensor(2)))]
    total = op.emit("MatMulInteger", [joint, op.constant(np.ascontiguousarray(weights.T)), *zeros])
    total = op.emit("Add", [total, op.constant(bias)])
    by = factor(4096 * float(real_scale(op.tensor(3))))._replace(rounding="TWICE")
    total = rescaled(op, total, by, _T.INT16)
    opened, news, forget, out = op.emit("Split", [total], {"axis": -1, "num_outputs": 4}, outputs=4)
    entering = _half_up(op, unit(op, "FixedPointSigmoid", opened), unit(op, "FixedPointTanh", news))
    entering = shifted(op, entering, 4)
    kept = _half_up(op, unit(op, "FixedPointSigmoid", forget), op.raw(4))
    c = narrowed(op, plus(op, entering, kept), _T.INT16)
    shown = narrowed(op, plus(op, c, c), _T.INT16)
    h = _half_up(op, unit(op, "FixedPointSigmoid", out), unit(op, "FixedPointTanh", shown))
    h = rescaled(op, h, Factor(np.asarray(1, np.int32), np.asarray(8, np.int32), "AWAY"), _T.UINT8, _BYTES_ZERO)
    return [h, c, joint, total][: op.count_outputs]


def _half_up(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    """a * b / 2**15, halves up."""
    return rescaled(op, times(op, a, b), Factor(np.asarray(1, np.int32), np.asarray(15, np.int32), "UP"), _T.INT16)


@integers("SVDF")
def svdf(op: Op) -> ir.Value | None:
    """SVDF of 8-bit input, 16-bit state and 16-bit time weights; None for any other, which LiteRT refuses.

    LiteRT applies no activation: saturation at the output's least integer is the Relu.
    """
    given = sizes(op, 2)
    if len(given) != 2:  # the rule on real numbers says what is wrong
        return None
    features, memory = given
    x, by, over, line, out = op.tensor(0), op.tensor(1), op.tensor(2), op.tensor(4), op.output()
    typed_so = (
        is_stored(x, _T.INT8) and is_stored(by, _T.INT8) and is_stored(over, _T.INT16) and is_stored(line, _T.INT16)
    )
    stored, weights = op.const(1), op.const(2)
    if not (typed_so and is_stored(out, _T.INT8)) or stored is None or weights is None:
        return None
    rank = int(op.option("rank", 1))
    if features is None or memory is None:
        op.fail("expected time weights of known size")
    entered = product(op, op.raw(0), stored, zero_of(x))
    newest = rescaled(op, entered, factor(real_scale(x) * real_scale(by) / real_scale(line)), _T.INT16)
    state = op.emit("Reshape", [raw_state(op, 4), op.constant([-1, features, memory])])
    older = op.emit("Slice", [state, *(op.constant([v]) for v in (1, memory, 2))])
    state = op.emit("Concat", [older, op.emit("Unsqueeze", [newest, op.constant([2])])], {"axis": 2})
    raw_store(op, 4, op.emit("Reshape", [state, op.constant([-1, features * memory])]))
    seen = op.emit("Mul", [cast(op, state, _T.INT32), op.constant(weights.astype(np.int32))])
    seen = op.emit("Reshape", [seen, op.constant([-1, features // rank, rank * memory])])
    total = op.emit("ReduceSum", [seen, op.constant([2])], {"keepdims": 0})
    if op.has(3):
        total = op.emit("Add", [total, op.raw(3)])
    return rescaled(op, total, factor(real_scale(line) * real_scale(over) / real_scale(out)), _T.INT8, zero_of(out))
