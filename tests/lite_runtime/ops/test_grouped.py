"""Products by a table natively equal the reference, whatever shapes, slots and epilogue; rows have MatMul's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lite_runtime
from lite_runtime import bundle
from lite_runtime.errors import InputError, ShapeError
from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

SHAPES = [(1, 1, 1), (1, 64, 10), (3, 5, 16), (4, 33, 48), (9, 7, 130), (17, 64, 64), (40, 16, 65)]
"""Rows, depth, columns."""
ACTIVATIONS = ("", "Relu", "Clip", "Silu", "GeluTanh")


def operands(
    groups: int, each: int, k: int, n: int, *, bias: bool = True, residual: bool = False, seed: int = 0
) -> list[Array | None]:
    """x, table, slots, bias, R."""
    rng, matrices = np.random.default_rng(seed), 4
    x, table, b, r = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((groups * each, k), (matrices, k, n), (matrices, n), (groups * each, n))
    )
    given = [x, table, rng.integers(0, matrices, groups), b if bias else None, r if residual else None]
    while given[-1] is None:
        given.pop()
    return given


def product(inputs: list[Array | None], **attrs: Any) -> Array:
    return check("GroupedMatMul", inputs, attrs, rtol=1e-4, atol=1e-4)[0]


def every_shape() -> None:
    for rows, k, n in SHAPES:
        for each in (1, 5):
            product(operands(rows, each, k, n, bias=n % 2 == 0, residual=each == 5), activation="Relu")


def test_every_shape() -> None:
    every_shape()


@on_other_targets
def test_other_widths(target: str) -> None:
    run_on(target, every_shape)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    attrs = {"activation_min": -0.5, "activation_max": 0.75} if activation == "Clip" else {}
    product(operands(7, 1, 12, 70, residual=True), activation=activation, **attrs)


@settings(deadline=None, max_examples=25)
@given(
    slots=st.lists(st.integers(0, 3), min_size=1, max_size=24), each=st.integers(1, 9), k=st.integers(1, 20),
    n=st.integers(1, 70), seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_a_row_has_the_bits_of_a_product_of_its_own(slots: list[int], each: int, k: int, n: int, seed: int) -> None:
    x, table, _, bias = operands(len(slots), each, k, n, seed=seed)
    assert x is not None and table is not None and bias is not None
    got = product([x, table, np.array(slots, np.int64), bias])
    for i, slot in enumerate(slots):
        rows = slice(i * each, (i + 1) * each)
        (want,) = check("MatMul", [x[rows], table[slot], bias[slot]], rtol=1e-4, atol=1e-4)
        assert got[rows].tobytes() == want.tobytes()


def test_more_axes_are_rows() -> None:
    x, table, slots, bias = operands(3, 10, 6, 20)
    assert x is not None
    flat = product([x, table, slots, bias])
    assert product([x.reshape(3, 2, 5, 6), table, slots, bias]).tobytes() == flat.tobytes()


@pytest.mark.parametrize("backend", ["guard", "auto", "reference"])
@pytest.mark.parametrize("slot", [-1, 4, 1 << 40])
def test_slots_beyond_the_table_are_refused(backend: str, slot: int) -> None:
    x, table, slots, bias = operands(3, 1, 6, 20)
    assert x is not None and table is not None and slots is not None and bias is not None
    names = {"x": x, "table": table, "slots": slots, "bias": bias}
    ins = tuple(Value(name, str(array.dtype), array.shape) for name, array in names.items())
    graph = Graph(ins, (Value("y", "float32", (3, 20)),), (Node("GroupedMatMul", tuple(names), ("y",)),), {})
    model = lite_runtime.load(bundle.write(None, {"predict": graph}), backend=backend)
    model.run(names)
    slots[1] = slot
    with pytest.raises(InputError):
        model.run(names)


def test_an_empty_batch() -> None:
    check("GroupedMatMul", operands(0, 1, 6, 20), native=False)
    check("GroupedMatMul", operands(2, 1, 0, 20), native=False)


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (((4, 6), (2, 5, 3), (4,)), "table"),
        (((4, 6), (6, 3), (4,)), "table"),
        (((4, 6), (2, 6, 3), (3,)), "equal groups"),
        (((4, 6), (2, 6, 3), (0,)), "equal groups"),
        (((4, 6), (2, 6, 3), (2, 2)), "slots"),
        (((4, 6), (2, 6, 3), (4,), (3,)), "bias"),
        (((4, 6), (2, 6, 3), (4,), (2, 3), (3,)), "expected R"),
    ],
)
def test_operands_that_do_not_fit(shapes: tuple[tuple[int, ...], ...], match: str) -> None:
    specs = [Spec("int64" if i == 2 else "float32", shape) for i, shape in enumerate(shapes)]
    node = Node("GroupedMatMul", ("",) * len(specs), ("y",))
    with pytest.raises(ShapeError, match=match):
        INFERS["GroupedMatMul"](Inference(node, specs, [None] * len(specs)))
