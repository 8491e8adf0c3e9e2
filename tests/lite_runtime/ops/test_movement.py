"""Transposes, joins, cuts, repeats and borders against their references."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, DataDependent, Inference, Spec
from tests.lite_runtime.ops.moved import DTYPES, moves, some


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def inferred(op: str, inputs: list[Array | Spec | None], attrs: dict[str, Any], outputs: int = 1) -> list[Spec]:
    """The rule's result; a Spec is an operand with unknown value."""
    node = Node(op, tuple(f"i{i}" for i in range(len(inputs))), tuple(f"o{i}" for i in range(outputs)), attrs, "it")
    specs = [x if x is None or isinstance(x, Spec) else Spec(x.dtype.name, x.shape) for x in inputs]
    return list(INFERS[op](Inference(node, specs, [x if isinstance(x, np.ndarray) else None for x in inputs])))


# -- transposes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3, 33, 35), (2, 16, 16, 16), (1, 17, 5, 19), (3, 1, 1, 64), (2, 2, 70, 129)])
def test_transposes_of_images(shape: tuple[int, ...], dtype: str) -> None:
    x = some(shape, dtype)
    moves("Transpose", [x], {"perm": (0, 2, 3, 1)})
    moves("Transpose", [x], {"perm": (0, 3, 1, 2)})
    moves("Transpose", [x])


@pytest.mark.parametrize("perm", list(permutations(range(4))))
def test_every_permutation(perm: tuple[int, ...]) -> None:
    moves("Transpose", [some((3, 5, 18, 7))], {"perm": perm})
    moves("Transpose", [some((4, 2, 3, 2), "int8")], {"perm": perm})


@given(st.data())
def test_any_transpose(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=0, max_size=7)))
    perm = tuple(data.draw(st.permutations(range(len(shape)))))
    moves("Transpose", [some(shape, data.draw(st.sampled_from(DTYPES)))], {"perm": perm})


@pytest.mark.parametrize("shape", [(300, 500), (1000, 3), (3, 1000), (1, 100000), (65, 64)])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
def test_matrices(shape: tuple[int, int], dtype: str) -> None:
    moves("Transpose", [some(shape, dtype)])


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
@pytest.mark.parametrize("planes", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [5, 16, 17, 48, 20000])
def test_few_planes(planes: int, length: int, dtype: str) -> None:
    moves("Transpose", [some((2, planes, length), dtype)], {"perm": (0, 2, 1)})
    moves("Transpose", [some((2, length, planes), dtype)], {"perm": (0, 2, 1)})


def test_channel_shuffle_is_one_copy() -> None:
    moves("Transpose", [some((1, 2, 24, 11, 13))], {"perm": (0, 2, 1, 3, 4)})
    moves("Transpose", [some((1, 11, 13, 2, 24))], {"perm": (0, 1, 2, 4, 3)})


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize(("channels", "block"), [(4, 2), (12, 2), (27, 3), (64, 4), (5, 1)])
def test_blocks(layout: str, mode: str, channels: int, block: int) -> None:
    shape = (2, channels, 5, 18) if layout == "NCHW" else (2, 5, 18, channels)
    attrs = {"blocksize": block, "mode": mode, "layout": layout}
    (deep,) = moves("DepthToSpace", [some(shape)], attrs)
    moves("SpaceToDepth", [np.ascontiguousarray(deep)], attrs)
    moves("DepthToSpace", [some(shape, "int8")], attrs)


# -- joining and cutting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
def test_concat(axis: int, dtype: str) -> None:
    parts = []
    for i, size in enumerate((3, 0, 17, 1)):
        shape = [2, 4, 5, 7]
        shape[axis] = size
        parts.append(some(tuple(shape), dtype, i))
    moves("Concat", parts, {"axis": axis})
    moves("Concat", [parts[1], parts[2]], {"axis": axis})
    moves("Concat", parts, {"axis": axis}, constants=[0, 2])


