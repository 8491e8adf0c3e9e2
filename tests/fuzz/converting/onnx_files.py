"""Ways to damage an ONNX model: fields of any message, and what a model is made of: shapes, names, opsets, graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

from lite_runtime.operators import OPERATORS

__all__ = ["spoil"]

WHOLE = (0, 1, 2, 3, 4, 7, 64, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1)
WHOLE += (*(-n for n in WHOLE[1:]), -(2**63))
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-8, 3e38, -3e38, *map(float, ("nan", "inf", "-inf")))
TEXTS = ("", "x", "a/b", "a b", "\x1b[31m", "line\nline", "ß€", "%s {0}", "long " * 400, "\u202e")
PLACES = ("weights.bin", "../weights.bin", "/etc/passwd", "", ".", "weights.bin/x", "a\0b", "x" * 300, "../" * 40 + "x")
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "msedge", "org.pytorch.aten", "custom", "AI.ONNX")
Spoiler = Callable[[Random, ModelProto], None]


def spoil(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """One more change of the file `data`; bytes that are no model any more stay as they are."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
        if rng.random() < 0.06:
            _mix(rng, model, onnx.load_from_string(rng.choice(others)))
        else:
            rng.choice(_spoilers())(rng, model)
        return bytes(model.SerializeToString())
    except (DecodeError, EncodeError, UnicodeEncodeError):
        return data


def _mix(rng: Random, model: ModelProto, other: ModelProto) -> None:
    """A part of another model where one of this model's is."""
    mine = [(m, f) for m in _messages(model) for f in _fields(m) if f.type == f.TYPE_MESSAGE]
    message, field = rng.choice(mine)
    theirs = [m for m in _messages(other) if m.DESCRIPTOR is field.message_type]
    if theirs:
        value = getattr(message, field.name)
        target = value.add() if field.is_repeated else value
        target.CopyFrom(rng.choice(theirs))


def _fields(message: Message) -> list[Any]:
    return list(message.DESCRIPTOR.fields)


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _of(model: ModelProto, kind: type) -> list[Any]:
    return [m for m in _messages(model) if isinstance(m, kind)]


# ------------------------------------------------------------------------------------------------------- any field


def _any_field(rng: Random, model: ModelProto) -> None:
    message = rng.choice(list(_messages(model)))
    present = [f for f, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else _fields(message))
    if field.is_repeated:
        _repeated(rng, model, message, field)
    elif field.type == field.TYPE_MESSAGE:
        if rng.random() < 0.5:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(rng, model, field))


def _repeated(rng: Random, model: ModelProto, message: Message, field: Any) -> None:
    values = getattr(message, field.name)
    kind = rng.randrange(5)
    if kind == 0 and values:
        del values[rng.randrange(len(values))]
    elif kind == 1 and values:
        chosen = rng.choice(values)
        if field.type == field.TYPE_MESSAGE:
            values.add().CopyFrom(chosen)
        else:
            values.append(chosen)
    elif kind == 2 and len(values) > 1:
        rest = list(values)
        rng.shuffle(rest)
        del values[:]
        values.extend(rest)
    elif kind == 3:
        message.ClearField(field.name)
    elif field.type == field.TYPE_MESSAGE:
        values.add()
    elif values and rng.random() < 0.7:
        values[rng.randrange(len(values))] = _scalar(rng, model, field)
    else:
        values.append(_scalar(rng, model, field))


def _scalar(rng: Random, model: ModelProto, field: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return _text(rng, model)
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 4, 8, 100)))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(REALS)
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64):
        return _whole(rng)
    if field.type == field.TYPE_UINT64:
        return abs(_whole(rng))
    if field.type == field.TYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    return max(-(2**31), min(2**31 - 1, rng.choice(range(-1, 30)) if rng.random() < 0.7 else _whole(rng)))


def _whole(rng: Random) -> int:
    return rng.randrange(-3, 9) if rng.random() < 0.5 else rng.choice(WHOLE)


