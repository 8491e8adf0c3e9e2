"""Gathers, scatters and sorts against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lite_runtime.errors import InputError, ShapeError, UnsupportedOpError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ints, ours

ROWS = [
    ("Gather", [floats(4, 5), ints(2, 3, low=-5, high=5)], {"axis": 1}),
    ("Gather", [floats(4, 5), np.array(-1)], {}),
    ("GatherElements", [floats(4, 5), ints(2, 5, low=-4, high=4)], {}),
    ("GatherND", [floats(3, 4, 5), ints(2, 2, low=0, high=3)], {}),
    ("GatherND", [floats(2, 4, 5), ints(2, 3, 1, low=-4, high=4)], {"batch_dims": 1}),
    ("OneHot", [ints(2, 3, low=-7, high=7), np.array(5), floats(2)], {"axis": 1}),
    ("Compress", [floats(3, 4), np.array([True, False, True])], {"axis": 0}),
    ("Compress", [floats(3, 4), np.array([False, True, True])], {}),
    ("NonZero", [ints(3, 4, low=0, high=2)], {}),
    ("ArrayFeatureExtractor", [floats(3, 4), i64(2, 0)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)])
def test_agrees(op: str, inputs: list[np.ndarray], attrs: dict[str, object]) -> None:
    agree(op, inputs, attrs)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    data = floats(4, 5)
    places = i64(0, 0, 3, -1) if reduction != "none" else i64(0, 2, 3, -3)
    agree("ScatterND", [data, places[:, None], floats(4, 5)], {"reduction": reduction})
    columns = np.tile(i64(0, 1, 1, -1) if reduction != "none" else i64(0, 1, 2, -1), (4, 1))
    agree("ScatterElements", [data, columns, floats(4, 4)], {"axis": 1, "reduction": reduction})


@pytest.mark.parametrize("attrs", [{}, {"sorted": 0}, {"axis": 0}, {"axis": 1, "sorted": 0}])
def test_unique(attrs: dict[str, int]) -> None:
    agree("Unique", [ints(4, 3, low=0, high=2).astype(np.float32)], attrs, outputs=4)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest: int) -> None:
    agree("TopK", [ints(6, 8, dtype=np.int32, low=0, high=4), i64(3)], {"largest": largest}, outputs=2)
    agree("TopK", [floats(6, 8), i64(4)], {"axis": 0, "largest": largest}, outputs=2)


@given(hnp.arrays(np.int32, st.integers(1, 8), elements=st.integers(0, 3)))
def test_top_k_of_everything_sorts_stably(x: np.ndarray) -> None:
    values, places = ours("TopK", [x, i64(len(x))], outputs=2)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    assert places.tolist() == order
    np.testing.assert_array_equal(values, x[order])


def test_scatter_after_gather_is_the_identity() -> None:
    data, places = floats(5, 4), np.argsort(floats(5, 4), 0).astype(np.int64)
    taken = ours("GatherElements", [data, places])[0]
    np.testing.assert_array_equal(ours("ScatterElements", [np.zeros_like(data), places, taken])[0], data)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    cache, update = floats(2, 3, 6, 4), floats(2, 3, 2, 4)
    got = ours("TensorScatter", [cache, update, i64(1, 4 if mode == "linear" else 5)], {"mode": mode})[0]
    wanted = cache.copy()
    wanted[0, :, 1:3] = update[0]
    wanted[1][:, [4, 5] if mode == "linear" else [5, 0]] = update[1]
    np.testing.assert_array_equal(got, wanted)


def test_indices_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"Gather 'it'.*\[-4, 3\], got 0 to 4"):
        ours("Gather", [floats(4), i64(0, 4)])


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="updates of shape"):
        ours("ScatterND", [floats(4, 5), i64(1)[:, None], floats(1, 4)])
    with pytest.raises(UnsupportedOpError, match="average"):
        ours("ScatterND", [floats(4), i64(1)[:, None], floats(1)], {"reduction": "average"})
    with pytest.raises(ShapeError, match=r"K in \[0, 3\]"):
        ours("TopK", [floats(3), i64(4)], outputs=2)
