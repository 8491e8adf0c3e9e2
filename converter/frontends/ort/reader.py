"""Bytes of an `.ort` file to an `onnx.ModelProto`. A malformed file raises one ConvertError: what, where and why.

Checked here is what the ONNX frontend cannot see any more: the flatbuffer itself, its enumerations, the versions that
nodes were saved for, and parts that ONNX has no form of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx
from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
)

from converter.errors import ConvertError
from converter.frontends.flatbuffer import File, Table
from converter.frontends.ort import schema

__all__ = ["read"]

_DEEPEST_TYPE, _DEEPEST_GRAPH = 8, 32
"""Types within types, and graphs within graphs, that a file may have."""
_SOURCE = "convert the ONNX model that the file was made from"
_COMPILED = {("com.microsoft", "EPContext")}
"""Operators whose attributes hold a program for an accelerator."""
_ELEMENTS = frozenset(TensorProto.DataType.values())


def read(data: bytes | memoryview) -> ModelProto:
    """The model in `data`. Raises ConvertError."""
    root = File(data, schema.TABLES).root("InferenceSession", schema.IDENTIFIER, "a model in ORT format")
    version = root.text("ort_version")
    if version not in schema.VERSIONS:
        raise ConvertError(
            f"expected ORT format version {schema.VERSIONS[0]} to {schema.VERSIONS[-1]}, got {version!r}; {_SOURCE}"
        )
    model = _needed(root, "model")
    made = ModelProto(
        ir_version=model.integer("ir_version"),
        producer_name=model.text("producer_name") or None,
        producer_version=model.text("producer_version") or None,
        domain=model.text("domain") or None,
        model_version=model.integer("model_version") or None,
        doc_string=model.text("doc_string") or None,
    )
    for entry in model.tables("metadata_props"):
        made.metadata_props.add(key=entry.text("key"), value=entry.text("value"))
    opsets = {entry.text("domain"): entry.integer("version") for entry in model.tables("opset_import")}
    for domain, number in opsets.items():
        made.opset_import.add(domain=domain, version=number)
    _Graphs(opsets).fill(_needed(model, "graph"), made.graph, "main", 0)
    _say(made.graph, doc_string=model.text("graph_doc_string"))
    return made


def _say(made: Message, **texts: str) -> None:
    """Set text fields that are not empty."""
    for field, text in texts.items():
        if text:
            setattr(made, field, text)


def _needed(table: Table, name: str) -> Table:
    found = table.table(name)
    if found is None:
        raise ConvertError(f"{table.where}: expected a {name}, got none; the file is damaged, save it again")
    return found


def _one_of(names: tuple[str, ...], table: Table, field: str) -> str:
    """The name that an enumeration's number stands for."""
    number = table.integer(field)
    if not 0 <= number < len(names):
        raise ConvertError(
            f"{table.where}: expected {field} of 0 to {len(names) - 1}, got {number}; the file is damaged, or newer "
            "than this converter"
        )
    return names[number]


def _element(table: Table, field: str) -> int:
    number = table.integer(field)
    if number not in _ELEMENTS or not number:
        raise ConvertError(
            f"{table.where}: expected an element type of ONNX as {field}, got {number}; the file is damaged, or newer "
            "than this converter"
        )
    return number


# ------------------------------------------------------------------------------------------------------------- tensors


def _tensor(table: Table) -> TensorProto:
    if (offset := table.integer("external_data_offset")) >= 0:
        raise ConvertError(
            f"{table.where} {table.text('name')!r}: expected its data in the file, got byte {offset} of another, as "
            f"only checkpoints of ONNX Runtime's training have; {_SOURCE}"
        )
    made = TensorProto(
        name=table.text("name"),
        doc_string=table.text("doc_string") or None,
        dims=table.ints("dims"),
        data_type=_element(table, "data_type"),
    )
    if made.data_type == TensorProto.STRING:
        made.string_data.extend(text.encode() for text in table.texts("string_data"))
    else:
        made.raw_data = table.copied("raw_data")
    return made


