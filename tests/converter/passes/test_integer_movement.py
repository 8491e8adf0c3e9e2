"""Operators that only move or select numbers run on integers: no quantiser is left, and results are exactly the
same."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from converter.passes.integer.dequantize_later import RULES
from tests.converter.passes.qdq import Q, body, check

SHAPE = [2, 4, 6, 8]


def i64(b: Q, *values: int) -> str:
    return b.const(list(values), np.int64)


def other(b: Q) -> str:
    """A second operand of the first one's type and steps."""
    kind = next(i.type.tensor_type.elem_type for i in b.inputs if i.name == "x")
    return b.dq(b.integers("other", SHAPE, dtype=helper.tensor_dtype_to_np_dtype(kind)))


MOVES = {
    "Reshape": lambda b, x: b("Reshape", x, i64(b, 2, -1, 8)),
    "Flatten": lambda b, x: b("Flatten", x),
    "Squeeze": lambda b, x: b("Squeeze", b("Slice", x, i64(b, 0), i64(b, 1), i64(b, 0)), i64(b, 0)),
    "Unsqueeze": lambda b, x: b("Unsqueeze", x, i64(b, 1)),
    "Transpose": lambda b, x: b("Transpose", x, perm=[2, 0, 3, 1]),
    "Identity": lambda b, x: b("Identity", x),
    "Slice": lambda b, x: b("Slice", x, i64(b, 1, 5), i64(b, 4, 0), i64(b, 1, 2), i64(b, 1, -2)),
    "Split": lambda b, x: b("Concat", *b("Split", x, outputs=2, num_outputs=2, axis=1)[::-1], axis=2),
    "Gather": lambda b, x: b("Gather", x, i64(b, 2, 0), axis=1),
    "GatherElements": lambda b, x: b("GatherElements", x, b.const(np.zeros((2, 4, 6, 1), np.int64)), axis=3),
    "GatherND": lambda b, x: b("GatherND", x, i64(b, 1, 3)),
    "Expand": lambda b, x: b("Expand", x, i64(b, 3, 1, 1, 1, 1)),
    "Tile": lambda b, x: b("Tile", x, i64(b, 1, 2, 1, 3)),
    "DepthToSpace": lambda b, x: b("DepthToSpace", x, blocksize=2),
    "SpaceToDepth": lambda b, x: b("SpaceToDepth", x, blocksize=2),
    "ReverseSequence": lambda b, x: b("ReverseSequence", x, i64(b, 2, 1, 1, 2), time_axis=0, batch_axis=1),
    "Concat": lambda b, x: b("Concat", x, other(b), axis=1),
    "Max": lambda b, x: b("Max", x, other(b)),
    "Min": lambda b, x: b("Min", x, other(b)),
    "Where": lambda b, x: b("Where", b.input("choose", SHAPE, bool), x, other(b)),
    "Resize": lambda b, x: b("Resize", x, "", b.const([1, 1, 2, 3], np.float32), mode="nearest"),
    "Pad": lambda b, x: b("Pad", x, i64(b, 0, 1, 0, 2, 0, 0, 3, 0)),
    "MaxPool": lambda b, x: b("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "GlobalMaxPool": lambda b, x: b("GlobalMaxPool", x),
    "ReduceMax": lambda b, x: b("ReduceMax", x, i64(b, 1)),
    "ReduceMin": lambda b, x: b("ReduceMin", x, i64(b, -1), keepdims=0),
    "TopK": lambda b, x: b("TopK", x, i64(b, 3), outputs=2, axis=1)[0],
}
POSITIONS = {
    "ArgMax": lambda b, x: b("ArgMax", x, axis=1),
    "ArgMin": lambda b, x: b("ArgMin", x, axis=-1, keepdims=0),
}


def test_every_rule_has_its_case():
    assert set(MOVES) | set(POSITIONS) == set(RULES)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", MOVES)
def test_it_moves_integers(name, dtype):
    b = Q()
    y = MOVES[name](b, b.dq(b.integers("x", SHAPE, dtype=dtype)))
    graph = check(b.model(b.q(y, 0.02, 3, dtype)), steps=0)
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(body(graph)), body(graph)


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_need_no_dequantizer(name):
    b = Q()
    graph = check(b.model(POSITIONS[name](b, b.dq(b.integers("x", SHAPE)))), steps=0)
    assert body(graph) == [name]


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_sixteen_bits_move_as_well(dtype):
    b = Q()
    y = b("Slice", b.dq(b.integers("x", SHAPE, dtype=dtype)), i64(b, 1), i64(b, 3), i64(b, 1))
    graph = check(b.model(b("Transpose", y, perm=[0, 2, 3, 1])), steps=0)
    assert [n.op for n in graph.nodes][-1] == "DequantizeLinear"


def test_operators_without_sixteen_bits_stay_float():
    b = Q()
    x = b.integers("x", SHAPE, dtype=np.int16)
    y = b("MaxPool", b.dq(x), kernel_shape=[2, 2])
    graph = check(b.model(b.q(y, 0.02, 3, np.int16)), steps=0)
    assert body(graph) == ["DequantizeLinear", "MaxPool", "QuantizeLinear"]


def test_scales_along_an_axis_follow():
    b = Q()
    scale = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    x = b.q(b.input("x", SHAPE), scale, axis=1)
    y = b("Reshape", b("Transpose", b.dq(x), perm=[0, 2, 3, 1]), i64(b, 2, 48, 4))
    b.steps["again"] = b.steps[x]
    y = b("QuantizeLinear", y, *b.steps[x][:2], axis=2)
    graph = check(b.model(y), steps=0)
    assert body(graph) == ["QuantizeLinear"]


@pytest.mark.parametrize("number", [0.0, 0.1, 0.033, -99.0])
def test_padding_is_quantised_with_its_result(number):
    b = Q()
    y = b("Pad", b.dq(b.integers("x", SHAPE)), i64(b, 0, 0, 1, 1, 0, 0, 1, 1), b.const(np.float32(number)))
    assert body(check(b.model(b.q(y, 0.02, 3)), steps=0)) == ["Pad"]


@pytest.mark.parametrize("number, whole", [(0.0, True), (0.033, False)])
def test_float_results_are_padded_as_integers_if_the_value_allows_it(number, whole):
    b = Q()
    y = b("Pad", b.dq(b.integers("x", SHAPE)), i64(b, 0, 0, 1, 1, 0, 0, 1, 1), b.const(np.float32(number)))
    graph = check(b.model(y), steps=0)
    assert body(graph) == (["Pad", "DequantizeLinear"] if whole else ["DequantizeLinear", "Pad"])


BEHIND = {
    "pool": lambda b, y: b("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]),
    "pad": lambda b, y: b("Pad", y, i64(b, 1, 0, 2, 0), b.const(np.float32(0.5)), i64(b, 2, 3)),
    "resize": lambda b, y: b("Resize", y, "", b.const([1, 1, 2, 3], np.float32), mode="nearest"),
    "shuffle": lambda b, y: b("DepthToSpace", y, blocksize=2),
    "tile": lambda b, y: b("Tile", y, i64(b, 1, 2, 1, 3)),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_quantizer_reaches_the_convolution_through(name):
    b = Q()
    y = b("Relu", b("Conv", b.dq(b.integers("x", [2, 3, 6, 6])), b.stored(4, 3, 3, 3)))
    graph = check(b.model(b.q(BEHIND[name](b, y), 0.1)))
    assert len(body(graph)) == 2 and "QLinearConv" in body(graph)


def test_operands_of_a_concat_get_its_scale():
    b = Q()
    parts = [b.dq(b.integers(n, [2, 3, 5], s, z)) for n, s, z in (("a", 0.02, 3), ("b", 0.05, -7), ("c", 0.04, 0))]
    graph = check(b.model(b.q(b("Concat", *parts, axis=1), 0.04, 0)))
    assert sorted(body(graph)) == ["Concat", "LookupTable", "LookupTable"]


def test_a_quantizer_reaches_the_convolution_behind_movement():
    b = Q()
    y = b("Conv", b.dq(b.integers("x", [2, 3, 6, 6])), b.stored(4, 3, 3, 3))
    y = b("Transpose", b("Reshape", y, i64(b, 2, 4, 16)), perm=[0, 2, 1])
    assert body(check(b.model(b.q(y, 0.1)))) == ["QLinearConv"]


def test_pairs_between_movement_vanish():
    b = Q()
    x = b.integers("x", SHAPE)
    for move in (lambda v: b("Transpose", v, perm=[0, 2, 3, 1]), lambda v: b("Transpose", v, perm=[0, 3, 1, 2])):
        x = b.q(move(b.dq(x)), 0.02, 3)
    graph = check(b.model(b("Relu", b.dq(x))), steps=0)
    assert [n.op for n in graph.nodes] == ["DequantizeLinear", "Relu"]


def test_quantised_tables_are_gathered_as_integers():
    b = Q()
    graph = check(b.model(b("Gather", b.stored(9, 5), b.input("rows", [4], np.int64))), steps=0)
    assert body(graph) == ["Gather", "DequantizeLinear"]
