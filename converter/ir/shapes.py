"""Shape and type inference over the IR by ONNX's own engine, with the caller's input shapes replacing the model's.

Operators of our own domain, which the engine skips, get their result types from `own_shapes`.

Large initialisers stay out of the protobuf that the engine reads (it needs their shapes, not their contents), so the
cost does not grow with the weights. Known sizes are kept: a symbol never replaces one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build, own_shapes
from converter.ir.isolated import try_inference
from lite_runtime.graph import OPSET

__all__ = ["agree", "check_types", "infer", "made_up", "override"]

_CONTENTS_UP_TO = 1024
"""Bytes up to which a constant's contents take part in inference: shapes, axes, pads; never weights."""


def override(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Fix graph inputs to the given sizes. Raises ConvertError for unknown names, wrong ranks or contradictions."""
    inputs = {v.name: v for v in model.graph.inputs}
    for name, wanted in shapes.items():
        if name not in inputs:
            raise ConvertError(f"input_shapes names {name!r}; the model's inputs are {', '.join(map(str, inputs))}")
        _check_override(name, build.dims(inputs[name]), wanted)
        inputs[name].shape = ir.Shape([int(d) for d in wanted])
    if shapes:
        _forget(model)


def _check_override(name: str, known: Sequence[int | str | None] | None, wanted: Sequence[int]) -> None:
    if any(int(d) < 0 for d in wanted):
        raise ConvertError(f"input_shapes[{name!r}]: expected sizes of at least 0, got {tuple(wanted)}")
    if known is None:
        return
    clash = len(known) != len(wanted) or any(isinstance(k, int) and k != w for k, w in zip(known, wanted, strict=False))
    if clash:
        raise ConvertError(f"input_shapes[{name!r}]: {tuple(wanted)} does not fit the model's {tuple(known)}")


def _forget(model: ir.Model) -> None:
    """Drop stored shapes of intermediate values and outputs: they were inferred for other input sizes."""
    for node in build.nodes(model):
        if node.domain == build.DOMAIN:
            continue
        for value in node.outputs:
            if value.shape is not None and not value.is_graph_output():
                value.shape = None
    for value in model.graph.outputs:
        if value.producer() is not None and value.shape is not None:
            value.shape = ir.Shape([None] * len(value.shape))


def infer(model: ir.Model, *, declared: bool = True) -> int:
    """Fill in shapes and types everywhere the engine knows them; the number of values that gained something.

    `declared=False` ignores the types and shapes stored with intermediate values and is strict: the first operator
    whose operands do not fit, or a graph output whose declaration contradicts its operator, raises ConvertError. If
    inputs have open sizes, sizes of outputs that only their declaration gives are dropped: exporters write those of one
    run.
    """
    _forget_made_up(model)
    proto = _skeleton(model, declared)
    if not declared:
        proto.graph.ClearField("value_info")
        for output in proto.graph.output:
            if output.type.HasField("tensor_type"):
                output.ClearField("type")
        try_inference(model, proto)
    found = _run(proto, strict=not declared).graph
    if not declared and not _fixed(model.graph.inputs):
        _drop_traced(model.graph, found)
    gained = _merge_graph(model.graph, found, declared)
    again = any(o.domain == _HIDDEN for o in proto.opset_import)
    while own_shapes.fill(model) or again:
        again = False
        gained += 1 + _merge_graph(model.graph, _run(_skeleton(model), strict=False).graph, True)
    return gained


def check_types(model: ir.Model) -> None:
    """Raise ConvertError for a value whose stored type is not what its operator makes of its operands' types."""
    proto = _skeleton(model, declared=False)
    proto.graph.ClearField("value_info")
    for output in proto.graph.output:
        output.ClearField("type")
    found = _run(proto, strict=False).graph
    stored = {value.name: value for node in model.graph for value in node.outputs}
    for info in (*found.value_info, *found.output):
        value, kind = stored.get(info.name), info.type.tensor_type.elem_type
        if value is not None and kind and value.dtype is not None and value.dtype.value != kind:
            made = ir.DataType(kind).name
            raise ConvertError(
                f"the model contradicts itself: {info.name!r} is declared {value.dtype.name}, and its operator makes"
                f" {made}; fix or export it again"
            )


def _fixed(values: Sequence[ir.Value]) -> bool:
    """Whether all sizes are known."""
    return all((shape := build.dims(v)) is not None and all(isinstance(d, int) for d in shape) for v in values)


def _drop_traced(graph: ir.Graph, found: onnx.GraphProto) -> None:
    """Drop declared sizes of outputs that the engine does not find."""
    types = {info.name: info.type for info in found.output}
    for value in graph.outputs:
        node, declared = value.producer(), build.dims(value)
        if node is None or declared is None or node.domain not in ("", "ai.onnx") or value.name not in types:
            continue
        shape = ir.serde.deserialize_type_proto_for_shape(types[value.name])
        known = [None] * len(declared) if shape is None or len(shape) != len(declared) else list(shape)
        pairs = zip(declared, known, strict=True)
        value.shape = ir.Shape([None if isinstance(d, int) and not isinstance(k, int) else d for d, k in pairs])


def _forget_made_up(model: ir.Model) -> None:
    """Rename symbols that the engine generated: they are valid within one run only and could clash in a later one."""
    for node in build.nodes(model):
        for value in node.outputs:
            shape = build.dims(value)
            if shape is not None and any(isinstance(d, str) and made_up(d) for d in shape):
                value.shape = ir.Shape([None if isinstance(d, str) and made_up(d) else d for d in shape])


def _run(proto: onnx.ModelProto, strict: bool) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=strict, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        text = str(error)
        # Several nested: the engine failed inside a function it expanded itself. "null": it does not know the type of
        # the result before, which its rules for ai.onnx.ml do not give.
        if strict and (text.count("op_type:") != 1 or "expected to have type but instead is null" in text):
            return _run(proto, strict=False)
        raise ConvertError(f"the model contradicts itself: {_plain(text)}; fix or export it again") from error
    except MemoryError as error:
        raise ConvertError("the model declares sizes too large for memory; it is damaged, or fix its shapes") from error


def _plain(text: str) -> str:
    """The engine's error message on one line."""
    return " ".join(text.split()).removeprefix("[ShapeInferenceError] Inference error(s): ")


def _skeleton(model: ir.Model, declared: bool = True) -> onnx.ModelProto:
    """The model as a protobuf with large constants turned into inputs. `declared`: the engine will see the types of
    values inside the graph."""
    graph, inputs = model.graph, list(model.graph.inputs)
    large = [
        (value, value.const_value)
        for value in graph.initializers.values()
        if value.const_value is not None and build.nbytes(value.const_value) > _CONTENTS_UP_TO
    ]
    try:
        for value, tensor in large:
            if value.shape is None:
                value.shape = ir.Shape(tensor.shape.numpy())
            graph.initializers.pop(value.name or "")
            value.const_value = None
            graph.inputs.append(value)
        with build.quiet():  # a shape whose type is not known yet is left out
            proto = ir.serde.serialize_model(model)
        hidden = _hide(graph, proto.graph, declared)
        return _import_all(proto, {n.domain for n in build.nodes(model)} | ({_HIDDEN} if hidden else set()))
    except ir.serde.SerdeError as error:
        raise ConvertError(f"the model cannot be written as a protobuf: {error.__cause__ or error}") from error
    finally:
        for value, tensor in large:
            value.const_value = tensor
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        for value, _ in large:
            graph.register_initializer(value)


_NEED_TYPES = frozenset(("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"))
"""Operators whose inference in onnx 1.23 ends the process if an operand's type is not known."""
_HIDDEN = "msedge.hidden"


def _hide(graph: ir.Graph, proto: onnx.GraphProto, declared: bool) -> int:
    """Give nodes of `_NEED_TYPES` a domain that the engine skips if it may not know the type of what they read; their
    number."""

    def unknown(value: ir.Value | None) -> bool:
        return value is not None and (value.type is None or not (declared or value.producer() is None))

    hidden = 0
    for node, made in zip(graph, proto.node, strict=True):
        if node.op_type in _NEED_TYPES and any(map(unknown, node.inputs)):
            made.domain = _HIDDEN
            hidden += 1
        for attribute in made.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH and attribute.name in node.attributes:
                hidden += _hide(node.attributes[attribute.name].as_graph(), attribute.g, declared)
    return hidden


def _import_all(proto: onnx.ModelProto, used: set[str]) -> onnx.ModelProto:
    """Import missing domains, because the engine stops at them; the lowering reports their operators."""
    for domain in sorted(used - {o.domain for o in proto.opset_import}):
        proto.opset_import.append(onnx.helper.make_opsetid(domain, OPSET if domain == "" else 1))
    return proto


def _merge_graph(graph: ir.Graph, proto: onnx.GraphProto, declared: bool) -> int:
    gained = 0
    infos = {info.name: info.type for info in (*proto.value_info, *proto.output)}
    for node, node_proto in zip(graph, proto.node, strict=True):
        for value in node.outputs:
            if value.name in infos:
                gained += _merge_value(value, infos[value.name], declared)
        for attribute in node_proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH and attribute.name in node.attributes:
                gained += _merge_graph(node.attributes[attribute.name].as_graph(), attribute.g, True)
    for value, info in zip(graph.inputs, proto.input, strict=False):
        if value.name == info.name and (value.type is None or value.shape is None):
            gained += _merge_value(value, info.type, declared)
    return gained


_KNOWN_TYPES = frozenset(dtype.value for dtype in ir.DataType)


def _merge_value(value: ir.Value, proto: onnx.TypeProto, declared: bool) -> int:
    gained, kind = 0, proto.WhichOneof("value")
    if proto.tensor_type.elem_type not in _KNOWN_TYPES:
        raise ConvertError(
            f"value {value.name!r} has the element type number {proto.tensor_type.elem_type}, which ONNX does not "
            "have; correct its operator's attributes"
        )
    if not declared and value.is_graph_output() and kind == "sequence_type" and isinstance(value.type, ir.TensorType):
        raise build.contradicted(value, "as a tensor", "a sequence")
    if value.type is None and kind:
        value.type = ir.serde.deserialize_type_proto_for_type(proto)
        gained = 1
    elif not declared and proto.tensor_type.elem_type not in (0, value.dtype):
        dtype = ir.DataType(proto.tensor_type.elem_type)
        if value.is_graph_output():
            raise build.contradicted(value, f"as {value.dtype}", dtype)
        value.type = ir.TensorType(dtype)
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    if shape is None:
        return gained
    if any(isinstance(d, int) and d < 0 for d in shape):  # the engine's, for a branch that is never taken
        shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in shape])
    if value.shape is None:
        value.shape = ir.Shape(list(shape))
        return 1
    if not agree(value.shape, shape):
        if declared or value.is_graph_output():
            raise ConvertError(
                f"value {value.name!r} is declared with shape {value.shape}, but its operator gives {shape}; "
                "correct the declaration, or give input_shapes that fit it"
            )
        value.shape = ir.Shape(list(shape))
        return 1
    merged = [_better(old, new) for old, new in zip(value.shape, shape, strict=True)]
    if merged == list(value.shape):
        return gained
    value.shape = ir.Shape(merged)
    return 1


def agree(old: ir.Shape, new: ir.Shape) -> bool:
    """Same rank, and no two known sizes differ."""
    both = list(zip(old, new, strict=False))
    return len(old) == len(new) and not any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in both)


def _better(old: int | ir.SymbolicDim, new: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(old, int):
        return old
    if isinstance(new, int) or made_up(old.value):
        return new
    return old


def made_up(symbol: str | None) -> bool:
    """Whether the engine generated this symbol for an unknown size, so that it is not a name in the model."""
    return symbol is None or symbol.startswith("unk__")
