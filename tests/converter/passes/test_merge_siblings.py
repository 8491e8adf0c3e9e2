"""Narrow convolutions of one tensor become one, only if that needs fewer vectors, and no result changes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.converter.support import Builder, check, ops


def conv(b: Builder, x: str, c: int, m: int, size: int = 1, group: int = 1, bias: bool = True, **attrs) -> str:
    inputs = [x, b.weight(m, c // group, size, size), *([b.weight(m)] if bias else [])]
    return b("Conv", *inputs, pads=[size // 2] * 4, group=group, **attrs)


def image(b: Builder, c: int = 6, batch: int | str = 1) -> str:
    return b.input("x", [batch, c, 6, 5])


def count(graph, op: str) -> int:
    return ops(graph).count(op)


@pytest.mark.parametrize("batch", [1, 3, "N"])
def test_heads_of_a_detector(batch):
    b = Builder(20)
    x = image(b, batch=batch)
    heads = []
    for i, channels in enumerate((1, 4, 1, 10)):
        y = conv(b, conv(b, x, 6, channels, bias=i != 1), channels, channels, 3, channels)
        heads.append(b("Sigmoid", y) if channels == 1 else y)
    graph = check(b.model(*heads))
    assert count(graph, "Conv") == 2 and count(graph, "Split") == 1
    assert [n.attrs["group"] for n in graph.nodes if n.op == "Conv"] == [1, 16]


def test_one_reader_that_is_no_convolution_keeps_the_first_level():
    b = Builder(20)
    x = image(b)
    a, c = conv(b, x, 6, 3), conv(b, x, 6, 5)
    graph = check(b.model(conv(b, a, 3, 3, 3, 3), b("Neg", c)))
    assert count(graph, "Conv") == 2 and count(graph, "Split") == 1


def test_wide_ones_stay_apart():
    b = Builder(20)
    x = image(b)
    graph = check(b.model(conv(b, x, 6, 16), conv(b, x, 6, 32)))
    assert count(graph, "Conv") == 2 and count(graph, "Split") == 0


@pytest.mark.parametrize("change", [{"strides": [2, 2]}, {"dilations": [2, 2]}, {"size": 1}, {"group": 2}])
def test_other_windows_stay_apart(change):
    b = Builder(20)
    x = image(b)
    other = {"size": 3, **change}
    graph = check(b.model(conv(b, x, 6, 2, 3), conv(b, x, 6, 4, **other)))
    assert count(graph, "Conv") == 2 and count(graph, "Split") == 0


def test_an_activation_stays_in_its_convolution():
    b = Builder(20)
    x = image(b)
    graph = check(b.model(b("Relu", conv(b, x, 6, 2)), b("Relu", conv(b, x, 6, 4))))
    assert count(graph, "Conv") == 2 and count(graph, "Relu") == 0


def test_a_residual_stays_in_its_convolution():
    b = Builder(20)
    x = image(b)
    graph = check(b.model(b("Add", conv(b, x, 6, 4), conv(b, x, 6, 4))))
    assert count(graph, "Conv") == 2 and count(graph, "Split") == 0


def test_computed_weights_stay():
    b = Builder(20)
    x, w = image(b), b.input("w", [2, 6, 1, 1])
    graph = check(b.model(b("Conv", x, w), conv(b, x, 6, 3)))
    assert count(graph, "Conv") == 2


def test_three_of_four_are_merged():
    b = Builder(20)
    x = image(b)
    heads = [conv(b, x, 6, m, size) for m, size in ((2, 1), (3, 1), (5, 3), (4, 1))]
    graph = check(b.model(*heads))
    assert count(graph, "Conv") == 2 and count(graph, "Split") == 1


def test_a_sum_of_two_is_an_addition():
    b = Builder(20)
    x, y = b.input("x", [2, 3]), b.input("y", [2, 3])
    graph = check(b.model(b("Sum", x, y), b("Sum", b("Neg", x))))
    assert count(graph, "Sum") == 0 and count(graph, "Add") == 1


def test_a_sum_goes_into_a_convolution():
    b = Builder(20)
    x = image(b)
    graph = check(b.model(b("Relu", b("Sum", conv(b, x, 6, 8), conv(b, x, 6, 8, 3)))))
    assert "Add" not in ops(graph) and "Sum" not in ops(graph)
    assert np.sum([len(n.inputs) == 4 for n in graph.nodes if n.op == "Conv"]) == 1