def _sparse(table: Table) -> SparseTensorProto:
    values, indices = (_tensor(_needed(table, part)) for part in ("values", "indices"))
    return SparseTensorProto(values=values, indices=indices, dims=table.ints("dims"))


# --------------------------------------------------------------------------------------------------------------- types


def _type(table: Table, made: TypeProto, depth: int = 0) -> None:
    """Write the type of a TypeInfo."""
    if depth > _DEEPEST_TYPE:
        raise ConvertError(f"{table.where}: expected at most {_DEEPEST_TYPE} types within one another, got more")
    _say(made, denotation=table.text("denotation"))
    kind, value = table.union("value", schema.TYPES)
    if value is None:
        raise ConvertError(f"{table.where}: expected a type of tensor, sequence or map, got {kind} without contents")
    if kind == "SequenceType":
        _type(_needed(value, "elem_type"), made.sequence_type.elem_type, depth + 1)
    elif kind == "MapType":
        made.map_type.key_type = _element(value, "key_type")
        _type(_needed(value, "value_type"), made.map_type.value_type, depth + 1)
    else:
        made.tensor_type.elem_type = _element(value, "elem_type")
        shape = value.table("shape")
        if shape is not None and shape.has("dim"):
            made.tensor_type.shape.SetInParent()
            for dim in shape.tables("dim"):
                _dimension(dim, made.tensor_type.shape.dim.add())


def _dimension(table: Table, made: TensorShapeProto.Dimension) -> None:
    _say(made, denotation=table.text("denotation"))
    value = table.table("value")
    kind = "unknown" if value is None else _one_of(schema.DIMENSIONS, value, "dim_type")
    if value is not None and kind == "value":
        made.dim_value = value.integer("dim_value")
    elif value is not None and kind == "param":
        made.dim_param = value.text("dim_param")


# -------------------------------------------------------------------------------------------------------------- graphs


