"""Variables: handles, reading, assigning; and the state tensors of recurrent operators (`state`, `store`)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op, translate
from converter.ir import build

__all__ = ["state", "store"]


def state(op: Op, i: int) -> ir.Value:
    """State tensor `i` as real numbers, as written by the previous run or by an earlier operator of this run."""
    tensor = op.tensor(i)
    if tensor.dtype is None or not tensor.is_variable:
        op.fail(f"expected input {i} to be a variable, got {tensor.name!r}, which is not")
    sizes = [None if d < 0 else d for d in tensor.shape_signature]
    zero = 0 if tensor.quant is None else int(tensor.quant.zero_point)
    stored = op.states.read(_key(tensor), tensor.dtype, sizes, zero)
    return op.emit("DequantizeLinear", [stored, *_parameters(op, tensor)]) if tensor.quantized else stored


def store(op: Op, i: int, value: ir.Value) -> None:
    """`value`, real numbers, becomes state tensor `i`."""
    tensor = op.tensor(i)
    if tensor.quantized:
        value = op.emit("QuantizeLinear", [value, *_parameters(op, tensor)])
    op.states.write(_key(tensor), value)


def _key(tensor: Tensor) -> str:
    return tensor.name or f"state {tensor.index}"


def _parameters(op: Op, tensor: Tensor) -> list[ir.Value]:
    if tensor.quant is None or tensor.dtype is None:
        op.fail(f"expected a quantised state tensor, got {tensor.type_name} {tensor.name!r}")
    return [op.constant(tensor.quant.scale), op.constant(tensor.quant.zero_point.astype(tensor.dtype.numpy()))]


@translate("VAR_HANDLE")
def var_handle(op: Op) -> ir.Value:
    """A handle is the variable's name, a constant string."""
    return op.constant(np.asarray(str(op.option("shared_name", "")).encode(), object))


def _variable(op: Op) -> str:
    found = build.array(op.raw(0))
    if found is None:
        op.fail("expected a handle from VAR_HANDLE, got a computed one")
    text = found.reshape(-1)[0]
    return text.decode() if isinstance(text, bytes) else str(text)


@translate("READ_VARIABLE")
def read_variable(op: Op) -> ir.Value:
    """The variable's value, as stored."""
    result = op.output()
    if result.dtype is None:
        op.fail(f"expected a tensor, got a {result.type_name}")
    sizes = [None if d < 0 else d for d in result.shape_signature]
    return op.states.read(_variable(op), result.dtype, sizes)


@translate("ASSIGN_VARIABLE")
def assign_variable(op: Op) -> list[ir.Value]:
    """Assign operand 1 to the variable."""
    op.states.write(_variable(op), op.raw(1))
    return []


@translate("CALL_ONCE")
def call_once(op: Op) -> list[ir.Value]:
    """A subgraph that runs before the first run: the values it assigns are the variables' initial values."""
    with op.states.initialising():
        op.call(int(op.option("init_subgraph_index", 0)), [])
    return []
