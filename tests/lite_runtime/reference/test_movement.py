"""Operators that move elements, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import ShapeError, UnsupportedOpError
from tests.lite_runtime.reference.oracle import agree, floats, i64, ints, ours, texts

ROWS = [
    ("Reshape", [floats(2, 3, 4), i64(0, -1)], {}),
    ("Reshape", [floats(2, 0), i64(0, 5)], {"allowzero": 1}),
    ("Flatten", [floats(2, 3, 4)], {"axis": -1}),
    ("Squeeze", [floats(1, 3, 1)], {}),
    ("Squeeze", [floats(1, 3, 1), i64(-1)], {}),
    ("Unsqueeze", [floats(3, 4), i64(0, -1)], {}),
    ("Transpose", [floats(2, 3, 4)], {}),
    ("Transpose", [floats(2, 3, 4)], {"perm": (1, 2, 0)}),
    ("Concat", [floats(2, 3), floats(2, 1)], {"axis": -1}),
    ("Concat", [texts("a"), texts("b", "c")], {"axis": 0}),
    ("Expand", [floats(3, 1), i64(2, 1, 4)], {}),
    ("Tile", [floats(2, 3), i64(2, 2)], {}),
    ("Shape", [floats(2, 3, 4)], {"start": 1}),
    ("Shape", [floats(2, 3, 4)], {"start": -2, "end": -1}),
    ("Size", [floats(2, 3)], {}),
    ("Trilu", [floats(2, 4, 3), np.array(1)], {"upper": 0}),
    ("Trilu", [ints(4, 4), np.array(-1)], {}),
    ("EyeLike", [floats(3, 4)], {"k": 1, "dtype": 7}),
    ("Range", [np.array(10), np.array(1), np.array(-3)], {}),
    ("Range", [np.array(0.5, np.float32), np.array(2.1, np.float32), np.array(0.25, np.float32)], {}),
    ("ConstantOfShape", [i64(2, 3)], {"value": np.array([7], np.int32)}),
    ("DepthToSpace", [floats(2, 12, 3, 2)], {"blocksize": 2}),
    ("DepthToSpace", [floats(2, 12, 3, 2)], {"blocksize": 2, "mode": "CRD"}),
    ("SpaceToDepth", [floats(2, 3, 4, 6)], {"blocksize": 2}),
    ("ReverseSequence", [floats(4, 3), i64(4, 1, 2)], {"batch_axis": 1, "time_axis": 0}),
    ("ReverseSequence", [floats(3, 4, 2), i64(4, 1, 2)], {"batch_axis": 0, "time_axis": 1}),
    ("CenterCropPad", [floats(5, 2), i64(2, 5)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), ROWS, ids=[f"{r[0]}-{i}" for i, r in enumerate(ROWS)])
def test_agrees(op: str, inputs: list[np.ndarray], attrs: dict[str, object]) -> None:
    agree(op, inputs, attrs)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode: str) -> None:
    agree("Pad", [floats(4, 5), i64(1, 2, 0, 3)], {"mode": mode})


def test_pad_cuts_where_negative() -> None:
    agree("Pad", [floats(4, 5), i64(-1, 2, 2, -1), np.array(9, np.float32)])
    agree("Pad", [floats(4, 5), i64(2, 1), np.array(9, np.float32), i64(-1)])


@pytest.mark.parametrize("attrs", [{}, {"axis": 1}])
def test_split(attrs: dict[str, int]) -> None:
    agree("Split", [floats(4, 6), i64(1, 3)] if not attrs else [floats(4, 6), i64(2, 4)], attrs, outputs=2)
    agree("Split", [floats(5, 5)], {**attrs, "num_outputs": 2}, outputs=2)


bound = st.integers(-9, 9)


@given(bound, bound, st.integers(-3, 3).filter(bool), st.integers(0, 5))
def test_slice_follows_onnxs_clamping(start: int, end: int, step: int, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    got = ours("Slice", [x, i64(start), i64(end), i64(0), i64(step)])[0]
    first, last = (v + size if v < 0 else v for v in (start, end))
    clamp = (lambda v: min(max(v, 0), size)) if step > 0 else (lambda v: min(max(v, -1), size - 1))
    first = min(max(first, 0), size if step > 0 else size - 1)
    expected = [x[i] for i in range(first, clamp(last), step) if 0 <= i < size]
    assert got.tolist() == expected


def test_slice_agrees() -> None:
    x = floats(6, 7)
    agree("Slice", [x, i64(-1, 1), i64(-100, 100), i64(0, 1), i64(-2, 3)])
    agree("Slice", [x, i64(1), i64(-1)])


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_channels_last(op: str, mode: str) -> None:
    x, attrs = floats(2, 8, 4, 6), {"blocksize": 2, "mode": mode}
    last = ours(op, [x.transpose(0, 2, 3, 1)], {**attrs, "layout": "NHWC"})[0]
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), ours(op, [x], attrs)[0])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space_undo_each_other(mode: str) -> None:
    x, attrs = floats(1, 18, 2, 4), {"blocksize": 3, "mode": mode}
    np.testing.assert_array_equal(ours("SpaceToDepth", [ours("DepthToSpace", [x], attrs)[0]], attrs)[0], x)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "text"),
    [
        ("Reshape", [floats(2, 3), i64(4, 2)], {}, "6 elements"),
        ("Squeeze", [floats(2, 3), i64(0)], {}, "size 1"),
        ("Transpose", [floats(2, 3)], {"perm": (0, 0)}, "permutation"),
        ("Concat", [floats(2, 3), floats(3, 3)], {"axis": 1}, "axis 1 only"),
        ("Split", [floats(5), i64(1, 2)], {}, "add up to 5"),
        ("Slice", [floats(5), i64(0), i64(3), i64(0), i64(0)], {}, "other than 0"),
        ("Pad", [floats(5), i64(1)], {}, "2 pads"),
        ("DepthToSpace", [floats(1, 3, 2, 2)], {"blocksize": 2}, "divisible by 4"),
        ("Tile", [floats(5), i64(1, 2)], {}, "1 repeats"),
    ],
)
def test_misfits_are_refused(op: str, inputs: list[np.ndarray], attrs: dict[str, object], text: str) -> None:
    with pytest.raises(ShapeError, match=f"{op} 'it'.*{text}"):
        ours(op, inputs, attrs)


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="NCWH"):
        ours("DepthToSpace", [floats(1, 4, 2, 2)], {"blocksize": 2, "layout": "NCWH"})
