"""Normalisations against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, ours

C = 4
ROWS = [
    ("Softmax", [floats(2, 3, 4)], {"axis": 1}),
    ("LogSoftmax", [floats(2, 3, 4)], {}),
    ("Hardmax", [floats(2, 3, 4)], {"axis": -2}),
    (
        "BatchNormalization",
        [floats(2, C, 3, 3), floats(C), floats(C), floats(C), floats(C, low=0.1)],
        {"epsilon": 1e-3},
    ),
    ("BatchNormalization", [floats(2, C), floats(C), floats(C), floats(C), floats(C, low=0.1)], {}),
    ("InstanceNormalization", [floats(2, C, 5, 3), floats(C), floats(C)], {"epsilon": 1e-2}),
    ("GroupNormalization", [floats(2, C, 3, 3), floats(C), floats(C)], {"num_groups": 2}),
    ("LRN", [floats(2, 7, 3, 3)], {"size": 3, "alpha": 0.1, "bias": 2.0}),
    ("LpNormalization", [floats(3, 4)], {"axis": 0, "p": 1}),
    ("LpNormalization", [floats(3, 4)], {}),
    ("MeanVarianceNormalization", [floats(2, 3, 4, 5)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)])
def test_agrees(op: str, inputs: list[np.ndarray], attrs: dict[str, object]) -> None:
    agree(op, inputs, attrs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization(axis: int) -> None:
    x = floats(2, 3, 4)
    shape = x.shape[axis:]
    agree("LayerNormalization", [x, floats(*shape), floats(*shape)], {"axis": axis}, outputs=3, rtol=1e-4, atol=1e-5)


def test_rms_normalization_scales_to_unit_power() -> None:
    x = floats(5, 64)
    y = ours("RMSNormalization", [x, np.ones(64, np.float32)])[0]
    np.testing.assert_allclose((y * y).mean(1), 1, rtol=1e-3)


@pytest.mark.parametrize("op", ["BatchNormalization", "InstanceNormalization"])
def test_channels_last(op: str) -> None:
    x = floats(2, C, 5, 3)
    rest = [floats(C), floats(C), floats(C), floats(C, low=0.1)][: 4 if op.startswith("Batch") else 2]
    last = ours(op, [x.transpose(0, 2, 3, 1), *rest], {"layout": "NHWC"})[0]
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), ours(op, [x, *rest])[0])


def test_training_blends_the_batchs_statistics() -> None:
    x, one, zero = floats(6, C, 4), np.ones(C, np.float32), np.zeros(C, np.float32)
    y, mean, var = ours("BatchNormalization", [x, one, zero, zero, one], {"training_mode": 1, "momentum": 0.75}, 3)
    np.testing.assert_allclose(y.mean((0, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(mean, 0.25 * x.mean((0, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var, 0.75 + 0.25 * x.var((0, 2)), rtol=1e-4)


@given(hnp.arrays(np.float32, (2, 5), elements=st.floats(-1e4, 1e4, width=32)))
def test_softmax_adds_up_to_one(x: np.ndarray) -> None:
    np.testing.assert_allclose(ours("Softmax", [x])[0].sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(ours("LogSoftmax", [x])[0]), ours("Softmax", [x])[0], rtol=1e-4, atol=1e-6)


def test_group_normalization_lies_between_layer_and_instance() -> None:
    x, one, zero = floats(2, C, 5), np.ones(C, np.float32), np.zeros(C, np.float32)
    grouped = ours("GroupNormalization", [x, one, zero], {"num_groups": C})[0]
    np.testing.assert_allclose(grouped, ours("InstanceNormalization", [x, one, zero])[0], rtol=1e-4, atol=1e-5)


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"scale of shape \(4,\)"):
        ours("BatchNormalization", [floats(1, C, 2), *[floats(3)] * 4])
    with pytest.raises(ShapeError, match="num_groups 3"):
        ours("GroupNormalization", [floats(1, C, 2), floats(C), floats(C)], {"num_groups": 3})
