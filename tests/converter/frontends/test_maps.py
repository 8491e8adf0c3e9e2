"""ZipMap's dictionaries become arrays; other maps are refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import converter
import lite_runtime
from converter import ConvertError
from edge.peers.oracle import Oracle, as_array


def zipped(labels: Sequence[int] | Sequence[str], key: int) -> onnx.ModelProto:
    kind = "strings" if isinstance(labels[0], str) else "int64s"
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    graph = helper.make_graph(
        [
            helper.make_node("Softmax", ["x"], ["p"]),
            helper.make_node("ZipMap", ["p"], ["scores"], domain="ai.onnx.ml", **{f"classlabels_{kind}": labels}),
            helper.make_node("ArgMax", ["p"], ["label"], axis=1, keepdims=0),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(labels)])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]), helper.make_value_info("scores", maps)],
        value_info=[helper.make_tensor_value_info("p", TensorProto.FLOAT, ["n", len(labels)])],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("labels", "key"),
    [([0, 1, 2], TensorProto.INT64), ([7, -3, 2], TensorProto.INT64), (["b", "ä", "a"], TensorProto.STRING)],
)
def test_scores_of_classes_in_order(labels: Sequence[int] | Sequence[str], key: int) -> None:
    model = zipped(labels, key)
    before = model.SerializeToString(deterministic=True)
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    got = lite_runtime.load(converter.convert(model).bundle).run({"x": x})
    assert model.SerializeToString(deterministic=True) == before
    expected = Oracle(model).run({"x": x})
    np.testing.assert_array_equal(got["label"], expected["label"])
    np.testing.assert_allclose(got["scores"], as_array(expected["scores"]), rtol=1e-6)
    assert got["scores"].dtype == np.float32


def test_names_that_are_taken() -> None:
    model = zipped([1, 0], TensorProto.INT64)
    model.graph.input[0].name = model.graph.node[0].input[0] = "scores_shape"
    assert converter.convert(model).bundle


def test_other_maps_are_refused() -> None:
    model = zipped([0, 1], TensorProto.INT64)
    model.graph.input[0].type.map_type.key_type = TensorProto.INT64
    with pytest.raises(ConvertError, match="value 'x' is a map, and only ZipMap may make one"):
        converter.convert(model)
    model = zipped([0, 1], TensorProto.INT64)
    model.graph.node.append(helper.make_node("SequenceLength", ["scores"], ["count"]))
    model.graph.output.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    with pytest.raises(ConvertError, match="value 'scores' is a map"):
        converter.convert(model)
    model = zipped([0, 1], TensorProto.INT64)
    del model.graph.node[1].attribute[:]
    with pytest.raises(ConvertError, match="expected one operand, one result and class labels"):
        converter.convert(model)