def test_concat_of_scalars_in_vectors() -> None:
    moves("Concat", [some((1,), "int64", i) for i in range(5)], {"axis": 0})
    moves("Concat", [some((1, 1, 60000)), some((1, 1, 50000))], {"axis": 2})


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_split(axis: int) -> None:
    x = some((6, 6, 6, 6))
    moves("Split", [x], {"axis": axis, "num_outputs": 4}, outputs=4)
    moves("Split", [x, ints(1, 0, 5)], {"axis": axis}, outputs=3, constants=[1])
    moves("Split", [x[:1], ints(1)], {"axis": 0}, outputs=1, constants=[1])


@given(st.data())
def test_any_slice(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=5)))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    bound = st.integers(-20, 20) | st.sampled_from([-(2**63), 2**63 - 1])
    starts, ends = (ints(*(data.draw(bound) for _ in axes)) for _ in range(2))
    steps = ints(*(data.draw(st.integers(-4, 4).filter(bool)) for _ in axes))
    x = some(shape, data.draw(st.sampled_from(DTYPES)))
    moves("Slice", [x, starts, ends, ints(*axes), steps], constants=[1, 2, 3, 4])


def test_slices_that_models_use() -> None:
    x = some((1, 3, 64, 66))
    for begin in (0, 1):  # every other row and column
        inputs = [x, ints(begin, begin), ints(1 << 40, 1 << 40), ints(2, 3), ints(2, 2)]
        moves("Slice", inputs, constants=[1, 2, 3, 4])
    moves("Slice", [x, ints(-1), ints(-(1 << 62)), ints(3), ints(-1)], constants=[1, 2, 3, 4])
    moves("Slice", [x, ints(0, 1), ints(1, 3)], constants=[1, 2])


# -- repeating --------------------------------------------------------------------------------------------------------


@given(st.data())
def test_any_expand(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=5)))
    kept = tuple(1 if data.draw(st.booleans()) else n for n in shape)
    x = some(kept[data.draw(st.integers(0, next((i for i, n in enumerate(kept) if n != 1), len(kept)))) :])
    moves("Expand", [x, ints(*shape)], constants=[1])


@given(st.data())
def test_any_tile(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 6), max_size=4)))
    repeats = ints(*(data.draw(st.integers(0, 4)) for _ in shape))
    moves("Tile", [some(shape, data.draw(st.sampled_from(DTYPES))), repeats], constants=[1])


def test_long_repeats() -> None:
    moves("Expand", [some((1, 1)), ints(3, 100001)], constants=[1])
    moves("Expand", [some((1, 1000)), ints(300, 1000)], constants=[1])
    moves("Expand", [some((300, 1), "int8"), ints(300, 1000)], constants=[1])


# -- borders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 0, 1, 1, 0, 0, 1, 1), (0, 1, 2, 3, 0, 2, 0, 1), (0, 0, 9, 30, 0, 0, 3, 7)])
@pytest.mark.parametrize("shape", [(1, 3, 8, 9), (1, 8, 9, 3), (2, 3, 5, 1)])
def test_pads_of_images(shape: tuple[int, ...], pads: tuple[int, ...], mode: str) -> None:
    moves("Pad", [some(shape), ints(*pads)], {"mode": mode}, constants=[1])


@given(st.data())
def test_any_pad(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    most = 4 if mode in ("constant", "edge") else 3  # more repeated borders than MAX_BOXES stay with the reference
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, max_size=most))
    pads = []
    for axis in axes:
        before = data.draw(st.integers(1 - shape[axis], 3))
        pads.append((before, data.draw(st.integers(1 - shape[axis] - min(before, 0), 3))))
    amounts = ints(*(p for p, _ in pads), *(q for _, q in pads))
    dtype = data.draw(st.sampled_from(("bool", "int8", "float16", "float32", "int64")))
    value = some((), dtype, 1) if mode == "constant" and data.draw(st.booleans()) else None
    constant = [1, 2, 3] if data.draw(st.booleans()) or value is None else [1, 3]
    moves("Pad", [some(shape, dtype), amounts, value, ints(*axes)], {"mode": mode}, constants=constant)


