"""Operators that the integer passes left in float, and why, for the report of a conversion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from converter.ir import build
from converter.passes import quantized
from converter.passes.integer import fuse_integer
from converter.passes.integer.lookup_tables import ELEMENTWISE
from lite_runtime.operators import having

__all__ = ["Left", "left_float"]


class Left(NamedTuple):
    """An operator that computes in float32."""

    name: str
    op: str
    reason: str


_QUANTIZED = having("quantised") | having("scaled") | {"DynamicQuantizeLinear", "LookupTable", "QLinearResize"}
_MOVES = having("movement") | {"Cast", "Concat", "Pad"}


def left_float(model: ir.Model) -> list[Left]:
    """Every operator that computes a float32 result in float32; empty for a model without quantised values."""
    found = list(build.nodes(model))
    if not any(_is_quantized(node) for node in found):
        return []
    return list(_left(found))


def _is_quantized(node: ir.Node) -> bool:
    return node.op_type in _QUANTIZED


def _left(found: list[ir.Node]) -> Iterator[Left]:
    for node in found:
        floats = any(v.dtype == ir.DataType.FLOAT for v in node.outputs)
        if floats and not _is_quantized(node) and node.op_type not in _MOVES:
            yield Left(node.name or "", node.op_type, _reason(node))


def _from_integers(value: ir.Value | None, depth: int = 16) -> bool:
    """Whether a value is dequantised, or computed elementwise from dequantised values."""
    if quantized.dequantized(value) is not None:
        return True
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in ELEMENTWISE or depth == 0:
        return False
    return any(_from_integers(v, depth - 1) for v in node.inputs)


def _reason(node: ir.Node) -> str:
    why = None if node.op_type in ELEMENTWISE else fuse_integer.refusal(node)
    if why is not None:
        return why
    inside = any(_from_integers(v) for v in node.inputs)
    if node.op_type in ELEMENTWISE:
        return "elementwise: runs in one pass from integers to integers" if inside else "elementwise on float operands"
    return f"{node.op_type} has no integer form" if inside else "its input is not quantised"
