"""Operators that only move or choose elements, on integers of 8 and 16 bits: native, and every bit the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.graph import Array
from tests.lite_runtime.ops.moved import moves
from tests.lite_runtime.ops.one_node import check

TYPES = ("int8", "uint8", "int16", "uint16")
Row = tuple[str, list[Array | tuple[int, ...] | None], dict[str, Any], tuple[int, ...]]


def indices(*values: int, shape: tuple[int, ...] = (-1,)) -> Array:
    return np.array(values, np.int64).reshape(shape)


# (operator, operands: a tuple of sizes stands for random elements, attributes, which operands are constants)
ROWS: list[Row] = [
    *(("Transpose", [(2, 5, 7, 13)], {"perm": perm}, ()) for perm in ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0))),
    ("Transpose", [(33, 65)], {"perm": (1, 0)}, ()),
    ("Concat", [(2, 3, 4), (2, 5, 4)], {"axis": 1}, ()),
    ("Concat", [(2, 3, 4), (2, 3, 1), (2, 3, 7)], {"axis": -1}, ()),
    *(
        ("Pad", [(3, 5, 4), indices(1, 2, 0, 0, 1, 3)], {"mode": mode}, (1,))
        for mode in ("constant", "edge", "reflect", "wrap")
    ),
    ("Slice", [(9, 8), *(indices(*v) for v in ((1, 7), (8, 0), (0, 1), (2, -3)))], {}, (1, 2, 3, 4)),
    ("Gather", [(9, 5), indices(1, -1, 3, 8, shape=(2, 2))], {"axis": 0}, ()),
    ("Gather", [(4, 9, 5), indices(1, 8, 0)], {"axis": 1}, (1,)),
    ("GatherND", [(4, 5, 6), indices(0, 1, 3, 4, shape=(2, 2))], {}, ()),
    ("GatherND", [(2, 5, 6), indices(1, 3, shape=(2, 1))], {"batch_dims": 1}, ()),
    ("GatherElements", [(3, 4), indices(*[0, 1, 2, 1] * 2, shape=(2, 4))], {"axis": 0}, ()),
    ("ScatterND", [(5, 3), indices(1, 4, shape=(2, 1)), (2, 3)], {}, ()),
    ("ScatterElements", [(5, 3), indices(1, 0, 2, shape=(1, 3)), (1, 3)], {"axis": 0}, ()),
    ("Expand", [(3, 1), indices(2, 3, 5)], {}, (1,)),
    ("Tile", [(3, 4), indices(2, 3)], {}, (1,)),
    *(
        (op, [shape if layout == "NCHW" else (shape[0], *shape[2:], shape[1])], {"layout": layout, **mode}, ())
        for layout in ("NCHW", "NHWC")
        for op, shape, mode in (
            ("DepthToSpace", (1, 8, 3, 5), {"blocksize": 2}),
            ("DepthToSpace", (2, 12, 3, 5), {"blocksize": 2, "mode": "CRD"}),
            ("SpaceToDepth", (1, 3, 4, 6), {"blocksize": 2}),
        )
    ),
    *(
        ("Resize", [shape, None, None, indices(1, *sizes)], {"mode": "nearest", **how}, (3,))
        for shape, sizes in (((1, 3, 5, 7), (3, 10, 9)), ((1, 5, 7, 3), (10, 9, 3)), ((1, 8, 8, 16), (4, 16, 16)))
        for how in (
            {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"},
            {"nearest_mode": "round_prefer_floor", "coordinate_transformation_mode": "half_pixel"},
            {"nearest_mode": "ceil", "coordinate_transformation_mode": "align_corners"},
        )
    ),
    ("Where", [np.arange(12).reshape(3, 4) % 3 == 0, (3, 4), (1, 4)], {}, ()),
    ("Max", [(40,), (3, 40)], {}, ()),
    ("Min", [(4, 10), (10,)], {}, ()),
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("row", range(len(ROWS)), ids=[f"{i}-{row[0]}" for i, row in enumerate(ROWS)])
def test_moved(row: int, dtype: str) -> None:
    op, operands, attrs, constants = ROWS[row]
    rng, ends = np.random.default_rng(row), np.iinfo(dtype)
    inputs = [
        rng.integers(ends.min, ends.max, o, dtype=dtype, endpoint=True) if isinstance(o, tuple) else o for o in operands
    ]
    check(op, inputs, attrs, constants=constants)


@pytest.mark.parametrize("dtype", TYPES)
def test_padded_with_any_value(dtype: str) -> None:
    ends = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(ends.min, ends.max, (3, 5, 4), dtype=dtype, endpoint=True)
    for value in (ends.min, ends.max, 7):
        check("Pad", [x, indices(0, 1, 2, 1, 0, 3), np.array(value, dtype)], constants=[1, 2])
        check("Clip", [x, np.array(min(value, 7), dtype), np.array(value, dtype)], constants=[1, 2])


@pytest.mark.parametrize("dtype", TYPES)
def test_views_and_pieces(dtype: str) -> None:
    x = np.arange(54).astype(dtype).reshape(6, 9)
    moves("Reshape", [x, indices(9, 6)], constants=[1])
    moves("Flatten", [x])
    moves("Squeeze", [x.reshape(1, 54, 1), indices(0)], constants=[1])
    moves("Unsqueeze", [x, indices(0, 3)], constants=[1])
    moves("Split", [x, indices(2, 4)], {"axis": 0}, constants=[1], outputs=2)
    moves("Split", [x], {"axis": 1, "num_outputs": 3}, outputs=3)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_signs(dtype: str) -> None:
    x = np.array([np.iinfo(dtype).min, -1, 0, 1, np.iinfo(dtype).max] * 9, dtype)
    for op in ("Relu", "Abs", "Neg", "Sign"):
        check(op, [x])
