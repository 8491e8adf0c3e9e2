"""Low-rank adapters beside frozen weights (Hu et al., 2021, "LoRA").

y = x W (+ b) becomes y = x W (+ b) + factor * (x A) B, for MatMul, Gemm and Conv with 1x1 kernels:

1. MatMul(x, W[in, out]): two MatMuls.
2. Gemm(x, W) with transB or without: the same, on its matrix.
3. Conv of kernel 1, group 1: Conv with A of the same strides and pads, then Conv with B.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build
from converter.ir.build import Edit, attr
from converter.quantize.options import matches
from converter.training import parameters
from converter.training.options import Lora
from lite_runtime.graph import Array

__all__ = ["insert_adapters"]


def insert_adapters(
    model: ir.Model, lora: Lora, taken: Mapping[str, ir.Value], output: ir.Value
) -> dict[str, ir.Value]:
    """Add an adapter to every matching frozen weight, in place; returns what is trained of them, as initialisers, by
    name.

    `taken`: weights that are themselves trained. Raises TrainingError for a glob that matches no suitable weight.
    """
    fitting = _fitting(model, output)
    for glob in lora.targets:
        if not any(matches((glob,), name) for name in fitting):
            known = ", ".join(map(repr, fitting)) or "none: matrices and 1x1 filters"
            raise TrainingError(f"adapters: no weight matches {glob!r}; there are {known}")
    rng = np.random.default_rng(lora.seed)
    made: dict[str, ir.Value] = {}
    for name, nodes in fitting.items():
        if matches(lora.targets, name) and name not in taken:
            made |= _adapt(name, nodes, lora, rng)
    if not made:
        raise TrainingError("adapters: every matching weight is itself trained; omit adapters or trainable")
    return made


def _fitting(model: ir.Model, output: ir.Value) -> dict[str, list[ir.Node]]:
    """Weights by name, with the nodes that multiply by them."""
    found: dict[str, list[ir.Node]] = {}
    for name, value in parameters.parameters(model, output).items():
        nodes = [use.node for use in value.uses()]
        if all(use.idx == 1 and _takes(use.node, value) for use in value.uses()):
            found[name] = nodes
    return found


def _takes(node: ir.Node, weight: ir.Value) -> bool:
    shape = build.static_dims(weight) or ()
    if build.is_op(node, "Conv"):
        return len(shape) > 2 and set(shape[2:]) == {1} and attr(node, "group", 1) == 1
    plain = build.is_op(node, "MatMul") or (
        build.is_op(node, "Gemm") and not attr(node, "transA", 0) and attr(node, "alpha", 1.0) == 1.0
    )
    return plain and len(shape) == 2


def _adapt(name: str, nodes: list[ir.Node], lora: Lora, rng: np.random.Generator) -> dict[str, ir.Value]:
    """`A` normal with variance 1 / inputs, `B` zeros: both created once for all nodes that multiply by the weight."""
    weight = nodes[0].inputs[1]
    inputs, outputs = _sizes(nodes[0], build.static_dims(weight) or ())
    down = (rng.standard_normal((inputs, lora.rank)) / np.sqrt(inputs)).astype(np.float32)
    up = np.zeros((lora.rank, outputs), np.float32)
    graph = nodes[0].graph
    assert graph is not None
    a, b = (_initializer(graph, f"{name}.{part}", array) for part, array in (("lora_a", down), ("lora_b", up)))
    for node in nodes:
        (_beside_conv if build.is_op(node, "Conv") else _beside_product)(node, a, b, lora.factor)
    return {value.name or "": value for value in ((b,) if lora.only_b else (a, b))}


def _sizes(node: ir.Node, shape: tuple[int, ...]) -> tuple[int, int]:
    across = build.is_op(node, "Conv") or bool(attr(node, "transB", 0))
    return (shape[1], shape[0]) if across else (shape[0], shape[1])


def _initializer(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    if name in graph.initializers:
        raise TrainingError(f"adapters: the model already has an initialiser {name!r}; rename it")
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def _beside_product(node: ir.Node, a: ir.Value, b: ir.Value, factor: float) -> None:
    edit, (x, y) = Edit(node), (node.inputs[0], node.outputs[0])
    around, rank = (build.dims(y) or ())[:-1], (build.static_dims(a) or (0, 0))[1]
    narrow = edit.op("MatMul", [x, a], like=y, shape=(*around, rank))
    _add(edit, node, edit.op("MatMul", [narrow, b], like=y), factor)


def _beside_conv(node: ir.Node, a: ir.Value, b: ir.Value, factor: float) -> None:
    """The matrices as filters [rank, inputs, 1, ...] and [outputs, rank, 1, ...]."""
    edit, (x, y) = Edit(node), (node.inputs[0], node.outputs[0])
    shape = build.dims(y)
    flat = len(build.static_dims(node.inputs[1]) or ()) - 2
    down, up = (_as_filter(edit, v, flat) for v in (a, b))
    rank = (build.static_dims(a) or (0, 0))[1]
    narrow = edit.op(
        "Conv", [x, down], dict(node.attributes), like=y, shape=None if shape is None else (shape[0], rank, *shape[2:])
    )
    _add(edit, node, edit.op("Conv", [narrow, up], like=y), factor)


def _as_filter(edit: Edit, matrix: ir.Value, flat: int) -> ir.Value:
    inputs, outputs = build.static_dims(matrix) or (0, 0)
    turned = edit.op("Transpose", [matrix], {"perm": [1, 0]}, like=matrix, shape=(outputs, inputs))
    target = (outputs, inputs, *[1] * flat)
    return edit.op("Reshape", [turned, edit.ints(target)], like=matrix, shape=target)


def _add(edit: Edit, node: ir.Node, low: ir.Value, factor: float) -> None:
    """Replace `node` by a copy of it plus the adapter's scaled result."""
    y = node.outputs[0]
    if factor != 1.0:
        low = edit.op("Mul", [low, edit.scalar_like(factor, y)], like=y)
    kept = edit.op(node.op_type, list(node.inputs), dict(node.attributes), like=y)
    edit.replace(edit.op("Add", [kept, low], like=y))
