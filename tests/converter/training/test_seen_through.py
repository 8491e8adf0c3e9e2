"""A last activation is seen behind operators that only reshape; one that normalises something else is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.errors import TrainingError
from converter.ir import build
from converter.lowering import lower
from converter.pass_lists import to_ir
from converter.training import Training
from converter.training.losses import attach
from lite_runtime import reference
from tests.converter.support import Builder


def attached(b: Builder, y: str, training: Training) -> Any:
    model = to_ir(b.model(y))
    build.adopt(model)
    output = model.graph.outputs[0]
    model.graph.outputs.clear()
    for name, value in attach(model, output, training)._asdict().items():
        if value is not None:
            value.name = name
            model.graph.outputs.append(value)
    return model


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def reshaped(b: Builder, x: str, way: str) -> tuple[str, tuple[int, ...]]:
    """A softmax's result by some way, and the output's shape."""
    match way:
        case "Identity":
            return b("Identity", b("Identity", b("Softmax", x, axis=1))), (6, 5)
        case "Reshape":
            return b("Reshape", b("Softmax", x, axis=-1), b.const(np.int64([2, 3, 5]))), (2, 3, 5)
        case "Flatten":
            return b("Flatten", b("LogSoftmax", x, axis=-1), axis=1), (6, 5)
        case "Unsqueeze":
            return b("Unsqueeze", b("Softmax", x), b.const(np.int64([0]))), (1, 6, 5)
        case _:
            image = b("Reshape", x, b.const(np.int64([6, 5, 1, 1])))
            return b("Squeeze", b("Softmax", image, axis=1), b.const(np.int64([2, 3]))), (6, 5)


@pytest.mark.parametrize("way", ["Identity", "Reshape", "Flatten", "Unsqueeze", "Squeeze"])
def test_softmax(way: str) -> None:
    rng = np.random.default_rng(5)
    x = 20 * rng.standard_normal((6, 5)).astype(np.float32)
    b = Builder()
    y, shape = reshaped(b, b.input("x", (6, 5)), way)
    labels = rng.integers(0, 5, shape[:-1])
    model = attached(b, y, Training("*"))
    assert [node.op_type for node in model.graph].count("LogSoftmax") == (way == "Flatten")
    got = reference.run(lower(model), {"x": x, "labels": labels})
    wanted = -np.log(softmax(x.astype(np.float64))[np.arange(6), labels.reshape(-1)]).mean()
    np.testing.assert_allclose(got["loss"], wanted, rtol=1e-5)
    assert got["correct"] == (x.argmax(-1) == labels.reshape(-1)).sum()


def test_sigmoid() -> None:
    rng = np.random.default_rng(6)
    x = 30 * rng.standard_normal((6, 4)).astype(np.float32)
    labels = rng.integers(0, 2, (3, 8)).astype(np.float32)
    b = Builder()
    y = b("Reshape", b("Sigmoid", b.input("x", (6, 4))), b.const(np.int64([3, 8])))
    model = attached(b, y, Training("*", loss="sigmoid_cross_entropy"))
    got = reference.run(lower(model), {"x": x, "labels": labels})
    z = x.reshape(3, 8)
    np.testing.assert_allclose(got["loss"], (np.logaddexp(0, z) - z * labels).mean(), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_along_another_axis(axis: int) -> None:
    b = Builder()
    y = b("Identity", b("Softmax", b.input("x", (2, 3, 5)), axis=axis))
    with pytest.raises(TrainingError, match="classes along the last axis"):
        attached(b, y, Training("*"))
