"""Every operator of the lowering table against onnxruntime, or ONNX's reference where onnxruntime lacks it."""

from __future__ import annotations

from collections.abc import Mapping
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
    assert {op for op in engine.supported_ops() if "Sequence" not in op} - {row.op for row in ROWS} == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_operator(row: Row) -> None:
    model, fed = model_of(row)
    wanted, got = expected(model, fed, row.oracle), run_engine(model, fed)
    for theirs, ours in zip(wanted, got, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == jax.dtypes.canonicalize_dtype(theirs.dtype)
        if row.check == "value":
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
