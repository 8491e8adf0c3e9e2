"""Inputs generated from a signature, and read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.measuring.samples import draw, ranges_of, read_arrays, samples_in, sized
from lite_runtime.errors import InputError
from lite_runtime.graph import Graph, Node, Value

X = Value("x", "float32", ("n", 3))
Y = Value("y", "int64", ("n",))


def test_a_symbol_has_one_size_everywhere() -> None:
    assert sized([X, Y], {}) == {"x": (1, 3), "y": (1,)}
    assert sized([X, Y], {"y": (5,)}) == {"x": (5, 3), "y": (5,)}


@pytest.mark.parametrize("shapes", [{"x": (2, 4)}, {"x": (2,)}, {"x": (2, 3), "y": (3,)}, {"z": (1,)}])
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match="--input-shape"):
        sized([X, Y], shapes)


def test_drawn_values_have_the_declared_types() -> None:
    values = [X, Y, Value("b", "bool", (4,)), Value("u", "uint8", (1000,)), Value("c", "complex64", (2,))]
    drawn = draw(values, np.random.default_rng(0))
    assert {name: str(a.dtype) for name, a in drawn.items()} == {v.name: v.dtype for v in values}
    assert drawn["u"].max() > 200 and set(drawn["y"]) <= {0, 1}


def test_ranges_of_quantised_inputs() -> None:
    """Scales are numbers, or arrays of one element."""
    zero, half = np.array(-128, np.int8), np.array(0.5, np.float32)
    for shape in ((), (1,)):
        constants = {"s": half.reshape(shape), "z": zero.reshape(shape)}
        node = Node("QuantizeLinear", ("x", "s", "z"), ("q",))
        graph = Graph((X,), (Value("q", "int8", ("n", 3)),), (node,), constants)
        assert ranges_of(graph) == {"x": (0.0, 127.5)}


@pytest.mark.parametrize(
    "value", [Value("s", "string", (1,)), Value("r", "float32", None), Value("q", "float32", None, "sequence")]
)
def test_inputs_that_cannot_be_generated(value: Value) -> None:
    with pytest.raises(InputError, match="cannot be generated"):
        draw([value], np.random.default_rng(0))


def test_rows_are_split_into_the_models_batches() -> None:
    fixed = Value("x", "float32", (2, 3))
    runs = list(samples_in({"x": np.arange(21.0).reshape(7, 3)}, [fixed]))
    assert [run["x"].shape for run in runs] == [(2, 3)] * 3
    assert len(list(samples_in({"x": np.zeros((7, 3))}, [X]))) == 1
    with pytest.raises(InputError, match="missing y"):
        list(samples_in({"x": np.zeros((7, 3))}, [X, Y]))


def test_files_that_are_not_samples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    for data in (b"", b"nonsense", b"\x93NUMPY\x01\x00"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"x\.npy"):
            read_arrays(path)
