"""The ONNX frontend: a path, bytes, `onnx.ModelProto` or `onnx_ir.Model` to an `onnx_ir.Model` that is safe to edit.

All structural errors of a file are refused here, each with one ConvertError: data that is not a protobuf, truncation,
unknown domains and opsets, names used twice or never defined, cycles, weights that do not match their shape, external
data that is missing or outside the model's folder. In the result, functions are inlined, initialisers are not inputs,
nodes are in topological order, and every value has a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message
from onnx_ir.passes import common as clean

from converter.errors import ConvertError
from converter.frontends.maps import unzip
from converter.frontends.sparse import densify
from converter.ir import build
from lite_runtime.graph.verify import MAX_RANK

__all__ = ["NotOnnxError", "Source", "load"]

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


class NotOnnxError(ConvertError):
    """The bytes are not an ONNX model at all."""


OLDEST_OPSET, NEWEST_OPSET = 1, onnx.defs.onnx_opset_version()
_BITS = {
    onnx.TensorProto.FLOAT4E2M1: 4,
    onnx.TensorProto.INT4: 4,
    onnx.TensorProto.UINT4: 4,
    getattr(onnx.TensorProto, "INT2", -1): 2,
    getattr(onnx.TensorProto, "UINT2", -2): 2,
}


def load(source: Source) -> ir.Model:
    """The model as IR at its own opset. The caller's object is never changed. Raises ConvertError."""
    if isinstance(source, ir.Model):
        model = source.clone()
    else:
        proto, folder = _proto(source)
        _check(proto, folder)
        model = _deserialize(unzip(densify(proto)), folder)
    return _normalise(model)


