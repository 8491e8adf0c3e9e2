"""Adapters of rows natively equal the reference, and equal products with the dense matrices that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle, reference
from lite_runtime.errors import InputError, ShapeError
from lite_runtime.graph import Array, Graph, Node, Value, dtype_name
from lite_runtime.operators.language import RANK
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.running.session import Model
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

NAMES = ("x", "base", "adapters", "adapter_rows")
SHAPES = [(1, 32, 32, 1), (1, 576, 192, 8), (2, 96, 200, 3), (3, 33, 17, 5), (5, 1, 1, 2), (7, 63, 129, 8),
          (16, 64, 48, 16), (61, 100, 40, 9), (256, 64, 96, 8), (4, 40, 70, RANK)]  # fmt: skip


def case(
    rows: int, k: int, n: int, rank: int, which: list[int] | None = None, *, slots: int = 3, offset: int = 5
) -> tuple[list[Array], dict[str, Any]]:
    """Random operands, other ones at every call, and attributes."""
    rng = np.random.default_rng()
    chosen = np.sort(rng.integers(-1, slots, rows)) if which is None else np.array(which)
    x, base = (rng.normal(size=(rows, width)).astype(np.float32) for width in (k, n))
    adapters = rng.normal(size=(slots, offset + rank * (k + n) + 3)).astype(np.float32)
    return [x, base, adapters, chosen.astype(np.int32)], {"K": k, "N": n, "rank": rank, "offset": offset}


def close(inputs: list[Array], attrs: dict[str, Any]) -> Array:
    size = attrs["K"] * attrs["rank"]
    return check("LoraMatMul", inputs, attrs, rtol=2e-4, atol=2e-5 * max(size, 16) ** 0.5)[0]


def model(inputs: list[Array], attrs: dict[str, Any], **settings: Any) -> Model:
    values = tuple(Value(n, dtype_name(x.dtype), x.shape) for n, x in zip(NAMES, inputs, strict=True))
    node = Node("LoraMatMul", NAMES, ("y",), attrs, "it")
    graph = Graph(values, (Value("y", "float32", inputs[1].shape),), (node,), {})
    return lite_runtime.load(bundle.write(None, {"predict": graph}), **settings)


@pytest.mark.parametrize(("rows", "k", "n", "rank"), SHAPES)
def test_sizes(rows: int, k: int, n: int, rank: int) -> None:
    close(*case(rows, k, n, rank))


@pytest.mark.parametrize(
    "which", [[0, 0, 0, 0, 0, 0], [2, 1, 0, 2, 1, 0], [-1] * 6, [1, 1, -1, -1, 1, 1], [-7, 0, 2, 2, 2, 2]]
)
def test_which_adapter(which: list[int]) -> None:
    inputs, attrs = case(6, 48, 40, 4, which)
    y = close(inputs, attrs)
    for row, slot in enumerate(which):
        if slot < 0:
            assert y[row].tobytes() == inputs[1][row].tobytes()
            continue
        a, b = np.split(inputs[2][slot, 5 : 5 + 4 * 88], [4 * 48])
        dense = (a.reshape(4, 48).T.astype(np.float64) @ b.reshape(4, 40)).astype(np.float32)
        np.testing.assert_allclose(y[row], inputs[1][row] + inputs[0][row] @ dense, rtol=1e-4, atol=1e-3)


def test_rows_do_not_depend_on_others() -> None:
    inputs, attrs = case(40, 100, 70, 6, [0] * 21 + [1] * 3 + [-1] + [2, 1] * 7 + [0])
    together = model(inputs, attrs, threads=2).run(dict(zip(NAMES, inputs, strict=True)))["y"]
    alone = model([x[:1] if i != 2 else x for i, x in enumerate(inputs)], attrs)
    for row in range(40):
        x, base, adapters, which = inputs
        fed = (x[row : row + 1], base[row : row + 1], adapters, which[row : row + 1])
        assert alone.run(dict(zip(NAMES, fed, strict=True)))["y"].tobytes() == together[row].tobytes()


def test_nothing_to_do() -> None:
    close(*case(0, 32, 16, 2))
    close(*case(3, 32, 16, 2, [-1, -1, -1], slots=0))


def test_the_result_may_be_where_the_base_was() -> None:
    """In a graph where the base has no later reader."""
    inputs, attrs = case(9, 40, 24, 3, [0, 0, -1, 1, 2, 2, 2, -1, 0])
    values = tuple(Value(n, dtype_name(x.dtype), x.shape) for n, x in zip(NAMES, inputs, strict=True))
    nodes = (
        Node("Neg", ("base",), ("less",), {}, "n"),
        Node("LoraMatMul", ("x", "less", "adapters", "adapter_rows"), ("more",), attrs, "it"),
        Node("Neg", ("more",), ("y",), {}, "m"),
    )
    graph = Graph(values, (Value("y", "float32", inputs[1].shape),), nodes, {})
    fed = dict(zip(NAMES, inputs, strict=True))
    found = {t: lite_runtime.load(bundle.write(None, {"predict": graph}), threads=t).run(fed)["y"] for t in (1, 3)}
    assert found[1].tobytes() == found[3].tobytes()
    np.testing.assert_allclose(found[1], reference.run(graph, fed)["y"], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("slot", [3, 2**31 - 1])
@pytest.mark.parametrize("slots", [0, 3])
def test_an_adapter_that_does_not_exist_is_an_error(slot: int, slots: int) -> None:
    inputs, attrs = case(2, 32, 16, 2, [-1, slot], slots=slots)
    with pytest.raises(InputError):
        model(inputs, attrs, backend="guard").run(dict(zip(NAMES, inputs, strict=True)))
    with pytest.raises(InputError, match=f"from -1 to {slots - 1}, got {slot}"):
        reference.evaluate(Node("LoraMatMul", NAMES, ("y",), attrs, "it"), inputs)


def test_a_number_that_is_not_one_reaches_the_results_of_its_row_only() -> None:
    inputs, attrs = case(5, 33, 20, 3, [0, 0, 0, 1, 1])
    inputs[0][1, 32] = np.nan
    y = close(inputs, attrs)
    assert np.isnan(y[1]).all() and np.isfinite(np.delete(y, 1, 0)).all()


def test_higher_ranks_have_no_kernel() -> None:
    inputs, attrs = case(2, 8, 8, RANK + 1)
    check("LoraMatMul", inputs, attrs, native=False)


def everything() -> None:
    for rows, k, n, rank in SHAPES:
        test_sizes(rows, k, n, rank)
    test_which_adapter([1, 1, -1, -1, 1, 1])
    test_rows_do_not_depend_on_others()


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, everything)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"K": 33}, r"expected input 0 of shape \[2, 33\]"),
        ({"N": 15}, r"expected input 1 of shape \[2, 15\]"),
        ({"rank": 0}, "rank from 1"),
        ({"offset": -1}, "offset from 0"),
        ({"offset": 9}, "expected adapters of 105 numbers or more"),
        ({"rank": 3}, "expected adapters of 149 numbers or more"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, int], words: str) -> None:
    specs = [Spec("float32", (2, 32)), Spec("float32", (2, 16)), Spec("float32", (1, 104)), Spec("int32", (2,))]
    attrs = {"K": 32, "N": 16, "rank": 2, "offset": 5, **change}
    with pytest.raises(ShapeError, match=words):
        INFERS["LoraMatMul"](Inference(Node("LoraMatMul", NAMES, ("y",), attrs, "it"), specs, [None] * 4))
