"""Functions of one 8-bit tensor become tables, equal to what the operators give one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.converter.passes.qdq import Q, body, check


def f(b: Q, number: float) -> str:
    return b.const(np.float32(number))


FUNCTIONS = {
    "sigmoid": lambda b, x: b("Sigmoid", x),
    "clip": lambda b, x: b("Clip", x, f(b, -0.5), f(b, 1)),
    "leaky": lambda b, x: b("LeakyRelu", x, alpha=0.3),
    "hard swish": lambda b, x: b("HardSwish", x),
    "gelu": lambda b, x: b("Gelu", x),
    "prelu": lambda b, x: b("PRelu", x, b.const([0.2], np.float32)),
    "chain": lambda b, x: b("Add", b("Mul", b("Tanh", x), f(b, 2)), b.const([[0.25]], np.float32)),
    "swish": lambda b, x: b("Mul", x, b("Sigmoid", x)),
    "quantised number": lambda b, x: b("Mul", x, b("DequantizeLinear", b.const(np.int8(7)), f(b, 0.1))),
    "other steps": lambda b, x: x,
    "in between": lambda b, x: b("Exp", b.dq(b.q(b("Neg", x), 0.05, 1))),
    "where": lambda b, x: b("Where", b("Greater", x, f(b, 0.1)), x, f(b, -1)),
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_becomes_one_table(name, dtype):
    b = Q()
    y = FUNCTIONS[name](b, b.dq(b.integers("x", [3, 100], 0.03, 11, dtype)))
    assert body(check(b.model(b.q(y, 0.021, 5, dtype)))) == ["LookupTable"]


def test_tables_give_sixteen_bits():
    b = Q()
    y = b("Tanh", b.dq(b.integers("x", [3, 100])))
    assert body(check(b.model(b.q(y, 1 / 32768, 0, np.int16)))) == ["LookupTable"]


def test_comparisons_give_booleans():
    b = Q()
    graph = check(b.model(b("Less", b.dq(b.integers("x", [3, 100])), f(b, 0.2))), steps=0)
    assert body(graph) == ["LookupTable"] and graph.constants[graph.nodes[0].inputs[1]].dtype == np.bool_


def test_approximate_functions_of_integers_are_tables_even_into_float():
    b = Q()
    y = b("Mul", b("Sigmoid", b.dq(b.integers("x", [3, 5]))), b.dq(b.integers("r", [3, 5])))
    assert body(check(b.model(b.q(y, 0.01)))) == ["LookupTable", "DequantizeLinear", "Mul", "QuantizeLinear"]


KEPT = {
    "two tensors": lambda b, x: b("Add", x, b.dq(b.integers("r", [3, 4]))),
    "a constant along an axis": lambda b, x: b("Mul", x, b.weight(4)),
    "broadcast": lambda b, x: b("Relu", b("Mul", x, b.const(np.ones((1, 1, 1), np.float32) * 2))),
    "16 bits": lambda b, x: b("Relu", b.dq(b.integers("r", [3, 4], dtype=np.int16))),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    b = Q()
    y = KEPT[name](b, b.dq(b.integers("x", [3, 4])))
    assert "LookupTable" not in body(check(b.model(b.q(y, 0.041))))


def test_equal_steps_are_no_requantisation():
    b = Q()
    x = b.integers("x", [3, 4])
    y = b.q(b("Identity", b.dq(x)), 0.02, 3)
    graph = check(b.model(b("Mul", b.dq(y), b.dq(x))), steps=0)
    assert "QuantizeLinear" not in body(graph)
