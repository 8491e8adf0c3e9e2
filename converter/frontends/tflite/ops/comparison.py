"""Comparisons, logic and selection, with NumPy's broadcasting."""

from __future__ import annotations

import onnx_ir as ir

from converter.frontends.tflite.op import Op, named, translate
from converter.frontends.tflite.ops.operands import payload, rank

__all__: list[str] = []

_COMPARE = named({
    "EQUAL": "Equal",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
})
_LOGIC = named({"LOGICAL_AND": "And", "LOGICAL_OR": "Or"})


@translate(*_COMPARE)
def compare(op: Op) -> ir.Value:
    """bool; quantised operands are compared as the real numbers they mean."""
    return op.emit(_COMPARE[op.name], [op.real(0), op.real(1)])


@translate("NOT_EQUAL")
def not_equal(op: Op) -> ir.Value:
    """bool."""
    return op.emit("Not", [op.emit("Equal", [op.real(0), op.real(1)])])


@translate(*_LOGIC)
def logic(op: Op) -> ir.Value:
    """bool of two."""
    return op.emit(_LOGIC[op.name], [op.raw(0), op.raw(1)])


@translate("LOGICAL_NOT")
def logical_not(op: Op) -> ir.Value:
    """bool of one."""
    return op.emit("Not", [op.raw(0)])


@translate("SELECT")
def select(op: Op) -> ir.Value:
    """x where the condition holds, else y. A condition of rank 1 chooses whole rows."""
    condition = op.raw(0)
    x, y = payload(op, 1, 2)
    rows = rank(op, 1)
    if rank(op, 0) == 1 and rows > 1:
        condition = op.emit("Unsqueeze", [condition, op.constant(list(range(1, rows)))])
    return op.emit("Where", [condition, x, y])


@translate("SELECT_V2")
def select_v2(op: Op) -> ir.Value:
    """x where the condition holds, else y; all three broadcast."""
    return op.emit("Where", [op.raw(0), *payload(op, 1, 2)])
