"""Pools, means, softmax and linear resizing between quantisers work on integers."""

from __future__ import annotations

import numpy as np
import pytest

from converter.passes.integer import left_float
from tests.converter.passes.qdq import Q, body, check, to_integers

SHAPE = [2, 3, 7, 6]


def scales(b: Q, *values: float) -> str:
    return b.const(list(values), np.float32)


CASES = {
    "AveragePool": lambda b, x: b("AveragePool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    "AveragePool counting": lambda b, x: b(
        "AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "GlobalAveragePool": lambda b, x: b("GlobalAveragePool", x),
    "ReduceMean": lambda b, x: b("ReduceMean", x, b.const(np.array([-1, 1]))),
    "ReduceMean flat": lambda b, x: b("ReduceMean", x, b.const(np.array([2, 3])), keepdims=0),
    "ReduceMean all": lambda b, x: b("ReduceMean", x),
    "Softmax": lambda b, x: b("Softmax", x, axis=1),
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", CASES)
def test_it_works_on_integers(name, dtype):
    b = Q()
    y = CASES[name](b, b.dq(b.integers("x", SHAPE, 0.03, 7, dtype)))
    graph = check(b.model(b.q(y, 0.021, -3 if dtype == np.int8 else 3, dtype)), rarely=0.05)
    assert body(graph) == [f"QLinear{name.split()[0]}"]


def test_a_softmax_of_8_bits_with_a_result_of_16_stays_float():
    b = Q()
    y = b("Softmax", b.dq(b.integers("x", SHAPE, 0.03, 7)), axis=1)
    assert "Softmax" in body(check(b.model(b.q(y, 1 / 32768, 0, np.int16)), rarely=0.05))


@pytest.mark.parametrize("bound", [False, True])
def test_a_sum_of_two_is_an_addition(bound):
    b = Q()
    y = b("Sum", b.dq(b.integers("x", SHAPE, 0.0311, 7)), b.dq(b.integers("r", SHAPE, 0.0203, -5)))
    graph = check(b.model(b.q(b("Relu", y) if bound else y, 0.0417, -3)), rarely=0.05)
    assert body(graph) == ["QLinearAdd"]


def test_a_sum_of_three_stays_float():
    b = Q()
    y = b("Sum", *(b.dq(b.integers(name, SHAPE)) for name in ("x", "r", "s")))
    assert "QLinearAdd" not in body(check(b.model(b.q(y, 0.04)), rarely=0.05))


RESIZES = {
    "half pixel": {},
    "align corners": {"coordinate_transformation_mode": "align_corners"},
    "asymmetric": {"coordinate_transformation_mode": "asymmetric"},
}


@pytest.mark.parametrize("name", RESIZES)
def test_linear_resizing_with_equal_steps(name):
    b = Q()
    x = b.dq(b.integers("x", SHAPE))
    y = b("Resize", x, "", scales(b, 1, 1, 2, 2), mode="linear", **RESIZES[name])
    graph = check(b.model(b.q(y, 0.02, 3)), rarely=0.3)
    assert body(graph) == ["QLinearResize"]


REASONS = {
    "its result is quantised differently from its input": lambda b, x: b.q(
        b("Resize", x, "", scales(b, 1, 1, 2, 2), mode="linear"), 0.05, 3
    ),
    "it resizes by mode cubic": lambda b, x: b.q(b("Resize", x, "", scales(b, 1, 1, 2, 2), mode="cubic"), 0.02, 3),
    "its result is not quantised to 8 or 16 bits with one scale, or is also read as float": lambda b, x: b(
        "GlobalAveragePool", x
    ),
    "its input is int16": lambda b, x: b.q(b("Softmax", b.dq(b.integers("y", SHAPE, dtype=np.int16))), 0.01),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_stays_float_says_why(reason):
    b = Q()
    model = b.model(REASONS[reason](b, b.dq(b.integers("x", SHAPE))))
    check(model, rarely=0.05, step=1e-4 if reason.endswith("read as float") else 1)
    assert [left.reason for left in left_float(to_integers(model))] == [reason]
