"""Branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.reference import run
from tests.lite_runtime.reference.oracle import floats, ours


def value(name: str, dtype: str = "float32", shape: tuple[int, ...] | None = ()) -> Value:
    return Value(name, dtype, shape)


def graph(
    inputs: Sequence[Value], outputs: Sequence[Value], *nodes: Node, constants: dict[str, Array] | None = None
) -> Graph:
    return Graph(tuple(inputs), tuple(outputs), nodes, constants or {}, "g")


def node(op: str, inputs: str, outputs: str, **attrs: object) -> Node:
    return Node(op, tuple(inputs.split()), tuple(outputs.split()), attrs)  # type: ignore[arg-type]


TRUE, FALSE = np.array(True), np.array(False)


@pytest.mark.parametrize("flag", [True, False])
def test_if_captures_names_of_the_graph_around(flag: bool) -> None:
    double = graph([], [value("y")], node("Add", "x x", "y"))
    square = graph([], [value("y")], node("Mul", "x x", "y"))
    inputs = [value("c", "bool"), value("x", shape=(3,))]
    outer = graph(inputs, [value("z", shape=(3,))], node("If", "c", "z", then_branch=double, else_branch=square))
    x = floats(3)
    got = run(outer, {"c": np.array(flag), "x": x})["z"]
    np.testing.assert_array_equal(got, x + x if flag else x * x)


def counter(limit: float) -> Graph:
    """Adds `step` (captured) each time; goes on below `limit`; scans the running sum."""
    nodes = (
        node("Add", "sum step", "new"),
        node("Less", "new limit", "go"),
        node("Identity", "new", "seen"),
    )
    inputs = [value("i", "int64"), value("old", "bool"), value("sum")]
    constants = {"limit": np.array(limit, np.float32)}
    return graph(inputs, [value("go", "bool"), value("new"), value("seen")], *nodes, constants=constants)


@pytest.mark.parametrize(
    ("trips", "limit", "expected"), [(3, 99, [2, 4, 6]), (9, 5, [2, 4, 6]), (0, 99, []), (None, 3, [2, 4])]
)
def test_loop(trips: int | None, limit: float, expected: list[float]) -> None:
    constants = {"step": np.array(2, np.float32), "start": np.array(0, np.float32)}
    if trips is not None:
        constants["trips"] = np.array(trips)
    loop = Node("Loop", ("trips" if trips is not None else "", "", "start"), ("last", "all"), {"body": counter(limit)})
    results = run(graph([], [value("last"), value("all", shape=None)], loop, constants=constants), {})
    assert results["all"].tolist() == expected
    assert results["last"] == (expected[-1] if expected else 0)
    assert results["all"].dtype == np.float32


def test_scan_is_a_running_sum_in_either_direction() -> None:
    body = graph(
        [value("s", shape=(2,)), value("x", shape=(2,))],
        [value("t", shape=(2,)), value("u", shape=(2,))],
        node("Add", "s x", "t"),
        node("Identity", "t", "u"),
    )
    x = floats(4, 2)
    last, every = ours("Scan", [np.zeros(2, np.float32), x], {"body": body, "num_scan_inputs": 1}, 2)
    np.testing.assert_allclose(every, np.cumsum(x, 0), rtol=1e-6)
    np.testing.assert_array_equal(last, every[-1])
    turned = {"scan_input_directions": (1,), "scan_output_directions": (1,), "scan_output_axes": (1,)}
    _, back = ours("Scan", [np.zeros(2, np.float32), x], {"body": body, "num_scan_inputs": 1, **turned}, 2)
    np.testing.assert_allclose(back.T, np.cumsum(x[::-1], 0)[::-1], rtol=1e-6)


def test_sequence_map() -> None:
    body = graph([value("a"), value("b")], [value("c")], node("Add", "a b", "c"))
    sequence = [floats(2), floats(3)]
    got = ours("SequenceMap", [sequence, np.array(1, np.float32)], {"body": body})[0]
    assert [g.tolist() for g in got] == [(s + 1).tolist() for s in sequence]
    pairs = ours("SequenceMap", [sequence, sequence], {"body": body})[0]
    assert [g.tolist() for g in pairs] == [(2 * s).tolist() for s in sequence]


def test_misfits_are_refused() -> None:
    body = graph([value("a"), value("b")], [value("c")], node("Add", "a b", "c"))
    with pytest.raises(ShapeError, match="one length"):
        ours("SequenceMap", [[floats(1)], [floats(1), floats(1)]], {"body": body})
    with pytest.raises(ShapeError, match=r"expected 2 inputs, got 1"):
        ours("SequenceMap", [[floats(1)]], {"body": body})
