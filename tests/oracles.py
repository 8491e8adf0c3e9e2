"""ONNX Runtime as an oracle: sessions that compute what the standard defines, on every processor.

Its kernels depend on the processor, and some of them do not compute what the operator is defined as:

- uint8 activations times int8 weights: processors with AVX2 or AVX-512 but without VNNI add two products in 16 bits,
  which saturates. uint8 times uint8 is exact everywhere, so `exact` adds 128 to int8 weights and their zero points.
- MatMulNBits without `accuracy_level` may round activations to 8 bits where the processor has AMX or VNNI. Level 1
  asks for float32.
- Optimisations fuse Q(op(DQ …)) of int8 into products of uint8 and int8. Where a test wants them fused, `session` asks
  for int8 times int8, which is exact everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

onnxruntime.set_default_logger_severity(3)
CPU = ["CPUExecutionProvider"]


class _Product(NamedTuple):
    """Where an operator has what it multiplies: indices of inputs."""

    x: int
    w: int
    zero: int
    """The weights' zero point, which may be left out."""


_PRODUCTS = {
    "ConvInteger": _Product(0, 1, 3),
    "MatMulInteger": _Product(0, 1, 3),
    "QLinearConv": _Product(0, 3, 5),
    "QLinearMatMul": _Product(0, 3, 5),
    "MatMulIntegerToFloat": _Product(0, 1, 5),
    "DynamicQuantizeMatMul": _Product(0, 1, 3),
    "QGemm": _Product(0, 3, 5),
}
UP = 128


def session(
    model: onnx.ModelProto, *, optimised: bool = True, fused: bool = False, threads: int = 1
) -> onnxruntime.InferenceSession:
    """A session on the CPU. `fused`: the model has int8 activations and weights between QuantizeLinear and
    DequantizeLinear, and its products are to be computed on integers."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if fused:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    return onnxruntime.InferenceSession(exact(model).SerializeToString(), options, providers=CPU)


def exact(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or an equal one whose products are exact on every processor."""
    graph = model.graph
    if not any(node.op_type in _PRODUCTS or node.op_type == "MatMulNBits" for node in graph.node):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph, types = copy.graph, _types(copy)
    made: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "MatMulNBits" and not any(a.name == "accuracy_level" for a in node.attribute):
            node.attribute.append(helper.make_attribute("accuracy_level", 1))
        place = _PRODUCTS.get(node.op_type)
        if place and types.get(node.input[place.w]) == TensorProto.INT8 and _unsigned(node, place, types):
            while len(node.input) <= place.zero:
                node.input.append("")
            if not node.input[place.zero]:
                node.input[place.zero] = "int8 zero"
                if "int8 zero" not in types:
                    types["int8 zero"] = TensorProto.INT8
                    graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "int8 zero"))
            for index in (place.w, place.zero):
                node.input[index] = _moved(node.input[index], graph, nodes, made)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def _unsigned(node: onnx.NodeProto, place: _Product, types: dict[str, int]) -> bool:
    return node.op_type == "DynamicQuantizeMatMul" or types.get(node.input[place.x]) == TensorProto.UINT8


def _moved(name: str, graph: onnx.GraphProto, nodes: list[onnx.NodeProto], made: dict[str, str]) -> str:
    """An int8 value plus 128 as uint8: constants at once, others by nodes."""
    if name in made:
        return made[name]
    made[name] = up = f"{name} + {UP}"
    for tensor in graph.initializer:
        if tensor.name == name:
            values = (numpy_helper.to_array(tensor).astype(np.int16) + UP).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(values, up))
            return up
    by = f"{up}: by"
    graph.initializer.append(numpy_helper.from_array(np.array(UP, np.int32), by))
    nodes.append(helper.make_node("Cast", [name], [f"{up}: wide"], to=TensorProto.INT32))
    nodes.append(helper.make_node("Add", [f"{up}: wide", by], [f"{up}: sum"]))
    nodes.append(helper.make_node("Cast", [f"{up}: sum"], [up], to=TensorProto.UINT8))
    return up


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of values, as far as ONNX infers them."""
    infer: Callable[[onnx.ModelProto], onnx.ModelProto] = onnx.shape_inference.infer_shapes
    graph = infer(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types.update({tensor.name: tensor.data_type for tensor in graph.initializer})
    for node in graph.node:  # which ONNX infers from a zero point that may be a constant
        if node.op_type == "DynamicQuantizeLinear":
            types[node.output[0]] = TensorProto.UINT8
        elif node.op_type == "QuantizeLinear" and len(node.input) > 2:
            types.setdefault(node.output[0], types.get(node.input[2], 0))
    return types
