"""Linear resizing of integers by integer weights: no float arithmetic on elements, no requantisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.registry import define
from lite_runtime.reference.resize import sizes_of, source_places
from lite_runtime.reference.support import axes_of, require

__all__ = ["BITS", "MOST_AXES", "blends"]

BITS = 11
"""The two weights of an axis are integers that sum to 2 ** BITS."""
MOST_AXES = 4
"""Greatest number of axes for which the product of weights and a 16-bit element fits an int64."""


def blends(n_in: int, n_out: int, scale: float, mode: str) -> tuple[Array, Array, Array]:
    """For each output along an axis: the two inputs that surround it and the second one's weight of 2 ** BITS (int64).

    scale: output over input. mode: a coordinate_transformation_mode of Resize except tf_crop_and_resize. Positions
    beyond an end of the axis take the end's element. Weights are rounded half to even.
    """
    at = np.clip(source_places(n_in, n_out, scale, mode), 0, max(n_in - 1, 0))
    low = np.floor(at)
    weight = np.rint((at - low) * (1 << BITS)).astype(np.int64)
    first = low.astype(np.int64)
    return first, np.minimum(first + 1, max(n_in - 1, 0)), weight


@define("QLinearResize")
def _qlinear_resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    /,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Resize with mode linear on int8, uint8 or int16: the weights of every axis have 11 bits, the weighted sum is
    exact, halves are rounded up at the end: floor(sum / 2 ** (11 * axes) + 1/2). x and the result share scale and zero
    point, which are therefore not needed."""
    plain = mode == "linear" and not antialias and not exclude_outside
    if not plain or coordinate_transformation_mode == "tf_crop_and_resize":
        raise UnsupportedOpError(
            "expected mode linear without antialias, exclude_outside and tf_crop_and_resize, got "
            f"{mode}, {antialias}, {exclude_outside}, {coordinate_transformation_mode}"
        )
    where = axes_of(axes, x.ndim)
    factors, lengths = sizes_of(x, where, scales, sizes, keep_aspect_ratio_policy)
    total, bits = x.astype(np.int64), 0
    for axis, scale, length in zip(where, factors, lengths, strict=True):
        first, second, weight = blends(x.shape[axis], length, scale, coordinate_transformation_mode)
        if length == x.shape[axis] and not weight.any() and np.array_equal(first, np.arange(length)):
            continue
        bits += BITS
        along = weight.reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        total = np.take(total, first, axis) * ((1 << BITS) - along) + np.take(total, second, axis) * along
    require(bits <= BITS * MOST_AXES, f"expected at most {MOST_AXES} axes to change, got {bits // BITS}")
    return (total + (1 << bits >> 1) >> bits).astype(x.dtype)