def _proto(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        return source, None
    if isinstance(source, bytes | bytearray | memoryview):
        return _parse(bytes(source), "the bytes given"), None
    if not isinstance(source, str | os.PathLike):
        raise ConvertError(
            "expected a path, bytes, an onnx.ModelProto or onnx_ir.Model, or a model of PyTorch, scikit-learn, "
            f"XGBoost, LightGBM or Keras as source, got {type(source).__name__}"
        )
    path = Path(source)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConvertError(f"no file at {path}; check the path") from None
    except OSError as error:
        raise ConvertError(f"cannot read {path}: {error.strerror or error}") from None
    return _parse(data, str(path)), path.resolve().parent


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ConvertError(f"{where}: expected an ONNX model, got 0 bytes; export or download it again")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise NotOnnxError(
            f"{where}: expected an ONNX model (binary protobuf), got damaged or truncated bytes ({error}); "
            "export or download the model again"
        ) from None
    if not proto.HasField("graph"):
        raise NotOnnxError(
            f"{where}: expected an ONNX model, got a protobuf without a graph; export or download the model again"
        )
    return proto


def _check(proto: onnx.ModelProto, folder: Path | None) -> None:
    """Refuse what could not be deserialised faithfully."""
    _check_text(proto, "the model")
    opsets = {
        o.domain.replace("ai.onnx", "") if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import
    }
    if not opsets and proto.ir_version < 3:
        proto.opset_import.append(onnx.helper.make_opsetid("", 1))
        opsets = {"": 1}
    for entry in (entry for owner in (proto, *proto.functions) for entry in owner.opset_import):
        if not 0 <= entry.version < 1 << 31:
            raise ConvertError(
                f"expected a version of 31 bits for operator set {entry.domain!r}, got {entry.version}; export again"
            )
    _check_opsets(opsets)
    if not proto.graph.output:
        raise ConvertError("the model's graph has no outputs: expected at least one; export the model again")
    _check_graph(proto.graph, {}, folder, f"graph {proto.graph.name!r}")
    _check_references(proto.graph)
    for function in proto.functions:
        _check_function(function)


def _check_text(message: Message, where: str) -> None:
    """Check that every text field is UTF-8: protobuf returns bytes for one that is not."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            texts = [value] if isinstance(value, str | bytes) else value
            if not all(isinstance(text, str) for text in texts):
                raise ConvertError(f"{where}: its {field.name} is not UTF-8 text; the file is damaged")
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if isinstance(value, Message) else value:
                _check_text(inner, f"{where}, {field.name}")


def _check_opsets(opsets: Mapping[str, int]) -> None:
    version = opsets.get("")
    if version is not None and not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise ConvertError(
            f"expected ONNX opset {OLDEST_OPSET} to {NEWEST_OPSET}, got {version}; "
            "export the model again for a released opset"
        )
    if not opsets:
        raise ConvertError("the model imports no operator set: expected an opset_import of domain ai.onnx")


def _check_function(function: onnx.FunctionProto) -> None:
    where = f"function {function.domain}::{function.name}"
    known = {name: "its inputs" for name in function.input}
    _check_nodes(function.node, known, None, where, list(function.output))


def _check_graph(graph: onnx.GraphProto, outer: Mapping[str, str], folder: Path | None, where: str) -> None:
    known = dict(outer)
    own: set[str] = set()

    def define(name: str, by: str, what: str) -> None:
        if not name:
            raise ConvertError(f"{where}: {what} has no name")
        if name in own:
            raise ConvertError(f"{where}: the name {name!r} is defined twice, by {known[name]} and by {by}; rename one")
        own.add(name)
        known[name] = by

    for value in graph.input:
        define(value.name, "a graph input", "a graph input")
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_type(value.type, f"{where}: {value.name!r}")
    inputs = set(own)
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        if tensor.name in inputs:
            inputs.discard(tensor.name)
        else:
            define(tensor.name, "an initializer", "an initializer")
        _check_tensor(tensor, folder, f"{where}: initializer {tensor.name!r}")
    for sparse in graph.sparse_initializer:
        _check_sparse(sparse, folder, f"{where}: sparse initializer {sparse.values.name!r}")
    for node in graph.node:
        for name in node.output:
            if name:
                define(name, f"node {node.name or node.op_type!r}", "an output")
    _check_nodes(graph.node, known, folder, where, [v.name for v in graph.output])


def _check_nodes(
    nodes: Iterable[onnx.NodeProto],
    known: Mapping[str, str],
    folder: Path | None,
    where: str,
    outputs: list[str],
) -> None:
    nodes = list(nodes)
    known = {**known, **{name: "a node" for node in nodes for name in node.output if name}}
    for node in nodes:
        title = f"{where}: node {node.name or '<unnamed>'!r} ({node.op_type or 'no operator'})"
        if not node.op_type:
            raise ConvertError(f"{title} names no operator")
        for name in node.input:
            if name and name not in known:
                raise ConvertError(
                    f"{title} reads {name!r}, which no input, initializer or node defines: "
                    "its weights are missing from the file, or the name is misspelt"
                )
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR or attribute.HasField("t"):
                _check_tensor(attribute.t, folder, f"{title}: attribute {attribute.name!r}")
            for text in (attribute.s, *attribute.strings):
                if not _is_text(text):
                    raise ConvertError(f"{title}: attribute {attribute.name!r} is not UTF-8 text: {text[:20]!r}")
            for graph in _subgraphs(attribute):
                _check_graph(graph, known, folder, f"{title}: subgraph {attribute.name!r}")
    for name in outputs:
        if name not in known:
            raise ConvertError(f"{where}: output {name!r} is not defined by any input, initializer or node")
    _check_acyclic(nodes, where)


def _check_references(graph: onnx.GraphProto) -> None:
    """Check that no attribute outside functions refers to a function's."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ConvertError(
                    f"node {node.name or '<unnamed>'!r} ({node.op_type}): attribute {attribute.name!r} refers to a "
                    f"function's attribute {attribute.ref_attr_name!r} outside any function; write its value there"
                )
            for inner in _subgraphs(attribute):
                _check_references(inner)


_KINDS = {"sparse_tensor_type": "a sparse tensor", "opaque_type": "an opaque value"}


def _check_type(kind: onnx.TypeProto, where: str) -> None:
    """Refuse types that no operator here takes: over a sparse tensor, ONNX's own inference aborts the process."""
    chosen = kind.WhichOneof("value")
    if chosen in _KINDS:
        raise ConvertError(f"{where} is {_KINDS[chosen]}, which is not supported; export it as a dense tensor")
    if chosen in ("sequence_type", "optional_type"):
        _check_type(getattr(kind, chosen).elem_type, where)


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _subgraphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in _subgraphs(attribute):
            yield from _captured(graph)


