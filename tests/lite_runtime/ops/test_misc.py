"""Rules that only infer: their result types are those of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node, dtype_name
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.moved import some


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def bytes_of(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)


ZERO, ONE = np.array(0, np.uint8), np.array(1, np.float32)
CASES: list[tuple[str, list[Array | None], dict[str, Any]]] = [
    ("QuantizeLinear", [some((2, 3)), ONE], {}),
    ("QuantizeLinear", [some((2, 3)), np.ones(3, np.float32), np.zeros(3, np.int8)], {}),
    ("QuantizeLinear", [some((4, 3)), np.ones((2, 3), np.float32)], {"axis": 0, "block_size": 2, "output_dtype": 3}),
    ("DequantizeLinear", [bytes_of(2, 3), ONE, ZERO], {}),
    ("DequantizeLinear", [bytes_of(2, 3), np.ones(2, np.float16)], {"axis": 0}),
    ("DynamicQuantizeLinear", [some((4, 5))], {}),
    ("MatMulInteger", [bytes_of(5, 1, 2, 3), bytes_of(7, 3, 4), ZERO], {}),
    ("MatMulInteger", [bytes_of(3), bytes_of(3)], {}),
    ("QLinearMatMul", [bytes_of(2, 3), ONE, ZERO, bytes_of(3, 4), ONE, ZERO, ONE, ZERO], {}),
    ("ConvInteger", [bytes_of(1, 2, 7, 8), bytes_of(3, 2, 3, 3), ZERO], {"pads": (1, 1, 0, 0), "strides": (2, 1)}),
    ("QLinearConv", [bytes_of(1, 2, 7, 8), ONE, ZERO, bytes_of(3, 2, 3, 3), ONE, ZERO, ONE, ZERO], {}),
    ("DeformConv", [some((1, 2, 5, 5)), some((3, 2, 2, 2)), some((1, 8, 4, 4))], {}),
    ("Col2Im", [some((1, 12, 6)), ints(3, 4), ints(2, 2)], {}),
    ("MaxUnpool", [some((1, 2, 3, 3)), np.zeros((1, 2, 3, 3), np.int64)], {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ("MaxRoiPool", [some((1, 2, 8, 8)), np.array([[0, 1, 1, 5, 5]], np.float32)], {"pooled_shape": (2, 3)}),
    ("DFT", [some((2, 9, 1))], {"onesided": 1}),
    ("DFT", [some((2, 9, 3, 2)), ints(12).reshape(()), ints(1).reshape(())], {}),
    ("DFT", [some((2, 5, 2))], {"onesided": 1, "inverse": 1}),
    ("STFT", [some((1, 64, 1)), np.array(5), some((16,))], {}),
    ("STFT", [some((1, 64, 2)), np.array(8), None, np.array(20)], {"onesided": 0}),
    ("STFT", [some((2, 64)), np.array(5), some((16,))], {}),
    ("MelWeightMatrix", [np.array(v) for v in (8, 64, 8000)] + [np.array(v, np.float32) for v in (0, 4000)], {}),
    ("HannWindow", [np.array(10)], {"output_datatype": 11}),
    ("Det", [some((2, 3, 3))], {}),
    ("Inverse", [some((2, 3, 3))], {}),
    ("BitCast", [some((2, 3))], {"to": 6}),
    ("CenterCropPad", [some((5, 6)), ints(8, 3)], {}),
    ("ReverseSequence", [some((5, 3, 2)), ints(1, 5, 2)], {}),
    ("Compress", [some((5, 6)), np.array([True, False, True])], {"axis": 1}),
    ("Compress", [some((2, 2)), np.array([True, False, True])], {}),
    ("TensorScatter", [some((2, 3, 8, 4)), some((2, 3, 2, 4)), ints(1, 5)], {}),
    ("AffineGrid", [some((2, 2, 3)), ints(2, 3, 4, 5)], {}),
    ("GridSample", [some((1, 2, 5, 5)), some((1, 3, 4, 2))], {}),
    ("RoiAlign", [some((1, 2, 8, 8)), some((3, 4)), ints(0, 0, 0)], {"output_height": 2, "output_width": 5}),
    ("EyeLike", [some((3, 4))], {"dtype": 10}),
    ("Range", [np.array(v, np.float32) for v in (0, 1, 0.1)], {}),
    ("RandomNormalLike", [some((3, 4))], {"dtype": 11}),
    ("Bernoulli", [np.full((3, 4), 0.5, np.float32)], {"dtype": 9}),
    ("RandomUniform", [], {"shape": (2, 3)}),
    ("Einsum", [some((2, 3)), some((3, 4))], {"equation": "ij,jk->ki"}),
]


def inferred(op: str, inputs: list[Array | None], attrs: dict[str, Any]) -> list[Spec]:
    node = Node(op, tuple("" if x is None else f"i{i}" for i, x in enumerate(inputs)), ("o",), attrs, "it")
    specs = [None if x is None else Spec(dtype_name(x.dtype), x.shape) for x in inputs]
    return list(INFERS[op](Inference(node, specs, inputs)))


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_rule_and_reference_agree(op: str, inputs: list[Array | None], attrs: dict[str, Any]) -> None:
    said = inferred(op, inputs, attrs)
    node = Node(op, tuple(f"i{i}" for i in range(len(inputs))), tuple(f"o{i}" for i in range(len(said))), attrs, "it")
    came = reference.evaluate(node, inputs)
    assert said == [Spec(dtype_name(y.dtype), y.shape) for y in came]


X = some((2, 3))
BAD: list[tuple[str, list[Array | None], dict[str, Any]]] = [
    ("QuantizeLinear", [X, np.ones(2, np.float32)], {}),
    ("QuantizeLinear", [X, np.ones(3, np.float32), ZERO], {}),
    ("DequantizeLinear", [bytes_of(4, 3), np.ones((3, 3), np.float32)], {"axis": 0, "block_size": 2}),
    ("MatMulInteger", [bytes_of(2, 3), bytes_of(2, 3)], {}),
    ("MatMulInteger", [X, X], {}),
    ("ConvInteger", [bytes_of(1, 2, 2, 2), bytes_of(3, 2, 3, 3)], {}),
    ("Col2Im", [some((1, 12, 6)), ints(3, 4), ints(0, 2)], {}),
    ("MaxUnpool", [some((1, 2, 3)), np.zeros((1, 2, 3), np.int64)], {"kernel_shape": (2, 2)}),
    ("DFT", [some((2, 9, 3))], {}),
    ("STFT", [some((1, 8, 1)), np.array(5), some((16,))], {}),
    ("STFT", [some((1, 8, 1)), np.array(0), some((4,))], {}),
    ("STFT", [some((1, 8, 3)), np.array(5), some((4,))], {}),
    ("STFT", [some((8,)), np.array(5), some((4,))], {}),
    ("HannWindow", [np.array(-1)], {}),
    ("Det", [X], {}),
    ("Inverse", [X], {}),
    ("BitCast", [X], {"to": 7}),
    ("GridSample", [some((1, 2, 5, 5)), some((1, 3, 4, 3))], {}),
    ("AffineGrid", [some((2, 2, 3)), ints(3, 3, 4, 5)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), BAD)
def test_what_does_not_fit(op: str, inputs: list[Array | None], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match=f"{op} 'it': "):
        inferred(op, inputs, attrs)
