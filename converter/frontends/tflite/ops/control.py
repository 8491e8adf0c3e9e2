"""Subgraphs that are called, chosen or repeated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import emit_all

__all__: list[str] = []


def _operands(op: Op, first: int = 0) -> list[ir.Value]:
    return [op.raw(i) for i in range(first, op.count_inputs)]


def _flag(op: Op, value: ir.Value) -> ir.Value:
    """A condition as the scalar that ONNX requires."""
    return op.emit("Reshape", [value, op.constant([], np.int64)])


@translate("CALL")
def call(op: Op) -> Sequence[ir.Value]:
    """The subgraph's operators, inlined."""
    return op.call(int(op.option("subgraph", 0)), _operands(op))


@translate("STABLEHLO_COMPOSITE")
def composite(op: Op) -> Sequence[ir.Value]:
    """A named operation is replaced by its decomposition."""
    return op.call(int(op.option("decomposition_subgraph_index", 0)), _operands(op))


@translate("IF")
def if_(op: Op) -> Sequence[ir.Value]:
    """One of two subgraphs, both of which see the same operands."""
    operands = _operands(op, first=1)
    branches = {
        f"{name}_branch": op.subgraph(int(op.option(f"{name}_subgraph_index", 0)), operands)
        for name in ("then", "else")
    }
    return emit_all(op, "If", [_flag(op, op.raw(0))], branches, op.count_outputs)


@translate("WHILE", "STABLEHLO_WHILE")
def while_(op: Op) -> Sequence[ir.Value]:
    """The body is applied to the operands while the condition holds for them. Handles of variables stay outside."""
    condition, body = (int(op.option(f"{name}_subgraph_index", 0)) for name in ("cond", "body"))
    operands = _operands(op)
    carried = [i for i in range(op.count_inputs) if op.tensor(i).dtype is not None]

    def whole(values: Sequence[ir.Value]) -> list[ir.Value]:
        moving = dict(zip(carried, values, strict=True))
        return [moving.get(i, operand) for i, operand in enumerate(operands)]

    def again(inner: Op, values: Sequence[ir.Value]) -> ir.Value:
        (answer,) = inner.call(condition, whole(values))
        return _flag(inner, answer)

    def turn(inner: Op, values: list[ir.Value]) -> list[ir.Value]:
        results = inner.call(body, whole(values[2:]))
        after = [results[i] for i in carried]
        return [again(inner, after), *after]

    start = [operands[i] for i in carried]
    first = again(op, start)
    counter = ir.Value(name="turn", type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    graph = op.graph(turn, [counter, first, *start])
    return whole(emit_all(op, "Loop", [None, first, *start], {"body": graph}, len(carried)))
