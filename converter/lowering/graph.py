"""`lower(model)`: an IR model whose operators are all known to the runtime becomes a `lite_runtime.graph.Graph`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError, UnsupportedNode, UnsupportedOpError
from converter.ir import build
from converter.lowering.table import HINTS, lite_op
from lite_runtime.errors import BundleError
from lite_runtime.graph import Array, Attr, Graph, Node, Value, dtype_name
from lite_runtime.graph.verify import FIX, verify_attributes, verify_graph
from lite_runtime.operators import OPERATORS

__all__ = ["lower", "need_storable", "unsupported"]

_T = ir.AttributeType


def lower(model: ir.Model) -> Graph:
    """The lite graph of the model. Raises UnsupportedOpError listing every operator the runtime does not know."""
    missing = list(unsupported(model))
    if missing:
        raise UnsupportedOpError(missing)
    return _graph(model.graph)


def unsupported(model: ir.Model) -> Iterator[UnsupportedNode]:
    """Every node without a reference, in order."""
    from lite_runtime.reference import DEFINITIONS

    for node in build.nodes(model):
        op = lite_op(node)
        if op == "Constant" or (op is not None and op in DEFINITIONS):
            continue
        opset = model.graph.opset_imports.get(node.domain)
        yield UnsupportedNode(
            node.name or "", node.op_type, node.domain, opset, build.source_of(node), HINTS.get(node.domain, "")
        )


def need_storable(model: ir.Model) -> None:
    """Raise ConvertError for a model, at the pinned opset, that no bundle can hold, before passes change it: one that
    lists all operators and attribute values that the runtime does not know (UnsupportedOpError), or that names the
    first contradiction elsewhere."""
    refused = [*unsupported(model), *_wrong_attributes(model)]
    if refused:
        raise UnsupportedOpError(refused)
    try:
        verify_graph(_graph(model.graph))
    except BundleError as error:
        reason = str(error).removesuffix(f"; {FIX}")
        raise ConvertError(f"the model contradicts itself: {reason}; fix or export it again") from None


def _wrong_attributes(model: ir.Model) -> Iterator[UnsupportedNode]:
    """Nodes of known operators with attributes that these do not have, or values that they do not take."""
    nothing = Graph((), (), (), {}, "")
    for node in build.nodes(model):
        op = lite_op(node)
        if op is None or op == "Constant" or op not in OPERATORS:
            continue
        try:
            attrs = {n: nothing if a.type == _T.GRAPH else _attr(node, a) for n, a in node.attributes.items()}
            verify_attributes(Node(op, (), (), attrs, node.name or ""))
        except (BundleError, ConvertError) as error:
            opset = model.graph.opset_imports.get(node.domain)
            reason = str(error).removesuffix(f"; {FIX}")
            yield UnsupportedNode(node.name or "", node.op_type, node.domain, opset, build.source_of(node), reason)


def _graph(graph: ir.Graph) -> Graph:
    constants: dict[str, Array] = {}
    for name, value in graph.initializers.items():
        if value.const_value is not None and (value.uses() or value.is_graph_output()):
            constants[name] = tensor_array(value.const_value)
    nodes = []
    for node in graph:
        if node.op_type == "Constant" and node.domain == "":
            constants[node.outputs[0].name or ""] = _constant(node)
        else:
            nodes.append(_node(node))
    return Graph(
        inputs=tuple(_value(v) for v in graph.inputs),
        outputs=tuple(_value(v) for v in graph.outputs),
        nodes=tuple(nodes),
        constants=constants,
        name=graph.name or "",
    )


def _node(node: ir.Node) -> Node:
    op = lite_op(node)
    assert op is not None, f"{node.domain}::{node.op_type} passed the check for unsupported operators"
    inputs = [v.name or "" if v is not None else "" for v in node.inputs]
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = [_output_name(v) for v in node.outputs]
    # How many parts a Split makes is its meaning; a TopK has both its outputs, read or not.
    fewest = len(outputs) if op == "Split" else max(1, OPERATORS[op].outputs[0] if op in OPERATORS else 1)
    while len(outputs) > fewest and not outputs[-1]:
        outputs.pop()
    attrs = {name: _attr(node, value) for name, value in node.attributes.items()}
    return Node(op, tuple(inputs), tuple(outputs), attrs, node.name or "")


def _output_name(value: ir.Value) -> str:
    return (value.name or "") if value.uses() or value.is_graph_output() or value.index() == 0 else ""


def tensor_array(tensor: ir.TensorProtocol) -> Array:
    """The tensor's contents, without a copy where its storage allows; text as Python strings."""
    found = tensor.numpy()
    if tensor.dtype == ir.DataType.STRING:
        text = np.empty(found.shape, object)
        text.ravel()[:] = [s.decode("utf-8", "replace") if isinstance(s, bytes) else str(s) for s in found.ravel()]
        return text
    return found


