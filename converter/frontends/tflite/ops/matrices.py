"""Diagonals and running sums."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import counted, payload, ranked, single, sizes, zero_point

__all__: list[str] = []


@translate("MATRIX_DIAG")
def matrix_diag(op: Op) -> ir.Value:
    """Square matrices with the operand's last axis on the diagonal, zeros elsewhere: LiteRT's are stored ones,
    whatever zero point they have."""
    ranked(op, 0, 1)
    (diagonal,) = payload(op, 0)
    size = sizes(op, 0)[-1]
    if size is None:
        op.fail("expected a diagonal of known length")
    rows = op.emit("Unsqueeze", [diagonal, op.constant([-2])])
    zero = zero_point(op, diagonal)
    if op.litert:
        zero = op.constant(np.zeros((), (diagonal.dtype or ir.DataType.FLOAT).numpy()))
    return op.emit("Where", [_diagonal(op, size, size), rows, zero])


@translate("MATRIX_SET_DIAG")
def matrix_set_diag(op: Op) -> ir.Value:
    """Matrices with their main diagonal replaced."""
    ranked(op, 0, 2)
    matrix, diagonal = payload(op, 0, 1)
    rows, columns = sizes(op, 0)[-2:]
    if rows is None or columns is None:
        op.fail("expected matrices of known sizes")
    least = min(rows, columns)
    if columns > least:
        padded = [0] * (len(sizes(op, 1)) * 2 - 1)
        diagonal = op.emit("Pad", [diagonal, op.constant([*padded, columns - least], np.int64)])
    spread = op.emit("Unsqueeze", [diagonal, op.constant([-2])])
    return op.emit("Where", [_diagonal(op, rows, columns), spread, matrix])


def _diagonal(op: Op, rows: int, columns: int) -> ir.Value:
    """bool [rows, columns], true where both indices are equal."""
    return op.emit("Equal", [op.constant(counted(op, rows)[:, None]), op.constant(counted(op, columns))])


@translate("CUMSUM")
def cumsum(op: Op) -> ir.Value:
    """Running sums along an axis, either way, with or without the element itself."""
    axis = single(op, 1, "axis")
    attrs = {"exclusive": int(op.option("exclusive", False)), "reverse": int(op.option("reverse", False))}
    return op.emit("CumSum", [op.real(0), op.constant(np.asarray(axis, np.int64))], attrs)
