"""Models that compute in float16 or bfloat16 compute in float32, as on ONNX Runtime's CPU provider: processors have no
fast arithmetic for them.

1. Constants and computed values are float32. (Lowering stores constants that float16 holds exactly as float16.)
2. Inputs and outputs of the model keep their types, with a Cast behind or before them.
3. A Cast to such a type still rounds; the result is cast back.
4. Operators that see the bits or the type itself (`_AS_THEY_ARE`, operators of users) keep operands and results.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from lite_runtime.operators import ONNX, OURS

__all__ = ["needed", "run"]

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_FLOAT = ir.DataType.FLOAT
_ROUNDING = ("Cast", "CastLike")
_AS_THEY_ARE = frozenset(("BitCast",))
_TYPES = ("dtype", "output_dtype", "output_datatype", "softmax_precision")
"""Attributes that name an element type; `Cast` keeps its `to`."""


def needed(model: ir.Model) -> bool:
    """Whether a model has values in half precision, and no inputs or outputs that are sequences of them."""
    ends = (*model.graph.inputs, *model.graph.outputs)
    return any(map(_is_half, _values(model))) and all(_is_tensor(v) for v in ends if _is_half(v))


def run(model: ir.Model) -> int:
    """The number of values that became float32."""
    if not needed(model):
        return 0
    graph = model.graph
    for node in list(build.nodes(model)):
        if _rounds(node) or _keeps(node):
            _isolate(node, graph)
    for value in (*graph.inputs, *(v for v in dict.fromkeys(graph.outputs) if v.producer() is None)):
        if _is_half(value):
            _widen_source(graph, value)
    _narrow_outputs(graph)
    kept = {value for node in build.nodes(model) if _rounds(node) or _keeps(node) for value in node.outputs}
    kept.update(graph.inputs, graph.outputs)
    count = 0
    for value in [v for v in _values(model) if v not in kept and _is_half(v)]:
        _widen(value)
        count += 1
    for node in build.nodes(model):
        if not _rounds(node) and not _keeps(node):
            _widen_attributes(node)
    return count


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in build.graphs(model):
        yield from graph.inputs
        yield from graph.initializers.values()
        yield from (value for node in graph for value in node.outputs)


def _element(kind: ir.TypeProtocol | None) -> ir.DataType | None:
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    return None if kind is None else kind.dtype


def _is_half(value: ir.Value | None) -> bool:
    return value is not None and _element(value.type) in _HALVES


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType)


def _rounds(node: ir.Node) -> bool:
    return build.is_op(node, *_ROUNDING) and _is_half(node.outputs[0])


def _keeps(node: ir.Node) -> bool:
    if node.domain in ONNX and node.op_type == "Cast" and attr(node, "to", 0) == ir.DataType.STRING.value:
        return True
    return node.domain not in (*ONNX, OURS) or node.op_type in _AS_THEY_ARE


def _isolate(node: ir.Node, main: ir.Graph) -> None:
    """Casts before operands of half precision of a node that keeps them, and behind its results."""
    edit = Edit(node)
    if not _rounds(node):
        for i, value in enumerate(node.inputs):
            if value is not None and _is_half(value) and _is_tensor(value):
                node.replace_input_with(i, _cast(edit, value, value.dtype or _FLOAT))
    elif node.op_type == "CastLike":
        node = _as_cast(edit)
    for value in node.outputs:
        if _is_half(value) and _is_tensor(value):
            _widen_behind(node, value, main)


def _as_cast(edit: Edit) -> ir.Node:
    """CastLike as the Cast that it is: the type of its second operand changes."""
    result = edit.node.outputs[0]
    made = _cast(edit, edit.node.inputs[0], result.dtype or _FLOAT)
    edit.replace(made)
    producer = made.producer()
    assert producer is not None
    return producer


def _cast(edit: Edit, value: ir.Value | None, dtype: ir.DataType) -> ir.Value:
    made = edit.op("Cast", [value], {"to": dtype.value}, like=value)
    made.type = ir.TensorType(dtype)
    return made


def _widen_behind(node: ir.Node, value: ir.Value, main: ir.Graph) -> None:
    """All that read a node's result read it as float32; the model's own outputs do not change."""
    graph = node.graph
    assert graph is not None
    cast = _to_float(graph, value)
    cast.metadata_props.update(node.metadata_props)
    graph.insert_after(node, cast)
    _read_instead(value, cast)
    if graph is not main:
        graph.outputs[:] = [cast.outputs[0] if v is value else v for v in graph.outputs]


def _to_float(graph: ir.Graph, value: ir.Value) -> ir.Node:
    shape = None if value.shape is None else ir.Shape(list(value.shape))
    wide = ir.Value(name=build.fresh(graph, value.name or ""), type=ir.TensorType(_FLOAT), shape=shape)
    return ir.Node("", "Cast", [value], [ir.AttrInt64("to", _FLOAT.value)], outputs=[wide], name=wide.name)


def _read_instead(value: ir.Value, cast: ir.Node) -> None:
    for user, index in list(value.uses()):
        if user is not cast:
            user.replace_input_with(index, cast.outputs[0])


def _widen_source(graph: ir.Graph, value: ir.Value) -> None:
    cast, first = _to_float(graph, value), next(iter(graph), None)
    if first is None:
        graph.append(cast)
    else:
        graph.insert_before(first, cast)
    _read_instead(value, cast)


def _narrow_outputs(graph: ir.Graph) -> None:
    """A computed output of half precision is the Cast of a float32 value."""
    made: dict[ir.Value, ir.Value] = {}
    for i, value in enumerate(list(graph.outputs)):
        node = value.producer()
        if value not in made and node is not None and _is_half(value) and not (_rounds(node) or _keeps(node)):
            shape = None if value.shape is None else ir.Shape(list(value.shape))
            narrow = ir.Value(name=value.name, type=value.type, shape=shape)
            value.name = build.fresh(graph, value.name or "")
            cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", (value.dtype or _FLOAT).value)], outputs=[narrow])
            cast.name = build.fresh(graph, narrow.name or "")
            cast.metadata_props.update(node.metadata_props)
            graph.append(cast)
            made[value] = narrow
        graph.outputs[i] = made.get(value, value)


def _widen(value: ir.Value) -> None:
    value.type = _wide(value.type)
    if value.const_value is not None:
        value.const_value = ir.Tensor(value.const_value.numpy().astype(np.float32), name=value.name)


def _wide(kind: ir.TypeProtocol | None) -> ir.TypeProtocol:
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return type(kind)(_wide(kind.elem_type))
    return ir.TensorType(_FLOAT)


def _widen_attributes(node: ir.Node) -> None:
    halves = {dtype.value for dtype in _HALVES}
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype in _HALVES:
            wide = ir.Tensor(attribute.as_tensor().numpy().astype(np.float32), name=attribute.as_tensor().name)
            node.attributes[name] = ir.AttrTensor(name, wide)
        elif name in _TYPES and attribute.type == ir.AttributeType.INT and attribute.value in halves:
            node.attributes[name] = ir.AttrInt64(name, _FLOAT.value)
