"""Gathering, scattering and running sums against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.errors import InputError, ShapeError
from lite_runtime.graph import Array, Graph, Node, Value, dtype_name
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.running.executor import Executor, Settings
from tests.lite_runtime.ops.moved import DTYPES, moves, some

RNG = np.random.default_rng(0)


def among(extent: int, shape: tuple[int, ...], dtype: str = "int64") -> Array:
    """Indices from either end."""
    return np.asarray(RNG.integers(-extent, extent, shape)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("where", [(), (4,), (3, 5), (0,)])
def test_gather(axis: int, where: tuple[int, ...], index: str, dtype: str) -> None:
    x = some((7, 9, 11), dtype)
    moves("Gather", [x, among(x.shape[axis], where, index)], {"axis": axis})


@pytest.mark.parametrize("indices", [3, [-1], [0, 1, 2], [5, 3, 1], [4, 4, 4], [2, 3, 5], [-1, -2, -3]])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_known_indices(indices: Any, axis: int) -> None:
    moves("Gather", [some((6, 7, 8)), np.array(indices, np.int64)], {"axis": axis}, constants=[1])
    moves("Gather", [some((1, 6, 6)), np.array(indices, np.int64)], {"axis": 1}, constants=[1])


def test_embeddings() -> None:
    moves("Gather", [some((1000, 65)), among(1000, (3, 70))])


def outside(op: str, inputs: list[Array], attrs: dict[str, Any], shape: tuple[int, ...]) -> None:
    names = tuple(f"i{i}" for i in range(len(inputs)))
    typed = tuple(Value(n, dtype_name(x.dtype), x.shape) for n, x in zip(names, inputs, strict=True))
    graph = Graph(typed, (Value("o", "float32", shape),), (Node(op, names, ("o",), attrs, "it"),), {})
    with pytest.raises(InputError, match=f"{op} 'it'.*outside"):
        Executor(graph, Settings(guard=True)).run(dict(zip(names, inputs, strict=True)))


@pytest.mark.parametrize("bad", [5, -6, 1 << 40, -(1 << 63), (1 << 63) - 1])
def test_indices_outside(bad: int) -> None:
    x = some((5, 4))
    at = np.array([[0, 1, bad, 2]] * 5, np.int64)
    outside("Gather", [x, at[0]], {}, (4, 4))
    outside("GatherElements", [x, at], {}, (5, 4))
    outside("GatherND", [x, at[:1, :3].reshape(3, 1)], {}, (3, 4))
    outside("ScatterElements", [x, at, x], {}, (5, 4))
    outside("ScatterND", [x, at[:1, :3].reshape(3, 1), some((3, 4))], {}, (5, 4))


@pytest.mark.parametrize("dtype", ["bool", "float16", "float32", "int64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_an_axis(axis: int, index: str, dtype: str) -> None:
    x = some((5, 6, 7), dtype)
    shape = list(x.shape)
    shape[axis] = 4
    at = among(x.shape[axis], tuple(shape), index)
    moves("GatherElements", [x, at], {"axis": axis})
    once = np.argsort(RNG.random(x.shape), axis).astype(index)
    moves("ScatterElements", [x, once, some(x.shape, dtype, 1)], {"axis": axis})
    moves(
        "ScatterElements",
        [x, np.take(once, [0, 2], axis), np.take(some(x.shape, dtype, 1), [0, 2], axis)],
        {"axis": axis},
    )


@pytest.mark.parametrize("reduction", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scattering_that_combines(reduction: str, axis: int) -> None:
    x = some((5, 6))
    x[1, 2] = np.nan
    at = among(x.shape[axis], (5, 6))
    moves("ScatterElements", [x, at, some((5, 6), seed=1)], {"axis": axis, "reduction": reduction}, tolerance=1e-6)
    moves("ScatterND", [x, among(5, (4, 1)), some((4, 6), seed=1)], {"reduction": reduction}, tolerance=1e-6)
    whole = [some((5, 6), "int64"), at, some((5, 6), "int64", 1)]
    moves("ScatterElements", whole, {"axis": axis, "reduction": reduction}, reference=True)


def test_data_that_is_its_own_update_stays_whole() -> None:
    """The result may take over memory that dies here, but not while updates are read from it."""
    x, at = some((64, 3)), np.argsort(RNG.random((64, 3)), 0)
    nodes = (
        Node("Transpose", ("x",), ("t",), {"perm": (1, 0)}),
        Node("Transpose", ("t",), ("d",), {"perm": (1, 0)}),
        Node("ScatterElements", ("d", "at", "d"), ("y",), {"axis": 0}),
        Node("Transpose", ("y",), ("out",), {"perm": (1, 0)}),
    )
    inputs = (Value("x", "float32", x.shape), Value("at", "int64", at.shape))
    graph = Graph(inputs, (Value("out", "float32", (3, 64)),), nodes, {})
    wanted = np.empty_like(x)
    np.put_along_axis(wanted, at, x, 0)
    for settings in (Settings(), Settings(guard=True)):
        np.testing.assert_array_equal(Executor(graph, settings).run({"x": x, "at": at})["out"], wanted.T)


def test_indices_smaller_than_the_data_go_to_the_reference() -> None:
    moves("GatherElements", [some((5, 6)), among(5, (2, 3))], {"axis": 0}, reference=True)


@given(st.data())
def test_index_tuples(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    rest = tuple(data.draw(st.lists(st.integers(0, 4), max_size=2)))
    picks = [among(shape[batch + i], (*shape[:batch], *rest)) for i in range(depth)]
    x = some(shape, data.draw(st.sampled_from(DTYPES)))
    moves("GatherND", [x, np.stack(picks, -1)], {"batch_dims": batch})


@given(st.data())
def test_scattered_tuples(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    depth = data.draw(st.integers(1, len(shape)))
    places = np.array(list(np.ndindex(shape[:depth])), np.int64).reshape(-1, depth)
    chosen = places[RNG.permutation(len(places))[: data.draw(st.integers(0, len(places)))]]
    dtype = data.draw(st.sampled_from(DTYPES))
    moves("ScatterND", [some(shape, dtype), chosen, some((len(chosen), *shape[depth:]), dtype, 1)])


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("shape", [(7,), (5, 300), (300, 5), (3, 4, 130), (2, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_running_sums(op: str, shape: tuple[int, ...], dtype: str) -> None:
    x = some(shape, dtype)
    for axis in range(-1, len(shape) - 1):
        for exclusive in (0, 1):
            for reverse in (0, 1):
                attrs = {"exclusive": exclusive, "reverse": reverse}
                tolerance = 1e-5 if dtype == "float32" else 0.0
                moves(op, [x, np.array(axis)], attrs, constants=[1], tolerance=tolerance)


X = Spec("float32", (2, 3))
I64 = Spec("int64", (2, 3))
BAD: list[tuple[str, list[Array | Spec], dict[str, Any]]] = [
    ("Gather", [X, Spec("float32", (1,))], {}),
    ("Gather", [X, I64], {"axis": 2}),
    ("Gather", [Spec("float32", (0, 3)), I64], {}),
    ("GatherElements", [X, Spec("int64", (2,))], {}),
    ("GatherElements", [X, Spec("int64", (2, 4))], {"axis": 0}),
    ("GatherElements", [Spec("float32", (0, 3)), I64], {"axis": 0}),
    ("ScatterElements", [X, I64, Spec("float32", (2, 2))], {}),
    ("ScatterElements", [X, I64, Spec("float16", (2, 3))], {}),
    ("ScatterElements", [X, I64, X], {"reduction": "mean"}),
    ("GatherND", [X, I64], {}),
    ("GatherND", [X, Spec("int64", ())], {}),
    ("GatherND", [X, Spec("int64", (3, 1))], {"batch_dims": 1}),
    ("GatherND", [X, Spec("int64", (2, 1))], {"batch_dims": -1}),
    ("GatherND", [X, Spec("int64", (2, 0))], {}),
    ("ScatterND", [X, Spec("int64", (4, 1)), Spec("float32", (4, 2))], {}),
    ("CumSum", [X, np.array(2)], {}),
    ("CumSum", [X, Spec("int64", (2,))], {}),
    ("Einsum", [X, X], {"equation": "ij,jk->ik"}),
    ("Einsum", [X], {"equation": "i->i"}),
    ("Einsum", [X], {"equation": "ij->ijk"}),
    ("Einsum", [X], {"equation": "ij,jk"}),
    ("RandomNormal", [], {"shape": (2, -1)}),
]


def inferred(op: str, inputs: list[Array | Spec], attrs: dict[str, Any]) -> list[Spec]:
    node = Node(op, tuple(f"i{i}" for i in range(len(inputs))), ("o",), attrs, "it")
    specs = [x if isinstance(x, Spec) else Spec(x.dtype.name, x.shape) for x in inputs]
    return list(INFERS[op](Inference(node, specs, [x if isinstance(x, np.ndarray) else None for x in inputs])))


@pytest.mark.parametrize(("op", "inputs", "attrs"), BAD)
def test_what_does_not_fit(op: str, inputs: list[Array | Spec], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match=f"{op} 'it': "):
        inferred(op, inputs, attrs)


@pytest.mark.parametrize(
    ("equation", "shapes", "wanted"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4)),
        ("ij,jk", [(2, 3), (3, 4)], (2, 4)),
        ("ba,ca", [(2, 3), (4, 3)], (2, 4)),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (7, 3, 4)], (5, 7, 2, 4)),
        ("b...,b...->...", [(2, 3, 4), (2, 3, 4)], (3, 4)),
        ("ii->i", [(3, 3)], (3,)),
        ("i,j->", [(2,), (3,)], ()),
        ("bhwc,hkc->bhwk", [(1, 2, 3, 4), (2, 5, 4)], (1, 2, 3, 5)),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]], wanted: tuple[int, ...]) -> None:
    result = np.einsum(equation, *(np.zeros(s) for s in shapes))
    assert inferred("Einsum", [Spec("float32", s) for s in shapes], {"equation": equation})[0].shape == wanted
    assert result.shape == wanted
