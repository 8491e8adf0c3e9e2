"""The ORT format as data: its flatbuffer tables, as far as they are read.

Source: onnxruntime/core/flatbuffers/schema/ort.fbs of ONNX Runtime (format versions 1 to 6). Numbers of types of
elements and of attributes are ONNX's.
"""

from __future__ import annotations

from converter.frontends.flatbuffer import parse

__all__ = ["DIMENSIONS", "IDENTIFIER", "NODES", "TABLES", "TYPES", "VERSIONS"]

IDENTIFIER = b"ORTM"
VERSIONS = tuple("123456")

TABLES = parse(
    """
InferenceSession: ort_version str, model Model
Model: ir_version i8, opset_import [OperatorSetId], producer_name str, producer_version str, domain str,
    model_version i8, doc_string str, graph Graph, graph_doc_string str, metadata_props [StringStringEntry]
OperatorSetId: domain str, version i8
StringStringEntry: key str, value str
Graph: initializers [Tensor], node_args [ValueInfo], nodes [Node], max_node_index u4, -, inputs [str], outputs [str],
    sparse_initializers [SparseTensor]
Tensor: name str, doc_string str, dims [i8], data_type i4, raw_data [u1], string_data [str], external_data_offset i8=-1
SparseTensor: values Tensor, indices Tensor, dims [i8]
Node: name str, doc_string str, domain str, since_version i4, index u4, op_type str, type i4,
    execution_provider_type str, inputs [str], outputs [str], attributes [Attribute], input_arg_counts [i4],
    implicit_inputs [str]
Attribute: name str, doc_string str, type i4, f f4, i i8, s str, t Tensor, g Graph, floats [f4], ints [i8],
    strings [str], tensors [Tensor], graphs [Graph]
ValueInfo: name str, doc_string str, type TypeInfo
TypeInfo: denotation str, value_type u1, value union
TensorTypeAndShape: elem_type i4, shape Shape
SequenceType: elem_type TypeInfo
MapType: key_type i4, value_type TypeInfo
Shape: dim [Dimension]
Dimension: value DimensionValue, denotation str
DimensionValue: dim_type i1, dim_value i8, dim_param str
"""
)
"""Not read, because names say the same: edges between nodes, and what subgraphs capture (`implicit_inputs`). Not read,
because they only say how one ONNX Runtime would go on: kernels' type constraints, optimisations at run time."""

TYPES = tuple("NONE TensorTypeAndShape SequenceType MapType".split())
DIMENSIONS = tuple("unknown value param".split())
NODES = tuple("Primitive Fused".split())
