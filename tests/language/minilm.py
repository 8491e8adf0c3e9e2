"""MiniLM in float32 as ONNX: the graph of the int8 file, as PyTorch exported it, with the weights of the float32 file.

    python -m tests.language.minilm minilm.onnx

Both files come by `make models`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import onnx
from onnx import numpy_helper

from converter.frontends.safetensors.reader import read
from lite_runtime.graph import Array
from tests.language.models import model

__all__ = ["minilm"]

_PREFIX = "inner."


@cache
def minilm() -> bytes:
    """The model; a test that asks for it is skipped where its files are not there."""
    weights = {name: tensor.array for name, tensor in read(model("minilm")).items()}
    proto = onnx.load(model("minilm int8"))
    graph = proto.graph
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    scaled = {n.output[0]: n for n in graph.node if n.op_type == "Mul" and n.input[1] == f"{n.output[0]}_scale"}
    held = {name: _weight(name, readers, weights) for name in scaled}
    left_out = {*scaled, *(f"{name}_f" for name in scaled)}
    kept = [node for node in graph.node if node.output[0] not in left_out]
    others = [one for one in graph.initializer if one.name.removesuffix("_q").removesuffix("_scale") not in scaled]
    others = [_renewed(one, weights) for one in others]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend([*others, *(numpy_helper.from_array(array, name) for name, array in held.items())])
    onnx.checker.check_model(proto)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _weight(name: str, readers: Mapping[str, list[onnx.NodeProto]], weights: Mapping[str, Array]) -> Array:
    """The table of that name, or the matrix of a product, which is known by the bias that is added to it."""
    (reader,) = readers[name]
    if reader.op_type == "Gather":
        return weights[name.removeprefix(_PREFIX)]
    (adding,) = readers[reader.output[0]]
    (bias,) = (one for one in adding.input if one.startswith(_PREFIX))
    return weights[bias.removeprefix(_PREFIX).removesuffix("bias") + "weight"].T.copy()


def _renewed(held: onnx.TensorProto, weights: Mapping[str, Array]) -> onnx.TensorProto:
    """A table or vector, in float32 as the model was published."""
    name = held.name.removeprefix(_PREFIX)
    is_there = held.name.startswith(_PREFIX) and name in weights and held.data_type == onnx.TensorProto.FLOAT
    return numpy_helper.from_array(weights[name], held.name) if is_there else held


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(minilm())