def _constant(node: ir.Node) -> Array:
    attribute = next(iter(node.attributes.values()))
    if attribute.type == _T.TENSOR:
        return tensor_array(attribute.as_tensor())
    plain = {
        _T.INT: np.int64,
        _T.INTS: np.int64,
        _T.FLOAT: np.float32,
        _T.FLOATS: np.float32,
        _T.STRING: object,
        _T.STRINGS: object,
    }
    if attribute.type not in plain:
        raise ConvertError(f"Constant {node.name!r}: {attribute.name} of type {attribute.type.name} is not supported")
    return np.asarray(attribute.value, plain[attribute.type])


_PLAIN: Mapping[ir.AttributeType, Callable[[Any], Attr]] = {
    _T.INT: int,
    _T.FLOAT: float,
    _T.STRING: str,
    _T.INTS: lambda v: tuple(int(x) for x in v),
    _T.FLOATS: lambda v: tuple(float(x) for x in v),
    _T.STRINGS: lambda v: tuple(str(x) for x in v),
    _T.TENSOR: tensor_array,
    _T.GRAPH: _graph,
    _T.TYPE_PROTO: lambda v: _type_text(v.type),
}


def _attr(node: ir.Node, attribute: ir.Attr) -> Attr:
    read = _PLAIN.get(attribute.type)
    if read is None:
        raise ConvertError(
            f"{node.op_type} {node.name!r}: attribute {attribute.name!r} of type {attribute.type.name} has no lite form"
        )
    return read(attribute.value)


def _type_text(kind: ir.TypeProtocol) -> str:
    """`tensor(float32)`, `sequence(tensor(int64))`: how the lite graph writes a type attribute."""
    if isinstance(kind, ir.SequenceType):
        return f"sequence({_type_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({_type_text(kind.elem_type)})"
    return f"tensor({lite_dtype(kind.dtype)})"


def lite_dtype(dtype: ir.DataType) -> str:
    """The lite name of an ONNX element type."""
    return "string" if dtype == ir.DataType.STRING else dtype_name(dtype.numpy())


_KINDS = ((ir.SequenceType, "sequence"), (ir.OptionalType, "optional"))


def _value(value: ir.Value) -> Value:
    if value.type is None or value.dtype is None or not value.dtype.value:
        raise ConvertError(
            f"value {value.name!r}: its element type is unknown, so it cannot be an input or output of a lite graph; "
            "run onnx.shape_inference on the model, or declare the type"
        )
    dims, maker = build.dims(value), value.producer()
    if maker is not None and any(isinstance(d, int) and d < 0 for d in dims or ()):
        raise ConvertError(
            f"{maker.op_type} {maker.name!r} would give {value.name!r} the shape {list(dims or ())}: its window is "
            "larger than what it is moved over; correct its attributes, or give input_shapes that fit"
        )
    kind = next((name for cls, name in _KINDS if isinstance(value.type, cls)), "tensor")
    return Value(value.name or "", lite_dtype(value.dtype), dims, kind)