def _text(rng: Random, model: ModelProto) -> str:
    if rng.random() < 0.3:
        return rng.choice(TEXTS)
    names = [n for node in model.graph.node for n in (*node.input, *node.output, node.name)]
    return rng.choice(names or TEXTS) if rng.random() < 0.8 else rng.choice(_op_types())


@cache
def _op_types() -> list[str]:
    return sorted({*OPERATORS, *(s.name for s in onnx.defs.get_all_schemas())})


# ------------------------------------------------------------------------------------------------ shapes and types


def _dims(rng: Random, model: ModelProto) -> None:
    """A size of a declared shape."""
    shapes = _of(model, onnx.TensorShapeProto)
    if not shapes:
        return
    shape = rng.choice(shapes)
    kind = rng.randrange(5)
    if kind == 0:
        shape.dim.add().dim_value = _whole(rng)
    elif kind == 1 and shape.dim:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif kind == 2:
        for dim in shape.dim:
            dim.dim_param = rng.choice(("N", "N", "?", "-1", "unk__0", "a b"))
    elif shape.dim:
        rng.choice(shape.dim).dim_value = _whole(rng)


def _types(rng: Random, model: ModelProto) -> None:
    """An element type, or another kind of value: a sequence, an optional, a map, none."""
    types = _of(model, onnx.TypeProto)
    if not types:
        return
    kind = rng.choice(types)
    if kind.HasField("tensor_type") and rng.random() < 0.7:
        kind.tensor_type.elem_type = rng.choice((*range(26), 99, -1))
    elif rng.random() < 0.5:
        inner = onnx.TypeProto()
        inner.CopyFrom(kind)
        getattr(kind, rng.choice(("sequence_type", "optional_type"))).elem_type.CopyFrom(inner)
    else:
        getattr(kind, rng.choice(("map_type", "sparse_tensor_type", "opaque_type"))).SetInParent()


def _tensor(rng: Random, model: ModelProto) -> None:
    """Contents, sizes or type of a constant."""
    tensors = _of(model, TensorProto)
    if not tensors:
        return
    tensor = rng.choice(tensors)
    kind = rng.randrange(9)
    if kind < 4:
        _contents(rng, tensor)
    elif kind == 4:
        tensor.data_type = rng.choice((*range(26), 99, -1))
    elif kind == 5 and tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] = _whole(rng)
    elif kind == 6:
        tensor.dims.extend([rng.choice((0, 1, 1, 2, 2**31))] * rng.choice((1, 2, 70)))
    elif kind == 7:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
    else:
        _external(rng, tensor)


def _contents(rng: Random, tensor: TensorProto) -> None:
    """Other numbers of the same count: axes, shapes and pads that do not fit, scales that are not numbers."""
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    try:
        array = onnx.numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError, KeyError, MemoryError, AttributeError):
        return
    if not array.size or array.dtype.kind not in "iufb":
        return
    flat = array.reshape(-1)
    for _ in range(rng.choice((1, 1, 2, array.size if array.size < 9 else 5))):
        value: Any = rng.choice(REALS) if array.dtype.kind == "f" else _whole(rng)
        with np.errstate(all="ignore"):
            flat[rng.randrange(array.size)] = np.array(value).astype(array.dtype)
    made = onnx.numpy_helper.from_array(array, tensor.name)
    tensor.CopyFrom(made)


def _external(rng: Random, tensor: TensorProto) -> None:
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": rng.choice(PLACES)}
    if rng.random() < 0.6:
        entries["length"] = str(rng.choice((size, 0, -1, 2**63, "x", "1e3")))
    if rng.random() < 0.5:
        entries["offset"] = str(rng.choice((0, 8, -8, 2**62, 2**64, "0x10", "")))
    for key, value in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value


# ------------------------------------------------------------------------------------------------ nodes and names


def _operator(rng: Random, model: ModelProto) -> None:
    nodes = _of(model, NodeProto)
    if not nodes:
        return
    node = rng.choice(nodes)
    if rng.random() < 0.7:
        node.op_type = rng.choice(_op_types())
    else:
        node.domain = rng.choice(DOMAINS)


