"""Concat without a copy: operators write their parts directly into the result, if no other reader is affected."""

from __future__ import annotations

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.graph import Array, Graph, Node, Value

RNG = np.random.default_rng(31)
NHWC = {"layout": "NHWC"}


def _weights(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _conv(x: str, w: str, y: str, **attrs: object) -> Node:
    return Node("Conv", (x, w), (y,), {**NHWC, **attrs}, y)


def _check(nodes: list[Node], weights: dict[str, Array], outputs: dict[str, int], copies: int) -> None:
    """Equal to the reference for any number of workers, with this number of operators that copy."""
    x = _weights(1, 9, 7, 5)
    typed = tuple(Value(name, "float32", (1, 9, 7, channels)) for name, channels in outputs.items())
    data = bundle.write(
        None, {"predict": Graph((Value("x", "float32", x.shape),), typed, tuple(nodes), weights, "placing")}
    )
    wanted = lite_runtime.load(data, backend="reference").run({"x": x})
    for options in ({}, {"backend": "guard"}, {"backend": "guard", "threads": 3}):
        model = lite_runtime.load(data, **options)  # type: ignore[arg-type]
        got = model.run({"x": x})
        for name, want in wanted.items():
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)
        rows = model.profile({"x": x}, repeats=1)
        assert sum(row.kernel.startswith("copy.") for row in rows) == copies


WEIGHTS = {"v": _weights(20, 5, 1, 1), "w": _weights(12, 5, 3, 3)}
TWO = [_conv("x", "v", "a"), _conv("x", "w", "b", pads=(1, 1, 1, 1), activation="HardSwish")]


def test_two_convolutions_write_side_by_side() -> None:
    join = Node("Concat", ("a", "b"), ("y",), {"axis": -1}, "join")
    _check([*TWO, join], WEIGHTS, {"y": 32}, copies=0)


def test_an_input_is_copied() -> None:
    join = Node("Concat", ("x", "a", "b"), ("y",), {"axis": 3}, "join")
    _check([*TWO, join], WEIGHTS, {"y": 37}, copies=1)


def test_one_value_twice() -> None:
    join = Node("Concat", ("a", "b", "a"), ("y",), {"axis": 3}, "join")
    _check([*TWO, join], WEIGHTS, {"y": 52}, copies=1)


def test_a_value_that_others_read() -> None:
    join = Node("Concat", ("a", "b"), ("y",), {"axis": 3}, "join")
    relu = Node("Relu", ("a",), ("z",), {}, "z")
    _check([*TWO, join, relu], WEIGHTS, {"y": 32, "z": 20}, copies=1)
    _check([*TWO, join], WEIGHTS, {"a": 20, "y": 32}, copies=1)


def test_a_residual_keeps_its_rows() -> None:
    nodes = [_conv("x", "v", "r"), Node("Conv", ("x", "v", "", "r"), ("a",), dict(NHWC), "a"), TWO[1]]
    join = Node("Concat", ("a", "b"), ("y",), {"axis": 3}, "join")
    _check([*nodes, join], WEIGHTS, {"y": 32}, copies=1)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_other_axes(axis: int) -> None:
    sizes = [1, 9, 7, 20]
    sizes[axis] *= 2
    nodes = [TWO[0], _conv("x", "v", "b"), Node("Concat", ("a", "b"), ("y",), {"axis": axis}, "join")]
    x = _weights(1, 9, 7, 5)
    inputs, outputs = (Value("x", "float32", x.shape),), (Value("y", "float32", tuple(sizes)),)
    graph = Graph(inputs, outputs, tuple(nodes), {"v": WEIGHTS["v"]}, "g")
    data = bundle.write(None, {"predict": graph})
    want = lite_runtime.load(data, backend="reference").run({"x": x})["y"]
    np.testing.assert_allclose(lite_runtime.load(data, backend="guard").run({"x": x})["y"], want, rtol=1e-4, atol=1e-4)


def test_joined_again() -> None:
    nodes = [
        *TWO,
        Node("Concat", ("a", "b"), ("y",), {"axis": 3}, "join"),
        _conv("y", "u", "c"),
        _conv("y", "u", "d", activation="Relu"),
        Node("Concat", ("c", "d"), ("z",), {"axis": 3}, "again"),
    ]
    _check(nodes, {**WEIGHTS, "u": _weights(7, 32, 1, 1)}, {"z": 14}, copies=0)
