"""Resize against its reference: modes, coordinates, layouts, ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.moved import DTYPES, moves, some

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
ROUNDING = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def by_scales(x: Array, scales: list[float], **attrs: Any) -> None:
    tolerance = 0.0 if attrs.get("mode", "nearest") == "nearest" else 2e-5
    moves("Resize", [x, None, np.array(scales, np.float32)], attrs, constants=[2], tolerance=tolerance)


def by_sizes(x: Array, sizes: list[int], **attrs: Any) -> None:
    tolerance = 0.0 if attrs.get("mode", "nearest") == "nearest" else 2e-5
    moves("Resize", [x, None, None, np.array(sizes, np.int64)], attrs, constants=[3], tolerance=tolerance)


@pytest.mark.parametrize("mode", COORDINATES)
@pytest.mark.parametrize("rounding", ROUNDING)
def test_nearest(mode: str, rounding: str) -> None:
    attrs = {"coordinate_transformation_mode": mode, "nearest_mode": rounding}
    x = some((2, 3, 9, 10))
    by_scales(x, [1, 1, 2, 2], **attrs)
    by_scales(x, [1, 1, 0.6, 1.7], **attrs)
    by_sizes(x, [2, 3, 4, 23], **attrs)
    by_sizes(x, [2, 3, 1, 1], **attrs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 2, 3, 16, 37])
def test_nearest_of_any_type_and_layout(channels: int, dtype: str) -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    by_scales(some((2, 5, 7, channels), dtype), [1, 2, 2, 1], **attrs)
    by_scales(some((2, channels, 5, 7), dtype), [1, 1, 3, 2], **attrs)
    by_scales(some((1, channels, 3, 5, 4), dtype), [1, 1, 2, 2, 2], **attrs)
    by_scales(some((5, 7), dtype), [2, 1], **attrs)
    by_scales(some((5,), dtype), [2.5], **attrs)


@pytest.mark.parametrize("mode", COORDINATES)
@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("more", [{}, {"antialias": 1}, {"exclude_outside": 1}])
def test_blending(mode: str, kind: str, more: dict[str, Any]) -> None:
    attrs = {"mode": kind, "coordinate_transformation_mode": mode, **more}
    for x, up, down in (
        (some((2, 3, 9, 10)), [1, 1, 2, 2], [1, 1, 0.4, 0.7]),
        (some((2, 9, 10, 19)), [1, 2, 3.3, 1], [1, 0.3, 2, 1]),
    ):
        by_scales(x, up, **attrs)
        by_scales(x, down, **attrs)
    by_sizes(some((1, 2, 5, 6, 7)), [1, 2, 8, 3, 7], **attrs)
    by_sizes(some((1, 2, 5, 6)), [1, 2, 1, 1], **attrs)


@given(st.data())
def test_any_resize(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    sizes = [data.draw(st.integers(1, 20)) for _ in axes]
    by_sizes(
        some(tuple(shape)),
        sizes,
        axes=tuple(axes),
        mode=data.draw(st.sampled_from(["nearest", "linear", "cubic"])),
        coordinate_transformation_mode=data.draw(st.sampled_from(COORDINATES)),
        nearest_mode=data.draw(st.sampled_from(ROUNDING)),
        keep_aspect_ratio_policy=data.draw(st.sampled_from(["stretch", "not_larger", "not_smaller"])),
    )


def test_what_only_the_reference_does() -> None:
    scales = np.array([1, 1, 2, 2], np.float32)
    roi = np.array([0, 0, 0.2, 0.3, 1, 1, 0.9, 1.2], np.float32)
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear", "extrapolation_value": 7.0}
    moves("Resize", [some((1, 1, 4, 4)), roi, scales], attrs, constants=[1, 2], reference=True)
    moves("Resize", [some((1, 1, 4, 4), "int8"), None, scales], {"mode": "linear"}, constants=[2], reference=True)


def test_large_images() -> None:
    by_scales(some((1, 40, 40, 65)), [1, 2, 2, 1], mode="linear")
    by_scales(some((1, 5, 120, 131)), [1, 1, 2, 2], mode="linear")
    by_scales(some((1, 5, 120, 131)), [1, 1, 2, 2])


X = Spec("float32", (1, 2, 4, 4))
BAD: list[tuple[list[Array | Spec | None], dict[str, Any]]] = [
    ([X], {}),
    ([X, None, np.ones(4, np.float32), np.ones(4, np.int64)], {}),
    ([X, None, np.ones(3, np.float32)], {}),
    ([X, None, np.array([1, 1, 0, 1], np.float32)], {}),
    ([X, None, np.array([1, 1, np.nan, 1], np.float32)], {}),
    ([X, None, np.array([1, 1, np.inf, 1], np.float32)], {}),
    ([X, None, None, np.array([1, 1, -1, 1])], {}),
    ([Spec("float32", (1, 2, 0, 4)), None, None, np.array([1, 2, 3, 4])], {}),
    ([X, None, np.ones(4, np.float32)], {"mode": "area"}),
    ([X, None, np.ones(4, np.float32)], {"nearest_mode": "up"}),
    ([X, None, np.ones(4, np.float32)], {"coordinate_transformation_mode": "middle"}),
    ([X, None, np.ones(4, np.float32)], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
    ([X, None, np.ones(2, np.float32)], {"axes": (2, 2)}),
    ([X, None, None, np.ones(2, np.int64)], {"axes": (2, 3), "keep_aspect_ratio_policy": "fit"}),
]


@pytest.mark.parametrize(("inputs", "attrs"), BAD)
def test_what_does_not_fit(inputs: list[Array | Spec | None], attrs: dict[str, Any]) -> None:
    node = Node("Resize", tuple(f"i{i}" for i in range(len(inputs))), ("o",), attrs, "it")
    specs = [x if x is None or isinstance(x, Spec) else Spec(x.dtype.name, x.shape) for x in inputs]
    with pytest.raises(ShapeError, match="Resize 'it': "):
        INFERS["Resize"](Inference(node, specs, [x if isinstance(x, np.ndarray) else None for x in inputs]))
