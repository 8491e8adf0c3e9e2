"""Resizing, sampling, regions and boxes of images."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="vision")

RECORDS: tuple[Operator, ...] = (
    _op("AffineGrid", since=20, inputs=(2, 2), attrs="align_corners:i", reference="resize"),
    _op(
        "GridSample",
        since=16,
        inputs=(2, 2),
        attrs=("align_corners:i mode:s(linear|nearest|cubic|bilinear|bicubic) padding_mode:s(zeros|border|reflection)"),
        reference="resize",
    ),
    _op("ImageDecoder", since=20, attrs="pixel_format:s", reference="images"),
    _op("MaxRoiPool", since=1, inputs=(2, 2), attrs="pooled_shape:I! spatial_scale:f"),
    _op("NonMaxSuppression", since=10, inputs=(2, 5), attrs="center_point_box:i", traits=("flat",)),
    _op(
        "NonMaxSuppressionPadded",
        since=1,
        inputs=(3, 5),
        outputs=(2, 2),
        attrs="center_point_box:i",
        traits=("flat",),
        domain="msedge",
    ),
    _op(
        "Resize",
        since=10,
        inputs=(1, 4),
        attrs=(
            "antialias:i axes:I coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i "
            "extrapolation_value:f keep_aspect_ratio_policy:s mode:s(nearest|linear|cubic) nearest_mode:s"
        ),
        traits=("grows",),
        reference="resize",
        settings=(1, 2),
    ),
    _op(
        "RoiAlign",
        since=10,
        inputs=(3, 3),
        attrs=(
            "coordinate_transformation_mode:s mode:s(avg|max) output_height:i output_width:i sampling_ratio:i "
            "spatial_scale:f"
        ),
    ),
)
