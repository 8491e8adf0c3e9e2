"""Resize and sampling against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ours

COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


# Where the scaled length is no integer, onnxruntime rounds it before it aligns corners; ONNX's own cases do not.
SCALED = [(c, f) for c in COORDINATES for f in (2.0, 0.6, 1.5) if c != "align_corners" or f == 2]


@pytest.mark.parametrize(("coordinates", "factor"), SCALED)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales(coordinates: str, mode: str, factor: float) -> None:
    scales = np.array([1, 1, factor, factor], np.float32)
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    agree("Resize", [floats(1, 2, 5, 6), None, scales], attrs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_nearest_modes(nearest: str) -> None:
    agree("Resize", [floats(1, 1, 7, 4), None, None, i64(1, 1, 4, 9)], {"nearest_mode": nearest})


def test_sizes_axes_and_policies() -> None:
    x = floats(1, 2, 6, 9)
    agree("Resize", [x, None, None, i64(3, 12)], {"axes": (2, 3), "mode": "linear"}, rtol=1e-4, atol=1e-5)
    for policy in ("not_larger", "not_smaller"):
        attrs = {"axes": (2, 3), "mode": "linear", "keep_aspect_ratio_policy": policy}
        agree("Resize", [x, None, None, i64(3, 12)], attrs, rtol=1e-4, atol=1e-5)


def test_crop() -> None:
    roi = np.array([0, 0, 0.2, 0.3, 1, 1, 0.9, 1.4], np.float32)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    agree("Resize", [floats(1, 1, 5, 6), roi, None, i64(1, 1, 4, 7)], attrs, rtol=1e-4, atol=1e-5)


def test_exclude_outside() -> None:
    attrs = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    agree("Resize", [floats(1, 1, 5, 6), None, np.array([1, 1, 2, 0.7], np.float32)], attrs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_axes_may_come_in_any_order(mode: str) -> None:
    x = floats(1, 2, 5, 6)
    first = ours("Resize", [x, None, np.array([1, 1, 2, 1.5], np.float32)], {"mode": mode})[0]
    last = ours("Resize", [x.transpose(0, 2, 3, 1), None, np.array([1, 2, 1.5, 1], np.float32)], {"mode": mode})[0]
    np.testing.assert_allclose(last.transpose(0, 3, 1, 2), first, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_a_flat_image_stays_flat(mode: str, antialias: int) -> None:
    x = np.full((1, 1, 6, 7), 3, np.float32)
    y = ours("Resize", [x, None, np.array([1, 1, 0.6, 1.7], np.float32)], {"mode": mode, "antialias": antialias})[0]
    np.testing.assert_allclose(y, 3, rtol=1e-6)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    agree(
        "GridSample",
        [floats(2, 3, 5, 6), floats(2, 4, 3, 2, low=-1.6, high=1.6)],
        attrs,
        rtol=1e-3,
        atol=1e-4,
        opset=20,
    )


def test_identity_grid_reads_the_image_back() -> None:
    x, theta = floats(1, 2, 4, 5), np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    for align in (0, 1):
        grid = ours("AffineGrid", [theta, i64(*x.shape)], {"align_corners": align})[0]
        np.testing.assert_allclose(ours("GridSample", [x, grid], {"align_corners": align})[0], x, atol=1e-5)


@pytest.mark.parametrize("size", [(2, 1, 4, 5), (2, 1, 3, 4, 5)])
def test_affine_grid(size: tuple[int, ...]) -> None:
    rank = len(size) - 2
    agree("AffineGrid", [floats(2, rank, rank + 1), i64(*size)], {}, rtol=1e-4, atol=1e-5, opset=20)


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="one of scales and sizes"):
        ours("Resize", [floats(1, 1, 2, 2)])
    with pytest.raises(ShapeError, match="4 scales or sizes"):
        ours("Resize", [floats(1, 1, 2, 2), None, np.array([2.0], np.float32)])
