"""Variables: handles, reading, assigning; and the state tensors of recurrent operators (`state`, `store`)."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.state import Key
from converter.ir import build

__all__ = ["as_real", "as_stored", "raw_state", "raw_store", "state", "store"]


def state(op: Op, i: int) -> ir.Value:
    """State tensor `i` as real numbers, as written by the previous run or by an earlier operator of this run."""
    return as_real(op, i, raw_state(op, i))


def store(op: Op, i: int, value: ir.Value) -> None:
    """`value`, real numbers, becomes state tensor `i`."""
    raw_store(op, i, as_stored(op, i, value))


def raw_state(op: Op, i: int) -> ir.Value:
    """State tensor `i` as stored."""
    tensor = op.tensor(i)
    if tensor.dtype is None or not tensor.is_variable:
        op.fail(f"expected input {i} to be a variable, got {tensor.name!r}, which is not")
    zero = 0 if tensor.quant is None else int(tensor.quant.zero_point)
    return op.states.read(_key(op, tensor), tensor.dtype, tensor.shape, zero)


def raw_store(op: Op, i: int, value: ir.Value) -> None:
    """`value`, of the stored type, becomes state tensor `i`."""
    op.states.write(_key(op, op.tensor(i)), value)


def as_real(op: Op, i: int, value: ir.Value) -> ir.Value:
    """`value`, of the type in which state tensor `i` is stored, as real numbers."""
    tensor = op.tensor(i)
    return op.emit("DequantizeLinear", [value, *_parameters(op, tensor)]) if tensor.quantized else value


def as_stored(op: Op, i: int, value: ir.Value) -> ir.Value:
    """`value`, real numbers, in the type in which state tensor `i` is stored."""
    tensor = op.tensor(i)
    return op.emit("QuantizeLinear", [value, *_parameters(op, tensor)]) if tensor.quantized else value


def _key(op: Op, tensor: Tensor) -> Key:
    return Key(tensor.name or f"state {tensor.index}", op.subgraph_index, tensor.index)


def _parameters(op: Op, tensor: Tensor) -> list[ir.Value]:
    if tensor.quant is None or tensor.dtype is None:
        op.fail(f"expected a quantised state tensor, got {tensor.type_name} {tensor.name!r}")
    return [op.constant(tensor.quant.scale), op.constant(tensor.quant.zero_point.astype(tensor.dtype.numpy()))]


@translate("VAR_HANDLE")
def var_handle(op: Op) -> ir.Value:
    """A handle is the variable's name, a constant string."""
    return op.constant(np.asarray(str(op.option("shared_name", "")).encode(), object))


def _variable(op: Op) -> Key:
    found = build.array(op.raw(0))
    if found is None:
        op.fail("expected a handle from VAR_HANDLE, got a computed one")
    text = found.reshape(-1)[0]
    return Key(text.decode() if isinstance(text, bytes) else str(text))


@translate("READ_VARIABLE")
def read_variable(op: Op) -> ir.Value:
    """The variable's value, as stored."""
    result = op.output()
    if result.dtype is None:
        op.fail(f"expected a tensor, got a {result.type_name}")
    return op.states.read(_variable(op), result.dtype, result.shape)


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
