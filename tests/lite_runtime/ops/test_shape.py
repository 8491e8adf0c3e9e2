"""Operators about shapes against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, DataDependent, Inference, Spec
from tests.lite_runtime.ops.moved import DTYPES, moves, some


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def inferred(op: str, inputs: list[Array | Spec | None], attrs: dict[str, Any]) -> list[Spec]:
    node = Node(op, tuple(f"i{i}" for i in range(len(inputs))), ("o",), attrs, "it")
    specs = [x if x is None or isinstance(x, Spec) else Spec(x.dtype.name, x.shape) for x in inputs]
    return list(INFERS[op](Inference(node, specs, [x if isinstance(x, np.ndarray) else None for x in inputs])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype: str) -> None:
    x = some((2, 1, 6, 1), dtype)
    moves("Identity", [x])
    moves("Reshape", [x, ints(3, -1)], constants=[1])
    moves("Reshape", [x, ints(0, 0, 2, 3, 1)], constants=[1])
    moves("Flatten", [x], {"axis": -1})
    moves("Flatten", [x], {"axis": 4})
    moves("Squeeze", [x])
    moves("Squeeze", [x, ints(-1)], constants=[1])
    moves("Unsqueeze", [x, ints(0, -1, 3)], constants=[1])


def test_views_of_nothing() -> None:
    moves("Reshape", [some((0, 3)), ints(3, 0)], {"allowzero": 1}, constants=[1])
    moves("Flatten", [some((0, 3))])
    moves("Reshape", [some((1,)), np.zeros(0, np.int64)], constants=[1])


def test_dropout_in_inference() -> None:
    x = some((3, 5))
    moves("Dropout", [x], outputs=2)
    moves("Dropout", [x, np.array(0.5, np.float32), np.array(False)], outputs=2, constants=[1, 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_of_shape(dtype: str) -> None:
    moves("ConstantOfShape", [ints(300, 401)], {"value": some((1,), dtype)}, constants=[0])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
def test_one_hot(axis: int, index: str, dtype: str) -> None:
    indices = np.random.default_rng(0).integers(-12, 12, (5, 7)).astype(index)
    moves("OneHot", [indices, np.array(9), some((2,), dtype)], {"axis": axis}, constants=[1])


GOOD: list[tuple[str, list[Array | Spec | None], dict[str, Any], Spec]] = [
    ("Shape", [Spec("int8", (2, 3, 4))], {}, Spec("int64", (3,))),
    ("Shape", [Spec("int8", (2, 3, 4))], {"start": -2, "end": 9}, Spec("int64", (2,))),
    ("Shape", [Spec("int8", (2, 3, 4))], {"start": 2, "end": 1}, Spec("int64", (0,))),
    ("Size", [Spec("int8", (2, 3, 4))], {}, Spec("int64", ())),
    ("Range", [np.array(7), np.array(-3), np.array(-4)], {}, Spec("int64", (3,))),
    ("Range", [np.float32(0), np.float32(1), np.float32(0.3)], {}, Spec("float32", (4,))),
    ("Range", [np.float64(0), np.float64(-1), np.float64(0.3)], {}, Spec("float64", (0,))),
    ("EyeLike", [Spec("float32", (2, 3))], {"dtype": 7}, Spec("int64", (2, 3))),
    ("NonZero", [np.array([[0, 1], [2, 3]])], {}, Spec("int64", (2, 3))),
    ("Constant", [], {"value_floats": (1.0, 2.0)}, Spec("float32", (2,))),
    ("Constant", [], {"value_int": 3}, Spec("int64", ())),
    ("Constant", [], {"value_strings": ("a",)}, Spec("string", (1,))),
    ("ConstantOfShape", [ints(1 << 60, 1 << 60)], {}, Spec("float32", (1 << 60, 1 << 60))),
    ("Reshape", [Spec("int8", (2, 3)), ints(-1)], {}, Spec("int8", (6,))),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "wanted"), GOOD)
def test_types(op: str, inputs: list[Array | Spec | None], attrs: dict[str, Any], wanted: Spec) -> None:
    operands = [np.asarray(x) if isinstance(x, np.generic) else x for x in inputs]
    assert inferred(op, operands, attrs) == [wanted]


X = Spec("float32", (2, 3))
BAD: list[tuple[str, list[Array | Spec | None], dict[str, Any]]] = [
    ("Reshape", [X, ints(4)], {}),
    ("Reshape", [X, ints(-1, -1)], {}),
    ("Reshape", [X, ints(-2, -3)], {}),
    ("Reshape", [X, ints(2, 3, 0)], {}),
    ("Reshape", [X, ints(0, -1)], {"allowzero": 1}),
    ("Reshape", [Spec("float32", (0, 3)), ints(0, -1)], {}),
    ("Flatten", [X], {"axis": 3}),
    ("Squeeze", [X, ints(0)], {}),
    ("Squeeze", [X, ints(2)], {}),
    ("Unsqueeze", [X, ints(0, 0)], {}),
    ("Unsqueeze", [X, ints(5)], {}),
    ("Range", [np.array(0), np.array(5), np.array(0)], {}),
    ("Range", [np.array(0.0), np.array(np.inf), np.array(1.0)], {}),
    ("Range", [np.array(0.0), np.array(5), np.array(1.0)], {}),
    ("ConstantOfShape", [ints(3, -1)], {}),
    ("ConstantOfShape", [ints(3)], {"value": np.zeros(2)}),
    ("EyeLike", [Spec("float32", (2,))], {}),
    ("EyeLike", [X], {"dtype": 999}),
    ("OneHot", [X, np.array(-1), Spec("float32", (2,))], {}),
    ("OneHot", [X, np.array(2), Spec("float32", (3,))], {}),
    ("OneHot", [X, np.array(2), Spec("float32", (2,))], {"axis": 3}),
    ("Constant", [], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), BAD)
def test_what_does_not_fit(op: str, inputs: list[Array | Spec | None], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match=f"{op} 'it': "):
        inferred(op, inputs, attrs)


def test_shapes_that_wait_for_values() -> None:
    for op in ("Reshape", "Unsqueeze", "ConstantOfShape", "NonZero"):
        with pytest.raises(DataDependent):
            inferred(op, [X, Spec("int64", (1,))] if op in ("Reshape", "Unsqueeze") else [Spec("int64", (1,))], {})
