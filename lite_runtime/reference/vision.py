"""Boxes and regions of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, optional_scalar, require

__all__: list[str] = []


def _corners(boxes: Array, center_point_box: int) -> Array:
    """(…, 4) as (y low, x low, y high, x high), from a centre and a size or from any two opposite corners."""
    if center_point_box:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with several; 0 if both have no area."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), -1)
    areas = np.prod(others[:, 2:] - others[:, :2], -1) + np.prod(box[2:] - box[:2]) - shared
    return np.where(areas > 0, shared / areas, 0)


@define("NonMaxSuppression")
def _non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    /,
    center_point_box: int = 0,
) -> Array:
    """(batch, class, box) of the selected boxes, best first: (selected, 3)."""
    require(boxes.ndim == 3 and boxes.shape[2] == 4, f"expected boxes of shape [batch, n, 4], got {boxes.shape}")
    expected = (boxes.shape[0], boxes.shape[1])
    require(
        scores.ndim == 3 and (scores.shape[0], scores.shape[2]) == expected,
        f"expected scores of shape [{expected[0]}, classes, {expected[1]}], got {scores.shape}",
    )
    most = int(optional_scalar(max_output_boxes_per_class, 0, "max_output_boxes_per_class"))
    overlap = float(optional_scalar(iou_threshold, 0.0, "iou_threshold"))
    least = float(optional_scalar(score_threshold, -np.inf, "score_threshold"))
    corners = _corners(boxes, center_point_box)
    kept: list[tuple[int, int, int]] = []
    for batch, label in np.ndindex(*scores.shape[:2]):
        ranked = np.argsort(-scores[batch, label], kind="stable")
        left = ranked[scores[batch, label][ranked] > least]
        for _ in range(most):
            if not left.size:
                break
            kept.append((batch, label, int(left[0])))
            left = left[1:][_overlap(corners[batch, left[0]], corners[batch, left[1:]]) <= overlap]
    return np.array(kept, np.int64).reshape(-1, 3)


@define("NonMaxSuppressionPadded")
def _non_max_suppression_padded(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    /,
    center_point_box: int = 0,
) -> tuple[Array, Array]:
    """NonMaxSuppression's rows, then rows of zeros up to the greatest possible number, and how many are meant: (1,)."""
    most = max_output_boxes_per_class
    kept = _non_max_suppression(boxes, scores, most, iou_threshold, score_threshold, center_point_box=center_point_box)
    each = min(max(int(optional_scalar(most, 0, "max_output_boxes_per_class")), 0), boxes.shape[1])
    rows = np.zeros((scores.shape[0] * scores.shape[1] * each, 3), np.int64)
    rows[: len(kept)] = kept
    return rows, np.array([len(kept)], np.int64)


@define("RoiAlign")
@in_float32
def _roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    /,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Each region (x1, y1, x2, y2) is divided into bins; each bin is the mean or maximum of bilinear samples."""
    if mode not in ("avg", "max"):
        raise UnsupportedOpError(f"expected mode avg or max, got {mode!r}")
    half = coordinate_transformation_mode == "half_pixel"
    y = np.empty((len(rois), x.shape[1], output_height, output_width), x.dtype)
    for i, (roi, batch) in enumerate(zip(rois, batch_indices, strict=True)):
        x1, y1, x2, y2 = (float(v) * spatial_scale - (0.5 if half else 0) for v in roi)
        w, h = (x2 - x1, y2 - y1) if half else (max(x2 - x1, 1.0), max(y2 - y1, 1.0))
        rows = _samples(y1, h, output_height, sampling_ratio, x.shape[2])
        columns = _samples(x1, w, output_width, sampling_ratio, x.shape[3])
        y[i] = _bins(x[int(batch)], rows, columns, mode)
    return y


def _samples(start: float, length: float, bins: int, ratio: int, size: int) -> tuple[Array, Array, Array, Array]:
    """(bins, samples) each: lower pixel, upper pixel, weight of the upper, whether the position counts."""
    count = ratio if ratio > 0 else max(1, int(np.ceil(length / bins)))
    step = length / bins
    at = start + (np.arange(bins)[:, None] + (np.arange(count) + 0.5) / count) * step
    counts = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), at - low, counts


def _bins(image: Array, rows: tuple[Array, ...], columns: tuple[Array, ...], mode: str) -> Array:
    """image (c, h, w) -> (c, row bins, column bins)."""
    (top, bottom, down, row_counts), (left, right, across, column_counts) = rows, columns
    total: list[Array] = []
    for row, row_share in ((top, 1 - down), (bottom, down)):
        for column, column_share in ((left, 1 - across), (right, across)):
            read = image[:, row[:, :, None, None], column[None, None]]  # (c, rows, samples, columns, samples)
            total.append(read * (row_share[:, :, None, None] * column_share[None, None]))
    counts = row_counts[:, :, None, None] & column_counts[None, None]
    parts = np.stack(total) * counts
    if mode == "avg":
        return np.asarray(parts.sum(0).mean((2, 4)))
    return np.asarray(parts.max(0).max((2, 4)))


@define("MaxRoiPool")
@in_float32
def _max_roi_pool(x: Array, rois: Array, /, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array:
    """Regions (batch, x1, y1, x2, y2) in integer pixels, both ends inclusive, divided into bins; the maximum of
    each."""
    y = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
    for i, roi in enumerate(rois):
        image = x[int(roi[0])]
        x1, y1, x2, y2 = (int(np.floor(float(v) * spatial_scale + 0.5)) for v in roi[1:])
        rows = _edges(y1, y2, pooled_shape[0], x.shape[2])
        columns = _edges(x1, x2, pooled_shape[1], x.shape[3])
        for r, c in np.ndindex(*pooled_shape):
            cut = image[:, rows[r], columns[c]]
            if cut.size:
                y[i, :, r, c] = cut.max((1, 2))
    return y


def _edges(low: int, high: int, bins: int, size: int) -> list[slice]:
    length = max(high - low + 1, 1) / bins
    starts = [min(max(int(np.floor(b * length)) + low, 0), size) for b in range(bins)]
    ends = [min(max(int(np.ceil((b + 1) * length)) + low, 0), size) for b in range(bins)]
    return [slice(s, e) for s, e in zip(starts, ends, strict=True)]
