"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.weights import (
    bias,
    blockwise,
    dynamic,
    dynamic_range,
    has_blocks,
    own_scheme,
    stored_weights,
)
from converter.ir import build

__all__ = ["rows", "transposed"]

_WEIGHTS_DEFAULT = 0


@translate("FULLY_CONNECTED")
def fully_connected(op: Op) -> ir.Value:
    """x (..., in) by weights (out, in). Without keep_num_dims the result has two dimensions, (-1, out)."""
    if op.option("weights_format", _WEIGHTS_DEFAULT) != _WEIGHTS_DEFAULT:
        op.fail("weights are stored in the order of a specific processor; convert again with weights_format DEFAULT")
    if op.tensor(1).rank != 2:
        op.fail(f"expected weights of shape (out, in), got {list(op.tensor(1).shape)}")
    x = rows(op, op.real(0), op.tensor(1).shape[1])
    rank = build.rank(x)
    if not rank:
        op.fail("expected an input of known rank, at least 1")
    if dynamic_range(op, 1):
        stored = stored_weights(op, 1, (0, 1))
        by_xnnpack = op.tensor(1).type_name == "INT8" or stored.shape[1] % 2 == 0
        scheme = own_scheme(op) if op.litert and not by_xnnpack else ""
        return op.activation(dynamic(op, "QLinearMatMul", x, rank - 1, stored, 1, 2, {"transB": 1}, scheme))
    added = bias(op, 2, 1)
    if has_blocks(op, 1):
        result = op.emit("MatMul", [*blockwise(op, x, rank - 1, 1)])
        return op.activation(result if added is None else op.emit("Add", [result, added]))
    if rank == 2:
        inputs = [x, op.permuted(1, (0, 1))]
        return op.activation(op.emit("Gemm", inputs if added is None else [*inputs, added], {"transB": 1}))
    result = op.emit("MatMul", [x, op.permuted(1, (1, 0))])
    return op.activation(result if added is None else op.emit("Add", [result, added]))


def rows(op: Op, x: ir.Value, inner: int) -> ir.Value:
    """The left factor of the product: `x` itself, or `x` flattened to rows of `inner`."""
    dims = build.dims(x)
    if op.option("keep_num_dims", False) or (dims is not None and len(dims) == 2 and dims[1] == inner):
        return x
    return op.emit("Reshape", [x, op.constant([-1, inner])])


@translate("BATCH_MATMUL")
def batch_matmul(op: Op) -> ir.Value:
    """a (..., m, k) by b (..., k, n), either transposed by adj_x and adj_y; leading axes broadcast."""
    left = transposed(op, op.real(0)) if op.option("adj_x") else op.real(0)
    rank = build.rank(left)
    if rank and _by_columns(op):
        axes = op.tensor(1).rank
        stored = stored_weights(op, 1, range(axes) if op.option("adj_y") else _swapped(axes))
        return dynamic(op, "QLinearMatMul", left, rank - 1, stored, 1, 2, {"transB": 1})
    right = _adjoint(op) if op.option("adj_y") else op.real(1)
    return op.emit("MatMul", [left, right])


def _by_columns(op: Op) -> bool:
    """Whether b is of dynamic range, quantised as a whole or, a single matrix, per column of the product."""
    quant, rank = op.tensor(1).quant, op.tensor(1).rank
    if not dynamic_range(op, 1) or quant is None or rank < 2:
        return False
    return quant.per_tensor or (rank == 2 and quant.axis == (0 if op.option("adj_y") else 1))


def _adjoint(op: Op) -> ir.Value:
    return transposed(op, op.real(1)) if op.const(1) is None else op.permuted(1, _swapped(op.tensor(1).rank))


def transposed(op: Op, x: ir.Value) -> ir.Value:
    """Matrices with their last two axes exchanged."""
    rank = build.rank(x)
    if rank is None or rank < 2:
        op.fail(f"expected matrices, got a tensor of {'unknown rank' if rank is None else f'{rank} dimensions'}")
    return op.emit("Transpose", [x], {"perm": _swapped(rank)})


def _swapped(rank: int) -> tuple[int, ...]:
    """The order of axes with the last two exchanged."""
    return (*range(rank - 2), rank - 1, rank - 2)
