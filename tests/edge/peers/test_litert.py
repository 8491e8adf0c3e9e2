"""LiteRT as a peer: names of inputs and outputs are those of the bundle."""

from __future__ import annotations

import numpy as np

import lite_runtime
from converter import convert
from edge.peers.litert import LiteRT
from tests.converter.frontends.tflite.builder import Builder


def unnamed() -> bytes:
    """y = x * 2, y2 = x + 2; x has no name, and both results have the same one."""
    b = Builder()
    x = b.input("x", (1, 4))
    two = b.const(np.full((1, 4), 2, np.float32))
    results = [b.op("MUL", [x, two], (1, 4)), b.op("ADD", [x, two], (1, 4))]
    b.table.tensors[x.index].name = b""
    for result in results:
        b.table.tensors[result.index].name = b"y"
    b.output(*results)
    return b.build()


def test_tensors_without_names_and_with_equal_ones_are_told_apart() -> None:
    data = unnamed()
    peer, ours = LiteRT(data), lite_runtime.load(convert(data).bundle)
    inputs = {v.name: np.arange(4, dtype=np.float32)[None] for v in peer.inputs}
    assert list(inputs) == [v.name for v in ours.bundle.at_first("predict").inputs] == ["tensor 0"]
    expected, got = peer.run(inputs), ours.run(inputs)
    assert list(expected) == ["y", "y_1"] and expected.keys() == got.keys()
    for name in expected:
        np.testing.assert_array_equal(got[name], expected[name])
