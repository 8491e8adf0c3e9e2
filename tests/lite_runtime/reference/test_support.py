"""What the families share."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from lite_runtime.errors import InputError, ShapeError
from lite_runtime.graph import DTYPES, dtype_name
from lite_runtime.reference.support import ONNX_TYPES, axes_of, axis_of, dtype_of, in_float32, optional_scalar, scalar


@pytest.mark.parametrize("code", range(1, len(ONNX_TYPES)))
def test_types_are_onnxs(code: int) -> None:
    theirs = onnx.helper.tensor_dtype_to_np_dtype(code)
    assert dtype_name(theirs) == ONNX_TYPES[code]
    assert dtype_of(code) == (np.dtype(object) if ONNX_TYPES[code] == "string" else theirs)
    assert ONNX_TYPES[code] in DTYPES


def test_unknown_type_is_refused() -> None:
    with pytest.raises(InputError, match="got 99"):
        dtype_of(99)


def test_axes() -> None:
    assert axis_of(-1, 3) == 2
    assert axes_of(np.array([-1, 0]), 3) == (2, 0)
    assert axes_of(None, 2) == (0, 1)
    with pytest.raises(ShapeError, match="distinct"):
        axes_of([0, -3], 3)


def test_scalars() -> None:
    assert scalar(np.array([[5]]), "it") == 5
    assert optional_scalar(None, 7, "it") == 7
    with pytest.raises(ShapeError, match=r"K to hold one element, got shape \(2,\)"):
        scalar(np.zeros(2), "K")


def test_narrow_floats_are_computed_wide() -> None:
    seen: list[np.dtype] = []

    @in_float32
    def twice(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(x.dtype)
        return x * 2, np.zeros(1, np.int64)

    doubled, counts = twice(np.ones(2, np.float16))
    assert (seen, doubled.dtype, counts.dtype) == ([np.dtype(np.float32)], np.float16, np.int64)
    assert twice(np.ones(2))[0].dtype == np.float64
