"""Which products keep narrow weights, that results do not change, and that nothing is stored twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import convert
from converter.lowering import narrow_products, pack_narrow
from lite_runtime import bundle, reference
from lite_runtime.graph import Array, Graph, Node, Value

RNG = np.random.default_rng(3)


def product(
    weights: Node, constants: Mapping[str, Array], depth: int, columns: int, *more: Node, **attrs: Any
) -> Graph:
    """y = x @ what `weights` gives, named "d"."""
    given, gives = Value("x", "float32", (3, depth)), Value("y", "float32", (3, columns))
    return Graph((given,), (gives,), (weights, Node("MatMul", ("x", "d"), ("y",), attrs, "mm"), *more), dict(constants))


def dequantized(dtype: Any, shape: tuple[int, int], axis: int, block: int, zeros: bool = False, **attrs: Any) -> Graph:
    ends = ml_dtypes.iinfo(dtype)
    scales = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape)) if block else (shape[axis],)
    constants = {"w": RNG.integers(ends.min, ends.max, shape, endpoint=True).astype(dtype)}
    constants["s"] = RNG.uniform(0.01, 0.1, scales).astype(np.float32)
    names = ["w", "s"]
    if zeros:
        constants["z"] = RNG.integers(ends.min, ends.max, scales, endpoint=True).astype(dtype)
        names.append("z")
    node = Node("DequantizeLinear", tuple(names), ("d",), {"axis": axis, "block_size": block}, "dq")
    depth, columns = shape[::-1] if attrs.get("transB") else shape
    return product(node, constants, depth, columns, **attrs)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize(("axis", "block", "turned"), [(1, 0, 0), (0, 0, 1), (0, 32, 0), (1, 16, 1)])
def test_dequantised_weights(dtype: Any, axis: int, block: int, turned: int, zeros: bool) -> None:
    graph = pack_narrow(dequantized(dtype, (64, 48), axis, block, zeros, transB=turned))
    narrow = narrow_products(graph)
    assert ops(narrow)[-1] == "NarrowMatMul" and "DequantizeLinear" not in ops(narrow)
    x = {"x": RNG.normal(size=(3, 48 if turned else 64)).astype(np.float32)}
    want = reference.run(graph, x)["y"]
    np.testing.assert_array_equal(reference.run(narrow, x)["y"], want)
    model = lite_runtime.load(bundle.write(None, {"predict": narrow}))
    np.testing.assert_allclose(model.run(x)["y"], want, rtol=1e-4, atol=2e-3)


def test_half_precision() -> None:
    cast = Node("Cast", ("w",), ("d",), {"to": 1})
    graph = product(cast, {"w": RNG.normal(size=(8, 5)).astype(np.float16)}, 8, 5)
    narrow = narrow_products(graph)
    assert ops(narrow) == ["NarrowMatMul"]
    x = {"x": RNG.normal(size=(3, 8)).astype(np.float32)}
    np.testing.assert_array_equal(reference.run(narrow, x)["y"], reference.run(graph, x)["y"])


def test_scales_in_half_precision() -> None:
    graph = dequantized(np.int8, (16, 8), 1, 0)
    constants = {**graph.constants, "h": graph.constants["s"].astype(np.float16)}
    del constants["s"]
    graph = Graph(graph.inputs, graph.outputs, (Node("Cast", ("h",), ("s",), {"to": 1}), *graph.nodes), constants)
    assert ops(narrow_products(graph)) == ["Cast", "NarrowMatMul"]


@pytest.mark.parametrize(
    "graph",
    [
        dequantized(np.int8, (8, 8), 0, 0),
        dequantized(np.int8, (8, 8), 1, 4),
        dequantized(np.int16, (8, 8), 1, 0),
        dequantized(np.int8, (3, 8), 1, 0, transA=1),
    ],
    ids=["a scale a row", "blocks of columns", "16 bits", "x transposed"],
)
def test_weights_that_kernels_cannot_read_stay(graph: Graph) -> None:
    assert narrow_products(graph) == graph


@pytest.mark.parametrize(
    "more",
    [
        Node("Relu", ("d",), ("r",)),
        Node("MatMul", ("d", "x2"), ("r",)),
    ],
)
def test_weights_with_other_readers_stay(more: Node) -> None:
    graph = dequantized(np.int8, (8, 8), 1, 0)
    inputs = (*graph.inputs, Value("x2", "float32", (8, 4)))
    outputs = (*graph.outputs, Value("r", "float32", None))
    graph = Graph(inputs, outputs, (*graph.nodes, more), graph.constants)
    assert narrow_products(graph) == graph
    second = Node("MatMul", ("x", "d"), ("r",))
    shared = Graph(graph.inputs, outputs, (*graph.nodes[:2], second), graph.constants)
    assert ops(narrow_products(shared)) == ["NarrowMatMul", "NarrowMatMul"]


@pytest.mark.parametrize("mode", ["fp16", "w8", "w4"])
def test_conversion_keeps_weights_narrow(mode: Any) -> None:
    """Biases, activations and both layouts of a fully connected network, and the accuracy of its mode."""
    weights = {name: RNG.normal(size=(64, 96)).astype(np.float32) / 8 for name in ("a", "b")}
    biases = {"c": RNG.normal(size=96).astype(np.float32), "e": RNG.normal(size=64).astype(np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("Gemm", ["r", "b", "e"], ["y"], transB=1),
    ]
    held = [numpy_helper.from_array(value, name) for name, value in (weights | biases).items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    plain, narrow = (lite_runtime.load(convert(model, quantize=m).bundle) for m in ("none", mode))
    lite = narrow.bundle.signatures["predict"]
    assert [op for op in ops(lite) if op not in ("Cast", "Unpack4")] == ["NarrowMatMul", "NarrowMatMul"]
    for m in (1, 20):
        x = {"x": RNG.normal(size=(m, 64)).astype(np.float32)}
        assert narrow.cost(x).reference == ()
        want, got = plain.run(x)["y"], narrow.run(x)["y"]
        far = {"fp16": 2e-3, "w8": 3e-2, "w4": 0.4}[mode]
        assert np.sqrt(np.mean((got - want) ** 2)) < far * want.std()