class _Graphs:
    """Graphs and what is in them. `opsets`: the version of each domain that the model imports."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = opsets

    def fill(self, table: Table, made: GraphProto, name: str, depth: int) -> None:
        """Write a graph."""
        if depth > _DEEPEST_GRAPH:
            raise ConvertError(
                f"{table.where[:200]}: expected at most {_DEEPEST_GRAPH} graphs within one another, got more"
            )
        made.name = name
        made.initializer.extend(map(_tensor, table.tables("initializers")))
        made.sparse_initializer.extend(map(_sparse, table.tables("sparse_initializers")))
        nodes = table.tables("nodes")
        indices = [node.integer("index") for node in nodes]
        limit = table.integer("max_node_index")
        if len(set(indices)) < len(indices) or any(index >= limit for index in indices):
            raise ConvertError(
                f"{table.where}: expected different numbers below {limit} for nodes, got {indices[:20]}; the file is "
                "damaged"
            )
        for node in nodes:
            self._node(node, made.node.add(), depth)
        self._values(table, made)

    def _values(self, table: Table, made: GraphProto) -> None:
        """Inputs and outputs, and the types of what nodes compute. Other values have theirs elsewhere."""
        known = {info.text("name"): info for info in table.tables("node_args")}
        ends = ((made.input, table.texts("inputs")), (made.output, table.texts("outputs")))
        for values, names in ends:
            for name in names:
                if name not in known:
                    raise ConvertError(f"{table.where}: {name!r} is an input or output without a type; save it again")
                self._value(known[name], values.add(name=name))
        inner = {name for node in made.node for name in node.output if name}.difference(ends[1][1])
        for name, info in known.items():
            if name in inner and info.has("type"):
                self._value(info, made.value_info.add(name=name))

    def _value(self, table: Table, made: onnx.ValueInfoProto) -> None:
        _say(made, doc_string=table.text("doc_string"))
        kind = table.table("type")
        if kind is not None:
            _type(kind, made.type)

    def _node(self, table: Table, made: NodeProto, depth: int) -> None:
        _say(made, **{field: table.text(field) for field in ("name", "doc_string", "domain", "op_type")})
        where = f"{table.where} {made.name!r} ({made.op_type})"
        if _one_of(schema.NODES, table, "type") == "Fused" or (made.domain, made.op_type) in _COMPILED:
            provider = table.text("execution_provider_type")
            raise ConvertError(
                f"{where}: expected an operator, got a part of the model compiled for {provider or 'an accelerator'}; "
                f"{_SOURCE}, or save it with the CPU's execution provider alone"
            )
        self._check_version(table.integer("since_version"), made, where)
        made.input.extend(table.texts("inputs"))
        made.output.extend(table.texts("outputs"))
        counts = table.ints("input_arg_counts")
        if any(n < 0 for n in counts) or sum(counts) != len(made.input):
            raise ConvertError(
                f"{where}: its input_arg_counts {list(counts[:20])} are not those of {len(made.input)} inputs; "
                "the file is damaged"
            )
        for attribute in table.tables("attributes"):
            self._attribute(attribute, made.attribute.add(), depth)

    def _check_version(self, since: int, node: NodeProto, where: str) -> None:
        """Check that the model's opset means the operator that the node was saved as. ONNX Runtime runs that of
        `since_version`; everything behind this frontend goes by the opset."""
        opset = self._opsets.get(node.domain, self._opsets.get("ai.onnx") if not node.domain else None)
        if opset is None or since < 1:
            return
        try:
            meant = onnx.defs.get_schema(node.op_type, opset, node.domain).since_version
        except (onnx.defs.SchemaError, TypeError):  # an operator that ONNX does not have; a number of 64 bits
            meant = since if since <= opset else opset
        if meant != since:
            raise ConvertError(
                f"{where}: expected version {meant} of the operator, which opset {opset} of domain "
                f"{node.domain or 'ai.onnx'!r} means, got {since}; {_SOURCE}"
            )

    def _attribute(self, table: Table, made: AttributeProto, depth: int) -> None:
        _say(made, name=table.text("name"), doc_string=table.text("doc_string"))
        number = table.integer("type")
        if number in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            inner = [_needed(table, "g")] if number == AttributeProto.GRAPH else table.tables("graphs")
            for graph in inner:
                target = made.g if number == AttributeProto.GRAPH else made.graphs.add()
                self.fill(graph, target, made.name, depth + 1)
        elif number in _CONTENTS:
            _CONTENTS[number](table, made)
        else:
            raise ConvertError(
                f"{table.where} {made.name!r}: expected an attribute's type of 1 to 10, got {number}; the file is "
                "damaged, or newer than this converter"
            )
        made.type = number  # type: ignore[assignment]


_CONTENTS: Mapping[int, Callable[[Table, AttributeProto], object]] = {
    AttributeProto.FLOAT: lambda table, made: setattr(made, "f", table.number("f")),
    AttributeProto.INT: lambda table, made: setattr(made, "i", table.integer("i")),
    AttributeProto.STRING: lambda table, made: setattr(made, "s", table.text("s").encode()),
    AttributeProto.TENSOR: lambda table, made: made.t.CopyFrom(_tensor(_needed(table, "t"))),
    AttributeProto.FLOATS: lambda table, made: made.floats.extend(table.floats("floats")),
    AttributeProto.INTS: lambda table, made: made.ints.extend(table.ints("ints")),
    AttributeProto.STRINGS: lambda table, made: made.strings.extend(t.encode() for t in table.texts("strings")),
    AttributeProto.TENSORS: lambda table, made: made.tensors.extend(map(_tensor, table.tables("tensors"))),
}
"""How the contents of an attribute are read, by its type."""
