"""LookupTable: every byte, every element size, lengths with and without vectors and tails."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

RESULTS = ("int8", "uint8", "bool", "int16", "uint16", "float16", "int32", "uint32", "float32")
LENGTHS = (0, 1, 15, 16, 63, 64, 65, 127, 1000, 20011)


def of_bytes(*shape: int, dtype: str, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).view(dtype)


def table(dtype: str) -> Array:
    return np.asarray(np.random.default_rng(9).integers(0, 1 << 16, 256)).astype(dtype)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_length(dtype: str, result: str) -> None:
    for n in LENGTHS:
        check("LookupTable", [of_bytes(n, dtype=dtype), table(result)], constants=[1], rtol=0, atol=0)
    check("LookupTable", [of_bytes(2, 3, 0, 5, dtype=dtype), table(result)], constants=[1], rtol=0, atol=0)
    check("LookupTable", [of_bytes(3, 5, 7, dtype=dtype), table(result)], constants=[1], rtol=0, atol=0)


def test_places_count_from_the_least_value() -> None:
    squares = np.arange(-128, 128) ** 2
    x = np.arange(-128, 128).astype(np.int8)
    (got,) = check("LookupTable", [x, squares.astype(np.int16)], constants=[1])
    np.testing.assert_array_equal(got, squares)
    (got,) = check("LookupTable", [x.view(np.uint8), np.arange(256).astype(np.uint8)], constants=[1])
    np.testing.assert_array_equal(got, x.view(np.uint8))


def test_a_table_that_is_computed_takes_the_reference() -> None:
    check("LookupTable", [of_bytes(20, dtype="int8"), table("int8")], native=False)
    check("LookupTable", [of_bytes(20, dtype="int8"), table("int64")], constants=[1], native=False)


@pytest.mark.parametrize(
    ("data", "values"),
    [(Spec("int16", (3,)), Spec("int8", (256,))), (Spec("int8", (3,)), Spec("int8", (255,)))],
)
def test_operands_that_do_not_fit_are_refused(data: Spec, values: Spec) -> None:
    with pytest.raises(ShapeError, match="LookupTable"):
        INFERS["LookupTable"](Inference(Node("LookupTable", ("x", "t"), ("y",), {}), (data, values), (None, None)))


def everything() -> None:
    """What one process shows of a target."""
    for dtype in ("int8", "uint8"):
        for result in ("int8", "int16", "float32"):
            test_every_length(dtype, result)


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, everything)
