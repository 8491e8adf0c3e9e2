"""Sparse initializers of ONNX models: dense ones, in nested graphs too, within limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import ConvertError, convert

VALUE = helper.make_tensor_value_info


def sparse(values: Any, indices: Any, shape: list[int], kind: Any = np.int64) -> onnx.SparseTensorProto:
    held = numpy_helper.from_array(np.asarray(values), "w")
    places = numpy_helper.from_array(np.asarray(indices, kind), "i")
    return onnx.SparseTensorProto(values=held, indices=places, dims=shape)


def model(held: onnx.SparseTensorProto, nested: bool = False) -> onnx.ModelProto:
    """y = x + w, on request in the branch of an If."""
    result = VALUE("y", held.values.data_type, None)
    nodes, name = [helper.make_node("Add", ["x", "w"], ["y"])], "y"
    given = [VALUE("x", held.values.data_type, None)]
    if nested:
        inner = helper.make_graph(nodes, "inner", [], [result], sparse_initializer=[held])
        other = helper.make_graph([helper.make_node("Identity", ["x"], ["o"])], "other", [], [VALUE("o", 1, None)])
        nodes = [helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=other)]
        given, name = [*given, VALUE("c", TensorProto.BOOL, [])], "z"
    output = VALUE(name, held.values.data_type, None)
    graph = helper.make_graph(nodes, "g", given, [output], sparse_initializer=[] if nested else [held])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_values_are_where_indices_say(dtype: Any, kind: Any) -> None:
    want = np.zeros((3, 4), dtype)
    want[0, 1], want[2, 3] = 5, -2
    for indices in ([1, 11], [[0, 1], [2, 3]]):
        made = model(sparse(np.array([5, -2], dtype), indices, [3, 4], kind))
        before = made.SerializeToString()
        got = lite_runtime.load(convert(made).bundle).run({"x": np.ones((3, 4), dtype)})["y"]
        np.testing.assert_array_equal(got, want + 1)
        assert made.SerializeToString() == before


def test_nested_and_empty_ones() -> None:
    held = model(sparse(np.float32([3]), [2], [2, 2]), nested=True)
    got = lite_runtime.load(convert(held).bundle).run({"x": np.ones((2, 2), np.float32), "c": np.array(True)})["z"]
    np.testing.assert_array_equal(got, [[1, 1], [4, 1]])
    none = model(sparse(np.zeros(0, np.float32), np.zeros((0, 2)), [2, 2]))
    np.testing.assert_array_equal(
        lite_runtime.load(convert(none).bundle).run({"x": np.ones((2, 2), np.float32)})["y"], np.ones((2, 2))
    )


ONE = np.float32([1])
REFUSED = {
    "outside": (sparse(ONE, [4], [2, 2]), "indices inside"),
    "negative": (sparse(ONE, [-1], [2, 2]), "indices inside"),
    "outside, coordinates": (sparse(ONE, [[0, 2]], [2, 2]), "indices inside"),
    "twice": (sparse(np.float32([1, 2]), [3, 3], [2, 2]), "one value for each index"),
    "count": (sparse(ONE, [1, 2], [2, 2]), r"expected integers \[1\] or \[1, 2\] as indices of 1 values, got \[2\]"),
    "floats": (sparse(ONE, [1], [2, 2], np.float32), "of element type 1"),
    "too large": (sparse(ONE, [1], [1 << 20, 1 << 10]), "at most 1024 bytes for each value stored"),
    "beyond memory": (sparse(ONE, [1], [1 << 40, 1 << 40]), "dimensions that fit in memory"),
    "beyond memory, none": (sparse(np.zeros(0, np.float32), [], [0, 1 << 40, 1 << 40]), "that fit in memory"),
    "below zero": (sparse(ONE, [1], [2, -2]), "dimensions that fit in memory"),
    "no dimensions": (sparse(ONE, [0], []), "expected 1 to"),
    "text": (sparse(np.array(["a"], object), [0], [2]), "numbers of at least 8 bits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    held, words = REFUSED[name]
    with pytest.raises(ConvertError, match=words):
        convert(model(held))
