"""Losses and what `evaluate` counts, against NumPy; labels that do not count; activations before a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from converter.errors import TrainingError
from converter.ir import build
from converter.lowering import lower
from converter.pass_lists import to_ir
from converter.training import Training
from converter.training.losses import attach
from lite_runtime import reference


def _model(shape: Any, *ops: tuple[str, dict[str, Any]], dtype: int = onnx.TensorProto.FLOAT) -> Any:
    """x through some operators to y."""
    names = ["x", *(f"v{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [helper.make_node(op, [a], [b], **kw) for (op, kw), a, b in zip(ops, names[:-1], names[1:], strict=True)]
    inputs = [helper.make_tensor_value_info("x", dtype, shape)]
    outputs = [helper.make_tensor_value_info("y", dtype, shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return to_ir(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=10))


def _evaluate(x: Any, labels: Any, training: Training, *ops: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    model = _model(["N", *x.shape[1:]], *(ops or (("Identity", {}),)))
    build.adopt(model)
    output = model.graph.outputs[0]
    model.graph.outputs.clear()
    for name, value in attach(model, output, training)._asdict().items():
        if value is not None:
            value.name = name
            model.graph.outputs.append(value)
    return reference.run(lower(model), {"x": x, "labels": labels})


@pytest.mark.parametrize("shape", [(1, 2), (7, 5), (3, 4, 6)])
@pytest.mark.parametrize("last", [None, "Softmax", "LogSoftmax"])
def test_softmax_cross_entropy(shape: tuple[int, ...], last: str | None) -> None:
    rng = np.random.default_rng(1)
    logits = 20 * rng.standard_normal(shape).astype(np.float32)
    labels = rng.integers(0, shape[-1], shape[:-1])
    ops = (("Identity", {}), *(((last, {"axis": -1}),) if last else ()))
    got = _evaluate(logits, labels, Training("*"), *ops)
    chances = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    chances -= logits.max(-1, keepdims=True)
    wanted = -np.take_along_axis(chances, labels[..., None], -1).mean()
    np.testing.assert_allclose(got["loss"], wanted, rtol=1e-5)
    assert got["examples"] == labels.size and got["examples"].dtype == np.int64
    assert got["correct"] == (logits.argmax(-1) == labels).sum() and got["correct"].dtype == np.int64


def test_labels_that_name_no_class_do_not_count() -> None:
    logits = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    got = _evaluate(logits, np.array([2, -1, 0, 3]), Training("*"))
    alone = _evaluate(logits[[0, 2]], np.array([2, 0]), Training("*"))
    assert {k: v.item() for k, v in got.items()} == pytest.approx({k: v.item() for k, v in alone.items()})
    none = _evaluate(logits, np.full(4, -1), Training("*"))
    assert (none["loss"], none["examples"], none["correct"]) == (0.0, 0, 0)


@pytest.mark.parametrize("last", [None, "Sigmoid"])
def test_sigmoid_cross_entropy(last: str | None) -> None:
    rng = np.random.default_rng(3)
    logits = 30 * rng.standard_normal((6, 3)).astype(np.float32)
    labels = rng.integers(0, 2, (6, 3)).astype(np.float32)
    training = Training("*", loss="sigmoid_cross_entropy")
    got = _evaluate(logits, labels, training, ("Identity", {}), *(((last, {}),) if last else ()))
    wanted = (np.logaddexp(0, logits) - logits * labels).mean()
    np.testing.assert_allclose(got["loss"], wanted, rtol=1e-5)
    assert got["examples"] == 18 and got["correct"] == ((logits > 0) == (labels > 0.5)).sum()


def test_regression_losses() -> None:
    rng = np.random.default_rng(4)
    y, labels = (2 * rng.standard_normal((5, 3)).astype(np.float32) for _ in range(2))
    square = _evaluate(y, labels, Training("*", loss="mse"))
    assert set(square) == {"loss", "examples"} and square["examples"] == 15
    np.testing.assert_allclose(square["loss"], np.square(y - labels).mean(), rtol=1e-6)
    huber = _evaluate(y, labels, Training("*", loss="huber", huber_delta=0.7))
    error = np.abs(y - labels)
    wanted = np.where(error <= 0.7, error**2 / 2, 0.7 * (error - 0.35)).mean()
    np.testing.assert_allclose(huber["loss"], wanted, rtol=1e-6)


def test_outputs_that_do_not_suit_are_refused() -> None:
    model = _model(["N", "C"], ("Identity", {}))
    build.adopt(model)
    with pytest.raises(TrainingError, match="classes of known size"):
        attach(model, model.graph.outputs[0], Training("*"))
    model = _model(["N", 3], ("Identity", {}), dtype=onnx.TensorProto.DOUBLE)
    build.adopt(model)
    with pytest.raises(TrainingError, match="float32"):
        attach(model, model.graph.outputs[0], Training("*", loss="mse"))
    model.graph.inputs[0].name = "labels"
    with pytest.raises(TrainingError, match="rename it"):
        attach(model, model.graph.outputs[0], Training("*"))