# -- triangles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 5, -40, 1 << 62])
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
def test_trilu(upper: int, k: int | None, dtype: str) -> None:
    diagonal = None if k is None else np.array(k, np.int64)
    moves("Trilu", [some((2, 7, 9), dtype), diagonal], {"upper": upper}, constants=[1])
    moves("Trilu", [some((90, 70), dtype), diagonal], {"upper": upper}, constants=[1])


# -- what does not fit ------------------------------------------------------------------------------------------------

X = Spec("float32", (2, 3, 4, 4))
BAD: list[tuple[str, list[Array | Spec | None], dict[str, Any], int]] = [
    ("Transpose", [X], {"perm": (0, 1, 2)}, 1),
    ("Transpose", [X], {"perm": (0, 1, 2, 2)}, 1),
    ("Concat", [X, Spec("float32", (2, 3, 4))], {"axis": 1}, 1),
    ("Concat", [X, Spec("int32", X.shape)], {"axis": 1}, 1),
    ("Concat", [X, X], {"axis": 4}, 1),
    ("Split", [X, ints(1, 1)], {"axis": 1}, 2),
    ("Split", [X, ints(-1, 4)], {"axis": 1}, 2),
    ("Split", [X, ints(1, 1, 1)], {"axis": 1}, 2),
    ("Split", [X], {"axis": 1, "num_outputs": 9}, 2),
    ("Slice", [X, ints(0), ints(1), ints(4)], {}, 1),
    ("Slice", [X, ints(0), ints(1), ints(0), ints(0)], {}, 1),
    ("Slice", [X, ints(0), ints(1, 2)], {}, 1),
    ("Slice", [X, ints(0, 0), ints(1, 2), ints(1, -3)], {}, 1),
    ("Expand", [X, ints(5, 1)], {}, 1),
    ("Expand", [X, ints(-1)], {}, 1),
    ("Tile", [X, ints(1, 2)], {}, 1),
    ("Tile", [X, ints(1, 1, 1, -1)], {}, 1),
    ("Pad", [X, ints(1, 1)], {}, 1),
    ("Pad", [X, ints(0, 0, 0, 0, 0, 0, 0, -5)], {}, 1),
    ("Pad", [X, ints(0, 0, 0, -4, 0, 0, 0, 1)], {"mode": "edge"}, 1),
    ("Pad", [X, ints(0, 0, 0, 0, 0, 0, 0, 1)], {"mode": "mirror"}, 1),
    ("DepthToSpace", [X], {"blocksize": 2}, 1),
    ("DepthToSpace", [X], {"blocksize": 0}, 1),
    ("SpaceToDepth", [X], {"blocksize": 3}, 1),
    ("Trilu", [Spec("float32", (3,))], {}, 1),
    ("CenterCropPad", [X, ints(1)], {}, 1),
    ("ReverseSequence", [X, Spec("int64", (7,))], {}, 1),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "outputs"), BAD)
def test_what_does_not_fit(op: str, inputs: list[Array | Spec | None], attrs: dict[str, Any], outputs: int) -> None:
    with pytest.raises(ShapeError, match=f"{op} 'it': "):
        inferred(op, inputs, attrs, outputs)


def test_shapes_that_wait_for_values() -> None:
    for op, at in (("Expand", 1), ("Tile", 1), ("Pad", 1), ("Slice", 1), ("Compress", 1)):
        operands: list[Array | Spec | None] = [X, *[Spec("int64" if op != "Compress" else "bool", (4,))] * (at + 1)]
        with pytest.raises(DataDependent):
            inferred(op, operands[: 3 if op == "Slice" else 2], {})


def test_huge_results_are_not_allocated() -> None:
    assert inferred("Expand", [Spec("float32", (1,)), ints(1 << 40, 1 << 40)], {})[0].shape == (1 << 40, 1 << 40)
    assert inferred("Tile", [Spec("float32", (3,)), ints(1 << 62)], {})[0].shape == (3 << 62,)