def _attribute(rng: Random, model: ModelProto) -> None:
    """An attribute that is missing, has another type or value, or is new."""
    nodes = _of(model, NodeProto)
    if not nodes:
        return
    node = rng.choice(nodes)
    kind = rng.randrange(4)
    if kind == 0 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
        return
    if kind == 1 and node.attribute:
        attribute = rng.choice(node.attribute)
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = _whole(rng)
        elif attribute.floats:
            attribute.floats[rng.randrange(len(attribute.floats))] = rng.choice(REALS)
        elif attribute.type == AttributeProto.INT:
            attribute.i = _whole(rng)
        elif attribute.type == AttributeProto.FLOAT:
            attribute.f = rng.choice(REALS)
        elif attribute.type == AttributeProto.STRING:
            texts = (b"", b"VALID", b"SAME_UPPER", b"linear", b"NHWC", b"\xff", _text(rng, model).encode())
            attribute.s = rng.choice(texts)
        return
    names = _attributes_of(node.op_type)
    name = rng.choice(names) if names and rng.random() < 0.9 else rng.choice(TEXTS)
    for at in reversed([i for i, a in enumerate(node.attribute) if a.name == name and rng.random() < 0.9]):
        del node.attribute[at]
    node.attribute.append(_made_attribute(rng, name, model))


@cache
def _attributes_of(op: str) -> list[str]:
    found = {n for s in onnx.defs.get_all_schemas_with_history() if s.name == op for n in s.attributes}
    return sorted(found)


def _made_attribute(rng: Random, name: str, model: ModelProto) -> AttributeProto:
    values: tuple[Any, ...] = (
        _whole(rng),
        [_whole(rng) for _ in range(rng.randrange(1, 6))],
        rng.choice(REALS),
        [rng.choice(REALS) for _ in range(rng.randrange(1, 4))],
        rng.choice(("", "VALID", "SAME_LOWER", "NOTSET", "constant", "Tanh", "x")),
        [rng.choice(("Tanh", "Relu", "x", "")) for _ in range(rng.randrange(1, 4))],
    )
    made = helper.make_attribute(name or "n", rng.choice(values))
    made.name = name
    if rng.random() < 0.05:
        made.ref_attr_name = "alpha"
    return made


def _edges(rng: Random, model: ModelProto) -> None:
    """An operand or result with another name: cycles, repeated names, undefined ones, none; one more or one less."""
    nodes = _of(model, NodeProto)
    if not nodes:
        return
    node = rng.choice(nodes)
    side = rng.choice((node.input, node.input, node.output))
    kind = rng.randrange(4)
    if kind == 0 and side:
        del side[rng.randrange(len(side))]
    elif kind == 1:
        side.append(_text(rng, model))
    elif side:
        side[rng.randrange(len(side))] = rng.choice(("", _text(rng, model), _text(rng, model)))


def _ends(rng: Random, model: ModelProto) -> None:
    """Inputs and outputs of the graph: missing, repeated, renamed, not computed, without type."""
    graph = model.graph
    side = rng.choice((graph.input, graph.output))
    kind = rng.randrange(5)
    if kind == 0 and side:
        del side[rng.randrange(len(side))]
    elif kind == 1:
        names = [n for node in graph.node for n in node.output] + [t.name for t in graph.initializer]
        side.add().name = rng.choice(names or ["x"])
    elif kind == 2 and side:
        side.add().CopyFrom(rng.choice(side))
    elif side and kind == 3:
        rng.choice(side).ClearField("type")
    elif side:
        rng.choice(side).name = _text(rng, model)


def _opsets(rng: Random, model: ModelProto) -> None:
    kind = rng.randrange(4)
    if kind == 0 and model.opset_import:
        del model.opset_import[rng.randrange(len(model.opset_import))]
    elif kind == 1:
        model.opset_import.append(helper.make_opsetid(rng.choice(DOMAINS), _whole(rng)))
    elif kind == 2:
        model.ir_version = _whole(rng)
    elif model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((0, -1, 99, 2**40, *range(1, 28)))


