"""Types and shapes of one node's results by ONNX's own rule for its operator, from what is known of its operands."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build, spec
from lite_runtime.graph import OPSET

__all__ = ["infer_node"]

_T = ir.DataType
_CONTENTS_UP_TO = 1024
"""Largest constant, in bytes, whose contents inference uses: shapes, axes, pads; never weights."""
_OPSETS = [onnx.helper.make_opsetid("", OPSET)]


def infer_node(node: ir.Node) -> None:
    """Set types and shapes of the results. What ONNX refuses or does not know stays unknown."""
    schema = spec.schema(node.domain, node.op_type, OPSET)
    if schema is None:
        return
    known = {v.name or "": v for v in node.inputs if v is not None and v.dtype is not None}
    if any(v is not None and v.dtype is None for v in node.inputs):
        _same_types(node, schema)
        return
    contents = {name: v.const_value for name, v in known.items()}
    try:
        types = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.serde.serialize_node(node),
            {name: _type(v) for name, v in known.items()},
            {n: ir.serde.serialize_tensor(t) for n, t in contents.items() if t and build.nbytes(t) <= _CONTENTS_UP_TO},
            opset_imports=_OPSETS,
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, TypeError, RuntimeError):
        types = {}
    for value in node.outputs:
        found = types.get(value.name or "")
        if found is not None and found.tensor_type.elem_type:
            value.type = ir.TensorType(_T(found.tensor_type.elem_type))
            value.shape = _shape(found.tensor_type)
    _same_types(node, schema)


def _same_types(node: ir.Node, schema: onnx.defs.OpSchema) -> None:
    """Where inference gave no type: an output of the same type variable as an operand has that operand's type."""
    names: Sequence[str] = [p.type_str for p in schema.inputs]
    bound = {names[min(i, len(names) - 1)]: v.dtype for i, v in enumerate(node.inputs) if v is not None and names}
    for i, value in enumerate(node.outputs):
        if value.dtype is None:
            dtype = bound.get(schema.outputs[min(i, len(schema.outputs) - 1)].type_str)
            value.type = None if dtype is None else ir.TensorType(dtype)


def _type(value: ir.Value) -> onnx.TypeProto:
    if value.dtype is None:
        raise ConvertError(f"tensor {value.name!r}: expected a known element type, got none")
    return onnx.helper.make_tensor_type_proto(int(value.dtype), build.dims(value))


def _shape(found: onnx.TypeProto.Tensor) -> ir.Shape | None:
    if not found.HasField("shape"):
        return None
    sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in found.shape.dim]
    return None if any(isinstance(d, int) and d < 0 for d in sizes) else ir.Shape(sizes)
