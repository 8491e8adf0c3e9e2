"""Models that ONNX Runtime computes as the standard says, on every processor.

Its kernels depend on the processor, and some of them do not compute what the operator is defined as:

- uint8 activations times int8 weights: processors with AVX2 or AVX-512 but without VNNI add two products in 16 bits,
  which saturates. uint8 times uint8 is exact everywhere, so `exact` adds 128 to int8 weights and their zero points.
  Weights between DequantizeLinear and a float operator are changed too, because ONNX Runtime fuses them into such
  products, with int8 activations as uint8.
- MatMulNBits without `accuracy_level` may round activations to 8 bits if the processor has AMX or VNNI. Level 1 asks
  for float32. What ONNX Runtime fuses into MatMulNBits rounds them on every processor, unless `SETTINGS` say level 1.

ONNX Runtime's own option against saturation, `session.x64quantprecision`, changes constant weights only, and it makes
products of int8 activations and int8 weights fail to load (measured with 1.32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SETTINGS", "exact"]

SETTINGS = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Entries for the configuration of sessions."""


class _Product(NamedTuple):
    """Where an operator has what it multiplies: indices of inputs. Zero points may be left out."""

    x: int
    x_zero: int
    w: int
    w_zero: int


_PRODUCTS = {
    "ConvInteger": _Product(0, 2, 1, 3),
    "MatMulInteger": _Product(0, 2, 1, 3),
    "QLinearConv": _Product(0, 2, 3, 5),
    "QLinearMatMul": _Product(0, 2, 3, 5),
    "MatMulIntegerToFloat": _Product(0, 4, 1, 5),
    "DynamicQuantizeMatMul": _Product(0, -1, 1, 3),
    "QGemm": _Product(0, 2, 3, 5),
}
_RECURRENT = {"DynamicQuantizeLSTM": ((1, 9), (2, 11))}
"""Operands with which states are multiplied that the operator rounds to uint8, and their zero points."""
_CHANGED = {*_PRODUCTS, *_RECURRENT, "MatMulNBits", "DequantizeLinear"}
UP = 128


def exact(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or an equal one whose products are exact on every processor. Nodes of nested graphs stay as they are.

    Raises onnx.shape_inference.InferenceError if ONNX finds that the model is invalid.
    """
    if not any(node.op_type in _CHANGED for node in model.graph.node):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    change = _Change(copy)
    for node in model.graph.node:
        change.add(node)
    change.finish()
    return copy


class _Change:
    """The new nodes of a model, and the uint8 forms of its int8 values."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self.types = _types(model)
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self.quantised = {node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
        self.nodes: list[onnx.NodeProto] = []
        self.made: dict[str, str] = {}

    def add(self, given: onnx.NodeProto) -> None:
        """The next node, changed if need be."""
        node = onnx.NodeProto()
        node.CopyFrom(given)
        if node.op_type == "MatMulNBits" and not any(a.name == "accuracy_level" for a in node.attribute):
            node.attribute.append(helper.make_attribute("accuracy_level", 1))
        elif node.op_type in _RECURRENT:
            for value, zero in _RECURRENT[node.op_type]:
                if self._signed(node, value):
                    self._raise(node, value, zero, np.array(0, np.int8))
        elif (place := _PRODUCTS.get(node.op_type)) and self._signed(node, place.w) and self._unsigned(node, place):
            self._raise(node, place.w, place.w_zero, np.array(0, np.int8))
        elif node.op_type == "DequantizeLinear" and self._signed(node, 0) and node.input[0] not in self.quantised:
            scale = self.constants.get(node.input[1])
            if scale is not None or _named(node, 2):
                self._raise(node, 0, 2, np.zeros(() if scale is None else scale.dims, np.int8))
        self.nodes.append(node)

    def finish(self) -> None:
        """Put the new nodes into the model; int8 constants that nothing uses any more are dropped."""
        del self.graph.node[:]
        self.graph.node.extend(self.nodes)
        unused = self.made.keys() - set(_used(self.graph))
        kept = [tensor for tensor in self.graph.initializer if tensor.name not in unused]
        if len(kept) < len(self.graph.initializer):
            del self.graph.initializer[:]
            self.graph.initializer.extend(kept)

    def _signed(self, node: onnx.NodeProto, index: int) -> bool:
        return self.types.get(node.input[index]) == TensorProto.INT8

    def _unsigned(self, node: onnx.NodeProto, place: _Product) -> bool:
        """Whether the activations are uint8; their zero point tells, if they come from an operator unknown to ONNX."""
        if place.x_zero < 0:
            return True
        names = [node.input[index] for index in (place.x, place.x_zero) if _named(node, index)]
        return TensorProto.UINT8 in map(self.types.get, names)

    def _raise(self, node: onnx.NodeProto, value: int, zero: int, default: np.ndarray) -> None:
        """Let the node use uint8 forms of a value and its zero point, `default` if it has none."""
        while len(node.input) <= zero:
            node.input.append("")
        if not node.input[zero]:
            node.input[zero] = name = f"int8 zero {list(default.shape)}"
            if name not in self.types:
                self.types[name] = TensorProto.INT8
                self._constant(default, name)
        for index in (value, zero):
            node.input[index] = self._moved(node.input[index])

    def _moved(self, name: str) -> str:
        """An int8 value plus 128 as uint8: constants at once, others by nodes."""
        if name in self.made:
            return self.made[name]
        self.made[name] = up = f"{name} + {UP}"
        if name in self.constants:
            values = numpy_helper.to_array(self.constants[name]).astype(np.int16) + UP
            self._constant(values.astype(np.uint8), up)
            return up
        self._constant(np.array(UP, np.int32), f"{up}: by")
        self.nodes += [
            helper.make_node("Cast", [name], [f"{up}: wide"], to=TensorProto.INT32),
            helper.make_node("Add", [f"{up}: wide", f"{up}: by"], [f"{up}: sum"]),
            helper.make_node("Cast", [f"{up}: sum"], [up], to=TensorProto.UINT8),
        ]
        return up

    def _constant(self, values: np.ndarray, name: str) -> None:
        self.constants[name] = tensor = numpy_helper.from_array(values, name)
        self.graph.initializer.append(tensor)


def _named(node: onnx.NodeProto, index: int) -> bool:
    return len(node.input) > index and bool(node.input[index])


def _used(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that nodes, also those of nested graphs, and outputs refer to, and those of inputs."""
    yield from (value.name for value in (*graph.input, *graph.output))
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            nested: Iterable[onnx.GraphProto] = [attribute.g] if attribute.HasField("g") else attribute.graphs
            for inner in nested:
                yield from _used(inner)


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
