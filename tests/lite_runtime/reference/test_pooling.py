"""Pools against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ints, ours

WINDOWS = [
    ((2, 3, 8), {"kernel_shape": (3,), "strides": (2,)}),
    ((2, 3, 8, 7), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 2)}),
    ((1, 2, 8, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}),
    ((1, 2, 7, 7), {"kernel_shape": (2, 2), "dilations": (2, 2)}),
    ((1, 2, 7, 6), {"kernel_shape": (3, 3), "auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ((1, 2, 7, 6), {"kernel_shape": (2, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 2, 4, 5, 6), {"kernel_shape": (2, 2, 3), "strides": (1, 2, 2)}),
]


@pytest.mark.parametrize(("shape", "attrs"), WINDOWS)
def test_pools(shape: tuple[int, ...], attrs: dict[str, object]) -> None:
    x = floats(*shape)
    agree("MaxPool", [x], attrs, outputs=2)
    agree("AveragePool", [x], attrs)
    agree("LpPool", [x], {**attrs, "p": 3}, rtol=2e-5)
    if "auto_pad" not in attrs and not attrs.get("ceil_mode"):
        agree("AveragePool", [x], {**attrs, "count_include_pad": 1})


def test_max_pool_of_bytes_and_column_order() -> None:
    attrs = {"kernel_shape": (2, 2), "pads": (1, 1, 0, 0)}
    agree("MaxPool", [ints(1, 2, 5, 4, dtype=np.int8, low=-100, high=-1)], attrs)
    agree("MaxPool", [floats(1, 2, 5, 4)], {**attrs, "storage_order": 1}, outputs=2)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global(op: str) -> None:
    agree(op, [floats(2, 3, 5, 4)], rtol=2e-5, opset=21)


@pytest.mark.parametrize(
    "op", ["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]
)
def test_channels_last(op: str) -> None:
    x = floats(2, 3, 6, 5)
    attrs = {} if op.startswith("Global") else {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 1)}
    last = ours(op, [x.transpose(0, 2, 3, 1)], {**attrs, "layout": "NHWC"})[0]
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), ours(op, [x], attrs)[0])


def test_a_window_over_everything_is_the_global_pool() -> None:
    x = floats(1, 2, 4, 4)
    whole = {"kernel_shape": (4, 4)}
    np.testing.assert_array_equal(ours("MaxPool", [x], whole)[0], ours("GlobalMaxPool", [x])[0])
    np.testing.assert_allclose(
        ours("AveragePool", [x], whole)[0], ours("GlobalAveragePool", [x])[0], rtol=1e-6, atol=1e-6
    )


def test_unpool_puts_back() -> None:
    x = floats(2, 3, 6, 6)
    attrs = {"kernel_shape": (2, 2), "strides": (2, 2)}
    pooled, places = ours("MaxPool", [x], attrs, 2)
    back = ours("MaxUnpool", [pooled, places], attrs)[0]
    assert np.array_equal(back, np.where(back == x, x, 0))
    np.testing.assert_array_equal(ours("MaxPool", [np.where(back == 0, -9, back)], attrs)[0], pooled)
    agree("MaxUnpool", [pooled, places, i64(2, 3, 6, 6)], attrs)


def test_kernel_larger_than_the_input_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"MaxPool 'it'.*within the padded input"):
        ours("MaxPool", [floats(1, 1, 2, 2)], {"kernel_shape": (3, 3)})
