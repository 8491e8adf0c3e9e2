"""LiteRT as a peer: names of inputs and outputs are those of the bundle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import interpreter

import lite_runtime
from converter import convert
from edge.measuring.samples import draw
from edge.peers.litert import LiteRT
from edge.peers.oracle import OracleError
from tests.converter.frontends.tflite.builder import Builder
from tests.converter.frontends.tflite.test_ops_flow import detection
from tests.converter.streams import denoiser, ring_buffer, two_signatures, wake_word


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


@pytest.mark.parametrize("make", [wake_word, denoiser, ring_buffer, two_signatures])
def test_models_with_state_are_opened(make: Callable[[], bytes]) -> None:
    peer = LiteRT(make())
    ours = {v.name for v in lite_runtime.load(convert(make()).bundle).bundle.at_first("predict").inputs}
    assert {v.name for v in peer.inputs} == ours
    peer.run(draw(peer.inputs, np.random.default_rng(0)))


def test_a_model_that_the_delegate_cannot_prepare_runs_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Refusing(interpreter.Interpreter):
        def __init__(self, *args: Any, experimental_op_resolver_type: Any, **more: Any) -> None:
            opened.append(experimental_op_resolver_type)
            super().__init__(*args, experimental_op_resolver_type=experimental_op_resolver_type, **more)

        def allocate_tensors(self) -> None:
            if opened[-1] == interpreter.OpResolverType.AUTO:
                raise RuntimeError("the delegate failed to prepare")
            super().allocate_tensors()

    monkeypatch.setattr(interpreter, "Interpreter", Refusing)
    peer = LiteRT(unnamed())
    (result, _) = peer.run({"tensor 0": np.ones((1, 4), np.float32)}).values()
    np.testing.assert_array_equal(result, np.full((1, 4), 2, np.float32))
    assert opened[1:] == [interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES]


def test_the_error_of_a_model_that_cannot_be_opened_is_the_first() -> None:
    with pytest.raises(OracleError, match="LiteRT cannot load the source model"):
        LiteRT(b"\x1c\x00\x00\x00TFL3" + bytes(40))


@pytest.mark.parametrize("each", [1, 2])
def test_detections_that_are_not_meant_are_zero(each: int) -> None:
    """After a run with detections, one without any."""
    builder, (boxes, scores) = detection(max_classes_per_detection=each, nms_score_threshold=0.5)
    data = builder.build()
    peer, ours = LiteRT(data), lite_runtime.load(convert(data).bundle)
    names = [v.name for v in peer.inputs]
    counts = []
    for row in (scores, scores * 0, np.maximum(scores, 0.4)):
        inputs = dict(zip(names, (boxes, row.astype(np.float32)), strict=True))
        expected, got = peer.run(inputs), ours.run(inputs)
        counts.append(int(expected[list(expected)[3]][0]))
        for name, want in expected.items():
            np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6)
    assert counts[1] == 0 < counts[0]
