"""Boxes and regions against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ours


@pytest.mark.parametrize("centred", [0, 1])
def test_non_max_suppression(centred: int) -> None:
    boxes, scores = floats(2, 30, 4, low=0, high=3), floats(2, 3, 30, low=0, high=1)
    limits = [np.array(v, np.float32) for v in (0.2, 0.3)]
    agree("NonMaxSuppression", [boxes, scores, i64(5), *limits], {"center_point_box": centred})


def test_suppressed_boxes_overlap_a_kept_one() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7]]], np.float32)
    kept = ours("NonMaxSuppression", [boxes, scores, i64(9), np.array(0.5, np.float32)])[0]
    assert kept[:, 2].tolist() == [0, 2]
    assert ours("NonMaxSuppression", [boxes, scores])[0].shape == (0, 3)


REGIONS = np.array([[0.5, 0.5, 5.2, 4.1], [1, 2, 3, 6], [-1, -1, 2, 2]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_roi_align(mode: str, coordinates: str, ratio: int) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "sampling_ratio": ratio}
    attrs |= {"output_height": 3, "output_width": 2, "spatial_scale": 0.8}
    agree("RoiAlign", [floats(2, 3, 8, 7, low=0), REGIONS, i64(0, 1, 0)], attrs, rtol=1e-4, atol=1e-5, opset=16)


def test_max_roi_pool() -> None:
    regions = np.array([[0, 0, 0, 5, 5], [1, 2, 1, 4, 6], [0, 6, 6, 20, 20]], np.float32)
    agree("MaxRoiPool", [floats(2, 3, 8, 7), regions], {"pooled_shape": (3, 2)}, opset=21)


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"boxes of shape \[batch, n, 4\]"):
        ours("NonMaxSuppression", [floats(1, 3, 5), floats(1, 1, 3)])
    with pytest.raises(ShapeError, match=r"scores of shape \[1, classes, 3\]"):
        ours("NonMaxSuppression", [floats(1, 3, 4), floats(1, 1, 2)])
