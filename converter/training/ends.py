"""New inputs and outputs of a graph under construction."""

from __future__ import annotations

import onnx_ir as ir

from converter.ir.build import Shape
from converter.ir.grad.tape import Tape, Term

__all__ = ["add_input", "add_output"]


def add_input(tape: Tape, name: str, shape: Shape, dtype: ir.DataType = ir.DataType.FLOAT) -> Term:
    """A new graph input."""
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    tape.graph.inputs.append(value)
    return tape.term(value)


def add_output(tape: Tape, value: ir.Value, name: str) -> None:
    """A new graph output of that name."""
    if value.is_graph_output() or value.producer() is None:
        value = tape.term(value).op("Identity").value
    value.name = name
    tape.graph.outputs.append(value)