def _captured(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph reads and does not define: it may define one that exists outside."""
    read = {v.name for v in graph.output}.union(*(_reads(node) for node in graph.node))
    own = {v.name for v in (*graph.input, *graph.initializer)}
    return read - own.union(*(node.output for node in graph.node))


def _check_acyclic(nodes: list[onnx.NodeProto], where: str) -> None:
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    needs = {i: {maker[name] for name in _reads(node) if name in maker} for i, node in enumerate(nodes)}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        ring = [nodes[i].name or nodes[i].op_type for i in error.args[1]]
        raise ConvertError(f"{where}: nodes form a cycle: {' -> '.join(ring)}; an ONNX graph must be acyclic") from None


def _check_tensor(tensor: onnx.TensorProto, folder: Path | None, where: str) -> None:
    if any(d < 0 for d in tensor.dims):
        raise ConvertError(f"{where}: expected dimensions of at least 0, got {list(tensor.dims)}")
    if len(tensor.dims) > MAX_RANK:
        raise ConvertError(f"{where}: expected at most {MAX_RANK} dimensions, got {len(tensor.dims)}")
    if tensor.data_type not in onnx.TensorProto.DataType.values() or not tensor.data_type:
        raise ConvertError(f"{where}: unknown element type {tensor.data_type}")
    if tensor.data_type == onnx.TensorProto.STRING:
        _expect(len(tensor.string_data), prod(tensor.dims), "strings", where)
        return
    bits = _BITS.get(tensor.data_type)
    if bits is None:
        bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
    wanted = (prod(tensor.dims) * bits + 7) // 8
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, folder, wanted, where)
    elif tensor.HasField("raw_data"):
        _expect(len(tensor.raw_data), wanted, "bytes", where)
    else:
        _expect_fields(tensor, wanted, where)


_INDICES = tuple(getattr(onnx.TensorProto, name) for name in ("INT64", "INT32", "INT16", "INT8"))
"""Types of a sparse tensor's indices: ONNX has the first only, ONNX Runtime stores them as the smallest that holds
them."""


def _check_sparse(sparse: onnx.SparseTensorProto, folder: Path | None, where: str) -> None:
    values, indices, shape = sparse.values, sparse.indices, list(sparse.dims)
    _check_tensor(indices, folder, f"{where}, indices")
    for tensor in (values, indices):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ConvertError(f"{where} is external data, which is not supported; store it in the model, or dense")
    if any(d < 0 for d in shape) or not 1 <= len(shape) <= MAX_RANK or prod(d or 1 for d in shape) >= 1 << 62:
        raise ConvertError(f"{where}: expected 1 to {MAX_RANK} dimensions that fit in memory, got {shape}")
    if values.data_type in _BITS or values.data_type == onnx.TensorProto.STRING:
        raise ConvertError(f"{where}: expected numbers of at least 8 bits, got other values; store it as a dense one")
    count = prod(values.dims)
    if indices.data_type not in _INDICES or list(indices.dims) not in ([count], [count, len(shape)]):
        raise ConvertError(
            f"{where}: expected integers [{count}] or [{count}, {len(shape)}] as indices of {count} values, got "
            f"{list(indices.dims)} of element type {indices.data_type}; the model is damaged"
        )


def _expect_fields(tensor: onnx.TensorProto, wanted_bytes: int, where: str) -> None:
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    got = len(getattr(tensor, field))
    wanted = prod(tensor.dims)
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        wanted *= 2
    if tensor.data_type in _BITS:
        wanted = wanted_bytes
    _expect(got, wanted, "elements", where)


def _expect(got: int, wanted: int, unit: str, where: str) -> None:
    if got != wanted:
        raise ConvertError(f"{where}: its shape needs {wanted} {unit}, the file holds {got}; the weights are damaged")


def _check_external(tensor: onnx.TensorProto, folder: Path | None, wanted: int, where: str) -> None:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    if folder is None:
        raise ConvertError(
            f"{where} is external data ({location!r}), which needs the model's folder; convert from its path instead"
        )
    if not location:
        raise ConvertError(f"{where} is external data without a location")
    try:
        path = (folder / location).resolve()
        found = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConvertError(f"{where}: external data {location!r} is not a path of a file ({error})") from None
    if Path(location).is_absolute() or not path.is_relative_to(folder):
        raise ConvertError(
            f"{where}: external data {location!r} is outside the model's folder {folder}, which is not allowed. "
            "Move the file beside the model"
        )
    if not found:
        raise ConvertError(f"{where}: its external data file {path} is missing; put it beside the model")
    try:
        offset, length = int(fields.get("offset", 0)), int(fields.get("length", wanted))
    except ValueError:
        raise ConvertError(f"{where}: external data offset and length must be integers, got {fields}") from None
    if offset < 0 or length != wanted or offset + length > path.stat().st_size:
        raise ConvertError(
            f"{where}: its shape needs {wanted} bytes, external data names bytes {offset} to {offset + length} of "
            f"{path}, which has {path.stat().st_size}; the file is truncated or belongs to another model"
        )


def _deserialize(proto: onnx.ModelProto, folder: Path | None) -> ir.Model:
    try:
        model = ir.serde.deserialize_model(proto)
    except (ValueError, TypeError, KeyError, NotImplementedError, AssertionError, ir.serde.SerdeError) as error:
        raise ConvertError(f"the model cannot be read: {error}; check it with onnx.checker") from error
    if folder is not None:
        ir.external_data.set_base_dir(model.graph, str(folder))
    return model


_NAMELESS = frozenset(("?", "-1", "*", "None", "none", "unknown", "dynamic"))
"""Names that exporters write for every size that they do not know: equal names do not mean equal sizes."""


def _nameless(value: ir.Value) -> None:
    """Sizes that are not known, written as one of `_NAMELESS` or as -1, over which ONNX's own inference aborts the
    process, have no name."""
    shape = build.dims(value)
    if shape is not None and any(d in _NAMELESS or (isinstance(d, int) and d < 0) for d in shape):
        value.shape = ir.Shape([None if d in _NAMELESS or (isinstance(d, int) and d < 0) else d for d in shape])


def _name_sizes(graph: ir.Graph) -> None:
    """Nameless sizes of inputs get names of their own."""
    for value in graph.inputs:
        shape = build.dims(value)
        if shape is not None and None in shape:
            value.shape = ir.Shape([f"{value.name}.{axis}" if d is None else d for axis, d in enumerate(shape)])


def _normalise(model: ir.Model) -> ir.Model:
    for graph in build.graphs(model):
        for value in (*graph.inputs, *graph.outputs, *(v for node in graph for v in node.outputs)):
            _nameless(value)
        if any(v.name is None for v in graph.inputs):
            raise ConvertError(f"graph {graph.name!r}: an input has no name")
    try:
        with build.quiet():
            if model.functions:
                clean.InlinePass()(model)
                model.functions.clear()
            clean.RemoveInitializersFromInputsPass()(model)
            clean.TopologicalSortPass()(model)
    except (ValueError, ir.passes.PreconditionError, ir.passes.PassError) as error:
        raise ConvertError(
            f"the model cannot be put in order: {error}; look for cycles and recursive functions"
        ) from error
    _name_sizes(model.graph)
    for node in build.nodes(model):
        node.version = None
    build.adopt(model)
    for graph in build.graphs(model):
        for node in graph:
            node.name = node.name or build.fresh(graph, node.op_type)
            for value in node.outputs:
                if not value.name:
                    used = value.uses() or value.is_graph_output()
                    value.name = build.fresh(graph, node.op_type) if used else ""
    _shorten(model)
    _rename_hidden(model.graph, frozenset())
    for graph in build.graphs(model):
        if graph is not model.graph:
            _separate_outputs(graph)
    return model


def _shorten(model: ir.Model) -> None:
    """Names inside the model that no bundle can hold become shorter; those of its inputs and outputs are the user's."""
    for graph in build.graphs(model):
        for value in (*graph.initializers.values(), *(v for node in graph for v in node.outputs)):
            if len(value.name or "") > build.LONGEST and not value.is_graph_output():
                if (held := value.const_value) is not None:  # else the name of the caller's tensor would change too
                    value.const_value = ir.Tensor(held.numpy(), dtype=held.dtype)
                value.name = build.fresh(graph, value.name or "")


def _separate_outputs(graph: ir.Graph) -> None:
    """A value that a subgraph lists as several outputs becomes several values."""
    for i, value in enumerate(graph.outputs):
        if value in graph.outputs[:i]:
            copy = ir.Value(name=build.fresh(graph, value.name or ""), shape=value.shape, type=value.type)
            graph.append(ir.Node("", "Identity", [value], outputs=[copy], name=build.fresh(graph, "Identity")))
            graph.outputs[i] = copy


def _rename_hidden(graph: ir.Graph, outside: frozenset[str]) -> None:
    """Results in a subgraph get names that no enclosing graph has. ONNX asks for it, ONNX Runtime does not."""
    made = [value for node in graph for value in node.outputs if value.name]
    for value in made:
        if value.name in outside:
            value.name = build.fresh(graph, value.name)
    nested = build.nested(graph)
    if nested:
        known = outside.union(v.name or "" for v in (*graph.inputs, *graph.initializers.values(), *made))
        for inner in nested:
            _rename_hidden(inner, known)
