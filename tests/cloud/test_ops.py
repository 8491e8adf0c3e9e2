"""Every operator of the lowering table against onnxruntime, or ONNX's reference where onnxruntime lacks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi import onnxruntime_pybind11_state as state

from cloud import engine
from lite_runtime.graph import OPSET
from tests.cloud.op_table import ROWS, Const, Row

CONTRIB: dict[str, dict[str, float]] = {"Gelu": {}, "QuickGelu": {"alpha": 1.3}, "Inverse": {}}
"""Operators of onnxruntime's own domain."""


def model_of(row: Row) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, with what to feed it. Outputs are declared as shape inference finds them."""
    names = ["" if operand is None else f"in{i}" for i, operand in enumerate(row.operands)]
    fed = {n: o for n, o in zip(names, row.operands, strict=True) if n and not isinstance(o, Const)}
    held = {n: o.value for n, o in zip(names, row.operands, strict=True) if isinstance(o, Const)}
    extra = [n for n in names if n not in used_by_node(row, names)]
    operands = [n for n in names if n not in extra]
    node = helper.make_node(row.op, operands, list(row.outputs), name="node", **row.attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()],
        [helper.make_empty_tensor_value_info(n) for n in row.outputs if n],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", row.opset or OPSET)], ir_version=10)
    inferred = {v.name: v for v in onnx.shape_inference.infer_shapes(model, data_prop=True).graph.output}
    del model.graph.output[:]
    model.graph.output.extend(inferred[n] for n in row.outputs if n)
    return model, fed


def used_by_node(row: Row, names: list[str]) -> list[str]:
    """Operands of the node itself: operators with subgraphs may leave the last ones to those."""
    counts = {"If": 1, "Loop": 4 if len(names) == 4 else 3}
    return names[: counts.get(row.op, len(names))]


def expected(model: onnx.ModelProto, fed: Mapping[str, np.ndarray], oracle: str = "onnxruntime") -> list[Any]:
    if oracle == "reference":
        return list(ReferenceEvaluator(model).run(None, dict(fed)))
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return list(session.run(None, dict(fed)))
    except (state.NotImplemented, state.Fail):
        return list(ReferenceEvaluator(model).run(None, dict(fed)))


def run_engine(model: onnx.ModelProto, fed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    function = engine.lower(ir.from_proto(model))
    apply = jax.jit(function.apply)
    outputs, _ = apply(function.params, function.state, dict(fed), rng=jax.random.key(0))
    return [np.asarray(outputs[value.name]) for value in model.graph.output]


def test_the_table_covers_every_operator() -> None:
    # sequences never leave a graph here: test_function.py runs them
    tried = {row.op for row in ROWS} | set(CONTRIB)
    assert {op for op in engine.supported_ops() if "Sequence" not in op} - tried == set()


def test_unsupported_operators_are_listed_with_the_reason() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cloud.md").read_text()
    section = page.partition("## Operators\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"\w+", " ".join(re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)))) - {"operators"}
    schemas = [s for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated and s.since_version <= OPSET]
    assert told >= {s.name for s in schemas} - set(engine.supported_ops())
    assert not told & set(engine.supported_ops())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_operator(row: Row) -> None:
    model, fed = model_of(row)
    wanted, got = expected(model, fed, row.oracle), run_engine(model, fed)
    for theirs, ours in zip(wanted, got, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == jax.dtypes.canonicalize_dtype(theirs.dtype)
        if row.check == "value":
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_integers_have_a_zero_point_for_each_row() -> None:  # which neither oracle knows
    a, b = np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(8, dtype=np.uint8).reshape(4, 2)
    zeros = np.array([1, 2, 3], np.uint8)
    model, fed = model_of(Row("MatMulInteger", [a, b, zeros]))
    np.testing.assert_array_equal(run_engine(model, fed)[0], (a.astype(int) - zeros[:, None]) @ b.astype(int))


@pytest.mark.parametrize("op", CONTRIB)
def test_operators_of_onnxruntimes_domain(op: str) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node(op, ["x"], ["y"], domain="com.microsoft", **CONTRIB[op])
    graph = helper.make_graph([node], "g", [value("x", 1, (5, 5))], [value("y", 1, (5, 5))])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = np.random.default_rng(0).normal(0, 2, (5, 5)).astype(np.float32)
    function = engine.lower(ir.from_proto(model))
    got = function.apply(function.params, function.state, {"x": x})[0]["y"]
    np.testing.assert_allclose(got, expected(model, {"x": x})[0], rtol=1e-5, atol=1e-5)


def test_pooling_and_back_passes_the_gradient_to_the_largest() -> None:
    """What an encoder and its decoder do with the places of MaxPool."""
    pool = helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[2, 2], strides=[2, 2])
    back = helper.make_node("MaxUnpool", ["y", "at"], ["z"], kernel_shape=[2, 2], strides=[2, 2])
    value = helper.make_tensor_value_info
    graph = helper.make_graph([pool, back], "g", [value("x", 1, (1, 2, 4, 4))], [value("z", 1, (1, 2, 4, 4))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    function = engine.lower(ir.from_proto(model))
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)
    largest = x == x.reshape(1, 2, 2, 2, 2, 2).max((3, 5), keepdims=True).repeat(2, 3).repeat(2, 5).reshape(x.shape)

    def run(x: Any) -> Any:
        return function.apply(function.params, function.state, {"x": x})[0]["z"]

    np.testing.assert_array_equal(run(x), x * largest)
    np.testing.assert_array_equal(jax.grad(lambda x: run(x).sum())(x), largest)
