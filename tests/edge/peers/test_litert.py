"""LiteRT as a peer: names of inputs and outputs are those of the bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import interpreter

import lite_runtime
from converter import convert
from edge.measuring.layers import layers, values_of
from edge.measuring.samples import draw
from edge.peers.litert import PLAINER, LiteRT
from edge.peers.oracle import OracleError
from tests.converter.frontends.tflite.builder import Builder, Quant
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


def refused_by_the_delegate() -> bytes:
    """XNNPACK cannot prepare a RESIZE_BILINEAR between scales, as DeepLab's published files have one; before it, a
    product by a table's result."""
    b = Builder()
    x = b.input("x", (1, 4, 4, 3), "uint8", quant=Quant(0.0123, 0))
    gate = b.input("gate", (1, 4, 4, 3), "uint8", quant=Quant(0.05, 100))
    y = b.op("LOGISTIC", [gate], (1, 4, 4, 3), "uint8", quant=Quant(1 / 256, 0))
    product = b.op("MUL", [x, y], (1, 4, 4, 3), "uint8", quant=Quant(0.012, 0))
    size = b.const(np.array([8, 8], np.int32))
    b.output(b.op("RESIZE_BILINEAR", [product, size], (1, 8, 8, 3), "uint8", version=3, quant=Quant(0.029, 0)))
    return b.build()


def test_a_model_that_xnnpack_cannot_prepare() -> None:
    """Falls back by itself; with values kept too, where `verify --layers` failed."""
    data = refused_by_the_delegate()
    assert LiteRT(unnamed()).kernels == "delegate"
    rng = np.random.default_rng(3)
    inputs = draw(LiteRT(data).inputs, rng)
    peers = [LiteRT(data, keep=True), LiteRT(data, kernels=PLAINER["delegate"]), LiteRT(data, kernels="reference")]
    (first, *rest) = (peer.run(inputs) for peer in peers)
    assert [peer.kernels for peer in peers] == ["own", "own", "reference"]
    for other in rest:
        (a,), (b,) = first.values(), other.values()
        assert np.max(np.abs(a.astype(int) - b)) <= 1
    values = peers[0].values()
    assert sorted(op for op, _ in values.values()) == ["LOGISTIC", "MUL", "RESIZE_BILINEAR"]
    assert [array.dtype for _, array in values.values()] == [np.float32] * 3


def test_layers_of_a_model_that_xnnpack_cannot_prepare(tmp_path: Path) -> None:
    """Every value is compared in real numbers: one that only the second operand of a product describes had none."""
    source, bundle = tmp_path / "m.tflite", tmp_path / "m.mslite"
    source.write_bytes(refused_by_the_delegate())
    bundle.write_bytes(convert(source).bundle)
    inputs = draw(LiteRT(source).inputs, np.random.default_rng(4))
    found = list(layers(*(values_of(path, inputs) for path in (source, bundle))))
    assert len(found) == 3 and min(layer.snr for layer in found) > 40


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
