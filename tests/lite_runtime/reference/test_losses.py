"""Losses against onnxruntime; optimiser steps against their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import InputError
from tests.lite_runtime.reference.oracle import agree, floats, ints, ours


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1])
def test_losses(reduction: str, weighted: bool, ignore: int | None) -> None:
    inputs = [floats(3, 5, 2), ints(3, 2, low=0, high=5), *([floats(5, low=0.1)] if weighted else [])]
    attrs = {"reduction": reduction, **({} if ignore is None else {"ignore_index": ignore})}
    agree("SoftmaxCrossEntropyLoss", inputs, attrs, outputs=2, rtol=1e-4)
    agree("NegativeLogLikelihoodLoss", inputs, attrs, rtol=1e-4, opset=13)


def test_uniform_scores_lose_the_logarithm_of_the_classes() -> None:
    loss = ours("SoftmaxCrossEntropyLoss", [np.zeros((4, 8), np.float32), np.arange(4)])[0]
    np.testing.assert_allclose(loss, np.log(8), rtol=1e-6)


def test_optimisers_go_downhill_for_every_tensor() -> None:
    x, y, zero = floats(4), floats(3), [np.zeros(4, np.float32), np.zeros(3, np.float32)]
    rate, count = np.array(0.1, np.float32), np.array(0)
    for op, slots, attrs in (
        ("Adagrad", 1, {}),
        ("Adam", 2, {}),
        ("Momentum", 1, {"alpha": 0.9, "beta": 0.1, "mode": "nesterov", "norm_coefficient": 0.0}),
    ):
        new = ours(op, [rate, count, x, y, 2 * x, 2 * y, *zero * slots], attrs, 2 + 2 * slots)
        assert np.all(np.abs(new[0]) <= np.abs(x) + 0.2)
        assert np.all(np.sign(x - new[0]) == np.sign(x))
        assert np.all(np.sign(y - new[1]) == np.sign(y))
        assert [n.shape for n in new[2:4]] == [(4,), (3,)]


def test_momentum_without_memory_is_gradient_descent() -> None:
    x, g = floats(4), floats(4)
    attrs = {"alpha": 0.0, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0}
    new, memory = ours("Momentum", [np.array(0.5, np.float32), np.array(3), x, g, floats(4)], attrs, 2)
    np.testing.assert_allclose(new, x - 0.5 * g, rtol=1e-6)
    np.testing.assert_array_equal(memory, g)


def test_class_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"targets in \[0, 4\]"):
        ours("SoftmaxCrossEntropyLoss", [floats(2, 5), np.array([0, 5])])
