"""Convolutions against onnxruntime, and Conv's extensions against the plain operators they replace."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ours

CASES = [
    ((2, 4, 9), (6, 4, 3), {"pads": (1, 1), "strides": (2,)}),
    ((2, 4, 9, 8), (6, 2, 3, 2), {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1)}),
    ((1, 6, 8, 8), (6, 1, 3, 3), {"group": 6, "dilations": (2, 2)}),
    ((1, 3, 7, 9), (5, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ((1, 3, 7, 9), (5, 3, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ((1, 3, 7, 9), (5, 3, 1, 1), {"auto_pad": "VALID"}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"pads": (0, 1, 0, 1, 0, 1)}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), CASES)
def test_conv(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, object]) -> None:
    agree("Conv", [floats(*x), floats(*w), floats(w[0])], attrs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "w", "attrs"), CASES)
def test_conv_channels_last_with_residual_and_activation(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, object]
) -> None:
    data, weights, bias = floats(*x), floats(*w), floats(w[0])
    plain = ours("Conv", [data, weights, bias], attrs)[0]
    residual = floats(*plain.shape)
    wanted = ours("Clip", [plain + residual, np.array(-1, np.float32), np.array(2, np.float32)])[0]
    fused = {"activation": "Clip", "activation_min": -1.0, "activation_max": 2.0, "layout": "NHWC"}
    last = [np.moveaxis(data, 1, -1), weights, bias, np.moveaxis(residual, 1, -1)]
    np.testing.assert_allclose(np.moveaxis(ours("Conv", last, {**attrs, **fused})[0], -1, 1), wanted, rtol=1e-6)


TRANSPOSED = [
    ((2, 4, 5), (4, 3, 3), {"strides": (2,), "pads": (1, 1), "output_padding": (1,)}),
    ((1, 4, 5, 4), (4, 3, 3, 2), {"strides": (2, 3), "group": 2}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"dilations": (2, 2), "pads": (1, 0, 1, 2)}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (3, 2), "output_shape": (10, 8)}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (2, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3, 2, 3), (2, 2, 2, 2, 2), {"strides": (2, 1, 2)}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), TRANSPOSED)
def test_conv_transpose(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, object]) -> None:
    data, weights, bias = floats(*x), floats(*w), floats(w[1] * int(attrs.get("group", 1)))
    agree("ConvTranspose", [data, weights, bias], attrs, rtol=1e-4, atol=1e-5)
    fused = {**attrs, "layout": "NHWC", "activation": "Relu"}
    last = ours("ConvTranspose", [np.moveaxis(data, 1, -1), weights, bias], fused)[0]
    wanted = np.maximum(ours("ConvTranspose", [data, weights, bias], attrs)[0], 0)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), wanted)


def test_conv_transpose_is_the_adjoint_of_conv() -> None:
    x, w = floats(1, 3, 7, 8, dtype=np.float64), floats(4, 3, 3, 2, dtype=np.float64)
    attrs = {"strides": (2, 3), "pads": (1, 0, 1, 1)}
    y = ours("Conv", [x, w], attrs)[0]
    g = floats(*y.shape, dtype=np.float64)
    back = ours("ConvTranspose", [g, w], {**attrs, "output_padding": (0, 1)})[0]
    np.testing.assert_allclose((y * g).sum(), (x * back).sum(), rtol=1e-9)


def test_deformable_without_offsets_is_plain() -> None:
    x, w = floats(2, 4, 6, 7), floats(6, 2, 3, 3)
    attrs = {"pads": (1, 1, 1, 1), "group": 2, "strides": (2, 1)}
    plain = ours("Conv", [x, w], attrs)[0]
    offset = np.zeros((2, 2 * 9 * 2, *plain.shape[2:]), np.float32)
    got = ours("DeformConv", [x, w, offset], {**attrs, "offset_group": 2})[0]
    np.testing.assert_allclose(got, plain, rtol=1e-5, atol=1e-5)


def test_deformable_agrees() -> None:
    x, w, offset = floats(1, 2, 5, 5), floats(3, 2, 2, 2), floats(1, 8, 4, 4)
    agree("DeformConv", [x, w, offset, floats(3), floats(1, 4, 4, 4)], rtol=1e-4, atol=1e-5)


def test_col2im_adds_up_what_overlaps() -> None:
    agree("Col2Im", [floats(1, 2 * 6, 12), i64(5, 5), i64(2, 3)], {}, rtol=1e-5)
    agree("Col2Im", [floats(1, 2 * 4, 9), i64(5, 5), i64(2, 2)], {"strides": (2, 2), "pads": (0, 1, 1, 0)})


def test_causal_conv_in_steps_equals_the_whole() -> None:
    x, w, bias = floats(2, 3, 7), floats(3, 1, 4), floats(3)
    whole, state = ours("CausalConvWithState", [x, w, bias], {"activation": "silu"}, 2)
    first, carried = ours("CausalConvWithState", [x[:, :, :2], w, bias], {"activation": "silu"}, 2)
    second, last = ours("CausalConvWithState", [x[:, :, 2:], w, bias, carried], {"activation": "silu"}, 2)
    np.testing.assert_allclose(np.concatenate([first, second], 2), whole, rtol=1e-6)
    np.testing.assert_array_equal(last, state)


@pytest.mark.parametrize(
    ("inputs", "attrs", "text"),
    [
        ([floats(1, 3, 5, 5), floats(4, 2, 3, 3)], {}, "2 channels"),
        ([floats(1, 2, 5, 5), floats(4, 2, 3, 3), floats(3)], {}, r"B of shape \(4,\)"),
        ([floats(1, 2, 5, 5), floats(4, 2, 3)], {}, "one rank"),
        ([floats(1, 2, 5, 5), floats(4, 2, 3, 3)], {"kernel_shape": (2, 2)}, "kernel_shape"),
        ([floats(1, 2, 2, 5), floats(4, 2, 3, 3)], {}, "within the padded input"),
        ([floats(1, 2, 5, 5), floats(4, 2, 3, 3), None, floats(1, 4, 5, 5)], {}, "R of the result's shape"),
        ([floats(1, 2, 5, 5)], {}, "expected at least 2 inputs, got none for w"),
        ([floats(1, 2, 5, 5), None], {}, "expected at least 2 inputs, got none for w"),
    ],
)
def test_misfits_are_refused(inputs: list[np.ndarray], attrs: dict[str, object], text: str) -> None:
    with pytest.raises(ShapeError, match=f"Conv 'it'.*{text}"):
        ours("Conv", inputs, attrs)
