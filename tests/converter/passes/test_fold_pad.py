"""Pads of zeros are folded into their readers, through Transposes and quantisers; others stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from converter.lowering import lower
from converter.pass_lists import to_ir
from lite_runtime import reference
from tests.converter.passes.qdq import Q, body, check, inputs_for, to_integers
from tests.converter.support import Builder, converted, ops
from tests.converter.support import check as check_float


def pads(b: Builder, begin: list[int], end: list[int]) -> str:
    return b.const(np.array([*begin, *end], np.int64))


def test_a_pad_of_channels_last_images():
    b = Builder(20)
    x = b("Pad", b.input("x", [1, 6, 7, 3]), pads(b, [0, 1, 0, 0], [0, 2, 3, 0]))
    y = b("Conv", b("Transpose", x, perm=[0, 3, 1, 2]), b.weight(4, 3, 3, 3), pads=[1, 1, 0, 0])
    graph = check_float(b.model(b("Transpose", y, perm=[0, 2, 3, 1])))
    assert ops(graph) == ["Conv"] and graph.nodes[0].attrs["pads"] == (2, 1, 2, 3)


def test_a_pad_with_named_axes():
    b = Builder(20)
    x = b("Pad", b.input("x", [1, 3, 6, 7]), pads(b, [1], [2]), "", b.const(np.array([-1], np.int64)))
    assert "Pad" not in ops(check_float(b.model(b("Conv", x, b.weight(4, 3, 3, 3)))))


KEPT = {
    "channels": lambda b, x: b("Pad", x, pads(b, [0, 1, 0, 0], [0, 0, 0, 0])),
    "another number": lambda b, x: b("Pad", x, pads(b, [0, 0, 1, 1], [0, 0, 1, 1]), b.const(np.float32(1))),
    "cut": lambda b, x: b("Pad", x, pads(b, [0, 0, -1, 0], [0, 0, 0, 0])),
    "mirror": lambda b, x: b("Pad", x, pads(b, [0, 0, 1, 1], [0, 0, 1, 1]), mode="reflect"),
}


@pytest.mark.parametrize("name", KEPT)
def test_others_stay(name):
    b = Builder(20)
    x = KEPT[name](b, b.input("x", [1, 3, 6, 7]))
    channels = 4 if name == "channels" else 3
    assert "Pad" in ops(check_float(b.model(b("Conv", x, b.weight(2, channels, 3, 3)))))


def test_a_pad_two_operators_read_stays():
    b = Builder(20)
    x = b("Pad", b.input("x", [1, 3, 6, 7]), pads(b, [0, 0, 1, 1], [0, 0, 1, 1]))
    graph = converted(b.model(b("Conv", x, b.weight(2, 3, 3, 3)), b("Abs", x)))
    assert "Pad" in ops(graph)


@pytest.mark.parametrize("number, folded", [(3, True), (0, False)])
def test_integers_padded_with_their_zero_point(number, folded):
    b = Q()
    x = b.integers("x", [1, 3, 6, 7], zero=3)
    y = b("Pad", x, pads(b, [0, 0, 1, 0], [0, 0, 2, 1]), b.const(np.int8(number)))
    b.steps[y] = b.steps[x]
    graph = check(b.model(b.q(b("Conv", b.dq(y), b.stored(4, 3, 3, 3, axis=0)), 0.1)))
    assert ("Pad" not in body(graph)) == folded and "QLinearConv" in body(graph)


def test_a_pad_before_a_range_found_at_run_time():
    b = Q()
    x = b.input("x", [2, 3, 6, 7])
    y = b("Pad", x, pads(b, [0, 0, 1, 0], [0, 0, 2, 1]))
    q, scale, zero = b("DynamicQuantizeLinear", y, outputs=3, domain="msedge", kept=1, dtype="int8")
    w, step = b.const(b.rng.integers(-9, 9, (4, 3, 3, 3)), np.int8), b.const(np.float32(0.1))
    model = b.model(b("QLinearConv", q, scale, zero, w, step, b.const(np.int8(0)), domain="msedge"))
    model.opset_import.append(helper.make_opsetid("msedge", 1))
    graph = lower(to_integers(onnx.ModelProto.FromString(model.SerializeToString())))
    assert body(graph) == ["DynamicQuantizeLinear", "QLinearConv"]
    inputs = inputs_for(graph)
    wanted = reference.run(lower(to_ir(model)), inputs)
    for got, expected in zip(reference.run(graph, inputs).values(), wanted.values(), strict=True):
        np.testing.assert_array_equal(got, expected)