# ------------------------------------------------------------------------------------------ graphs inside graphs


def _function(rng: Random, model: ModelProto) -> None:
    """Nodes as a function of the file, which may call itself, lack an opset or be there twice."""
    if not model.graph.node:
        return
    node = rng.choice(model.graph.node)
    inputs, outputs = list(dict.fromkeys(n for n in node.input if n)), [n for n in node.output if n]
    body = [NodeProto()]
    body[0].CopyFrom(node)
    name, domain = rng.choice(("F", "F", node.op_type)), rng.choice(("local", "", "ai.onnx"))
    if rng.random() < 0.2:
        body[0].op_type, body[0].domain = name, domain
    made = helper.make_function(
        domain, name, inputs, outputs, body, list(model.opset_import), rng.choice(([], ["alpha"]))
    )
    if rng.random() < 0.3 and made.node[0].attribute:
        attribute = rng.choice(made.node[0].attribute)
        attribute.ref_attr_name = rng.choice(("alpha", "beta"))
    for _ in range(rng.choice((1, 1, 1, 2))):
        model.functions.append(made)
    call = helper.make_node(name, inputs, outputs, node.name, domain=domain)
    if rng.random() < 0.8:
        node.CopyFrom(call)
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _branch(rng: Random, model: ModelProto) -> None:
    """A node inside the branches of an If, or the body of a Loop, several levels deep."""
    if not model.graph.node:
        return
    at = rng.randrange(len(model.graph.node))
    node = model.graph.node[at]
    levels = rng.choice((1, 1, 2, 3, 30))
    for level in range(levels):
        outputs = list(node.output)
        inner = NodeProto()
        inner.CopyFrom(node)
        names = {n: f"{n}/{level}" for n in outputs}
        for i, name in enumerate(inner.output):
            inner.output[i] = names[name]
        infos = [onnx.ValueInfoProto(name=names[n]) for n in outputs if n]
        graph = helper.make_graph([inner], f"body {level}", [], infos)
        try:
            if levels < 4 and rng.random() < 0.8:  # which doubles the file
                model.graph.initializer.append(helper.make_tensor(f"cond {level}", TensorProto.BOOL, [], [True]))
                made = helper.make_node("If", [f"cond {level}"], outputs, then_branch=graph, else_branch=graph)
            else:
                made = helper.make_node("Loop", ["", "", *list(inner.input)[:1]], outputs, body=graph)
        except SystemError:  # deeper than protobuf allows, after several such changes
            return
        node.CopyFrom(made)


def _many(rng: Random, model: ModelProto) -> None:
    """Long chains, many constants, long names: work that must not grow faster than the file."""
    kind, count = rng.randrange(3), rng.choice((50, 300))
    graph = model.graph
    if kind == 0 and graph.output:
        last = graph.output[0].name
        for i in range(count):
            graph.node.append(helper.make_node(rng.choice(("Relu", "Identity", "Neg")), [last], [f"chain {i}"]))
            last = f"chain {i}"
        graph.output.add().CopyFrom(helper.make_tensor_value_info(last, TensorProto.FLOAT, None))
    elif kind == 1:
        for i in range(count):
            graph.initializer.append(helper.make_tensor(f"extra {i}", TensorProto.INT64, [1], [i]))
    elif graph.node:
        rng.choice(graph.node).name = "n" * count * 100


@cache
def _spoilers() -> list[Spoiler]:
    shares: dict[Spoiler, int] = {
        _any_field: 8, _dims: 5, _types: 3, _tensor: 9, _operator: 3, _attribute: 9, _edges: 5, _ends: 3, _opsets: 2,
        _function: 2, _branch: 2, _many: 1,
    }  # fmt: skip
    return [spoiler for spoiler, share in shares.items() for _ in range(share)]
