"""Products whose weights stay narrow in memory: the runtime widens them while it multiplies.

1. MatMul by DequantizeLinear of constant bytes, with one scale in total, per column, or per block of the reduction.
2. The same with 4-bit integers from an Unpack4.
3. MatMul by a Cast of constant float16 to float32.
The nodes that produce the weights are removed, unless something else reads them; then nothing changes, because the
weights would be in memory twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from lite_runtime.graph import Array, Attr, Graph, Node

__all__ = ["narrow_products"]

_FLOAT = int(onnx.TensorProto.FLOAT)


@dataclass(frozen=True)
class _Weights:
    """Operands 1 to 3 of a NarrowMatMul and the attributes that describe their format; sizes as stored."""

    operands: tuple[str, ...]
    attrs: Mapping[str, Attr]
    sizes: tuple[int, ...]
    axis: int | None
    """The axis of the scales, in blocks or one by one; None: one scale for all."""

    def fits(self, turned: bool) -> bool:
        """Whether the operator supports the scales' axis: along the columns or, in blocks, along the reduction."""
        reduction = int(turned)
        return self.axis is None or self.axis == (reduction if self.attrs.get("block_size") else 1 - reduction)


def narrow_products(graph: Graph) -> Graph:
    """The graph with products by narrow constants as NarrowMatMul."""
    made = {name: node for node in graph.nodes for name in node.outputs if name}
    readers = Counter(name for node in graph.nodes for name in (*node.inputs, *node.captures) if name)
    readers.update(value.name for value in graph.outputs)
    found = [_narrow(node, graph.constants, made) for node in graph.nodes]
    products = Counter(node.inputs[1] for node, new in zip(graph.nodes, found, strict=True) if new is not None)
    nodes = (
        new if new is not None and products[node.inputs[1]] == readers[node.inputs[1]] else node
        for node, new in zip(graph.nodes, found, strict=True)
    )
    return _without_unread(graph.replace(nodes=tuple(nodes)))


def _narrow(node: Node, constants: Mapping[str, Array], made: Mapping[str, Node]) -> Node | None:
    """The product as a NarrowMatMul, if kernels support its weights' format."""
    if node.op != "MatMul" or node.attrs.get("transA", 0) or node.inputs[1] not in made:
        return None
    maker, turned = made[node.inputs[1]], bool(node.attrs.get("transB", 0))
    weights = _WEIGHTS[maker.op](maker, constants, made) if maker.op in _WEIGHTS else None
    if weights is None or len(weights.sizes) != 2 or not weights.fits(turned):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    if bias and _stored_shape(bias, constants, made) not in ((weights.sizes[int(not turned)],), (), (1,)):
        return None
    inputs = [node.inputs[0], *weights.operands, *[""] * (3 - len(weights.operands)), *node.inputs[2:]]
    while not inputs[-1]:
        inputs.pop()
    attrs = {name: value for name, value in node.attrs.items() if name != "transA"} | dict(weights.attrs)
    return node.replace(op="NarrowMatMul", inputs=tuple(inputs), attrs=attrs)


def _halved(cast: Node, constants: Mapping[str, Array], made: Mapping[str, Node]) -> _Weights | None:
    value = constants.get(cast.inputs[0])
    if value is None or value.dtype != np.float16 or cast.attrs.get("to") != _FLOAT:
        return None
    return _Weights((cast.inputs[0],), {}, value.shape, None)


def _quantised(node: Node, constants: Mapping[str, Array], made: Mapping[str, Node]) -> _Weights | None:
    stored, attrs = node.inputs[0], dict[str, Any]()
    sizes: tuple[int, ...] = ()
    unpack = made.get(stored)
    if unpack is not None and unpack.op == "Unpack4" and unpack.inputs[0] in constants:
        stored, sizes = unpack.inputs[0], tuple(unpack.attrs["shape"])  # type: ignore[arg-type]
        attrs = {"shape": sizes, "signed": unpack.attrs["signed"]}
    elif stored in constants and constants[stored].dtype in (np.int8, np.uint8):
        sizes = constants[stored].shape
    scale = _stored_shape(node.inputs[1], constants, made)
    if not sizes or scale is None or node.attrs.get("output_dtype", 0) not in (0, _FLOAT):
        return None
    if scale in ((), (1,)):
        return _Weights((stored, *node.inputs[1:]), attrs, sizes, None)
    axis, block = int(node.attrs.get("axis", 1)), int(node.attrs.get("block_size", 0))  # type: ignore[arg-type]
    if block:
        attrs["block_size"] = block
    return _Weights((stored, *node.inputs[1:]), attrs, sizes, axis % len(sizes))


_WEIGHTS = {"Cast": _halved, "DequantizeLinear": _quantised}
"""How to read weights, by the operator that produces them."""


def _stored_shape(name: str, constants: Mapping[str, Array], made: Mapping[str, Node]) -> tuple[int, ...] | None:
    """Sizes of a float32 constant, or of one that is stored in half precision; None for anything else."""
    if name in constants:
        return constants[name].shape if constants[name].dtype == np.float32 else None
    cast = made.get(name)
    if cast is None or cast.op != "Cast":
        return None
    weights = _halved(cast, constants, made)
    return None if weights is None else weights.sizes


def _without_unread(graph: Graph) -> Graph:
    """The graph without the nodes that only produced weights and are no longer read."""
    kept: list[Node] = []
    wanted = {value.name for value in graph.outputs}
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs) or node.op not in (*_WEIGHTS, "Unpack4"):
            kept.append(node)
            wanted.update((*node.inputs, *node.captures))
    return graph.replace(nodes=tuple(kept[::-1]))
