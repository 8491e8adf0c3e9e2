"""Counting: operations of every family against their definitions; which steps are shared, and by how many workers."""

from __future__ import annotations

from typing import Any

import pytest

from lite_runtime import ops, steps
from lite_runtime.graph import Node, Spec
from lite_runtime.ops.registry import INFERS
from lite_runtime.planning import cost
from lite_runtime.planning.program import Kernel
from lite_runtime.running.threads import worth
from lite_runtime.steps.operand import Operand

assert ops


def _count(op: str, operands: list[tuple[int, ...] | None], result: tuple[int, ...], **attrs: Any) -> int:
    specs = [None if shape is None else Spec("float32", shape) for shape in operands]
    return cost.operations(Node(op, (), ("y",), attrs), specs, [Spec("float32", result)])


@pytest.mark.parametrize(
    ("count", "want"),
    [
        (_count("Conv", [(1, 8, 8, 3), (16, 3, 3, 3)], (1, 8, 8, 16)), 2 * 8 * 8 * 16 * 27),
        (_count("Conv", [(1, 8, 8, 16), (16, 1, 3, 3)], (1, 8, 8, 16)), 2 * 8 * 8 * 16 * 9),
        (_count("ConvTranspose", [(1, 4, 4, 6), (6, 5, 2, 2)], (1, 8, 8, 5)), 2 * 4 * 4 * 6 * 5 * 4),
        (_count("QLinearConv", [(1, 4, 4, 6), (), (), (5, 6, 1, 1)], (1, 4, 4, 5)), 2 * 16 * 5 * 6),
        (_count("MatMul", [(7, 3), (3, 5)], (7, 5)), 2 * 7 * 5 * 3),
        (_count("MatMul", [(3, 7), (3, 5)], (7, 5), transA=1), 2 * 7 * 5 * 3),
        (_count("Gemm", [(2, 7, 3), (3, 5)], (2, 7, 5)), 2 * 2 * 7 * 5 * 3),
        (_count("Einsum", [(2, 3), (3, 4)], (2, 4), equation="ij, jk -> ik"), 2 * 2 * 3 * 4),
        (_count("LSTM", [(10, 1, 6), (1, 32, 6), (1, 32, 8)], (10, 1, 1, 8)), 2 * 10 * (32 * 6 + 32 * 8)),
        (_count("Attention", [(1, 2, 5, 4), (1, 2, 9, 4), (1, 2, 9, 4)], (1, 2, 5, 4)), 2 * 9 * 2 * 40),
        (_count("MaxPool", [(1, 8, 8, 3)], (1, 4, 4, 3), kernel_shape=(2, 2)), 4 * 4 * 3 * 4),
        (_count("ConvWeightGrad", [(1, 8, 8, 3), (1, 8, 8, 16)], (16, 3, 3, 3)), 2 * 8 * 8 * 16 * 27),
        (_count("MaxPoolGrad", [(1, 8, 8, 3), (1, 4, 4, 3)], (1, 8, 8, 3), kernel_shape=(2, 2)), 2 * 4 * 4 * 3 * 4),
        (_count("ReduceMean", [(6, 7)], (6,)), 42),
        (_count("Softmax", [(6, 7)], (6, 7)), 4 * 42),
        (_count("Add", [(6, 1), (1, 7)], (6, 7)), 42),
        (_count("Resize", [(1, 4, 4, 1)], (1, 8, 8, 1), mode="linear"), 64 * 4),
        (_count("Transpose", [(6, 7)], (7, 6)), 0),
    ],
)
def test_operations(count: int, want: int) -> None:
    assert count == want


@pytest.mark.parametrize("op", sorted(INFERS))
def test_any_operator_can_be_counted(op: str) -> None:
    """Operands left out, scalars and tensors of no elements included."""
    for shape in ((), (0,), (2, 3), (1, 2, 3, 4)):
        for given in ([], [None, None, None, None], [shape] * 5):
            assert _count(op, list(given), shape) >= 0


def test_more_work_never_takes_less() -> None:
    times = [cost.seconds("gemm.f32_gemm", n, 100) for n in (0, 10**6, 10**9)]
    assert 0 < times[0] < times[1] < times[2]
    assert cost.seconds("gemm.f32_gemm", 10**9, 0, lanes=4) > cost.seconds("gemm.f32_gemm", 10**9, 0, lanes=16)
    assert cost.shared(1e-3) and not cost.shared(1e-7)


def test_a_table_costs_the_rows_picked_from_it() -> None:
    data, indices, target = _operands(10**9, 2, 16)
    sizes = {"width": 4, "outer": 1, "count": 2, "extent": 10**8, "run": 32}
    assert cost.touched(steps.Gather(data=data, indices=indices, target=target, **sizes)) == 64 + 8 + 64
    numbers = {"rows": 2, "each": 1, "depth": 5, "columns": 4, "matrices": 100, "activation": 0}
    x, table, slots, y = _operands(10, 2000, 2, 8)
    grouped = steps.F32Grouped(
        **{"x": x, "table": table, "slots": slots, "biases": None, "residual": None, "y": y},
        **numbers,
        **{"low": 0.0, "high": 1.0, "alpha": 0.0, "beta": 0.0},
    )
    assert cost.touched(grouped) == 40 + 8 + 32


def test_an_operand_that_a_step_has_twice_is_touched_once() -> None:
    a, out = _operands(25, 5)
    assert cost.touched(steps.F32Transpose(a=a, out=out, batches=1, rows=5, columns=5)) == 120
    assert cost.touched(steps.F32Transpose(a=a, out=a, batches=1, rows=5, columns=5)) == 100


def _operands(*sizes: int) -> list[Operand]:
    """float32 vectors of these sizes, each in a separate buffer."""
    return [Operand(Spec("float32", (size,)), slot) for slot, size in enumerate(sizes)]


def _steps(seconds: float, count: int, shared: bool = True) -> list[Kernel]:
    return [Kernel("gemm.f32_gemm", i, 0, 1, 0, 0, seconds, shared, shared) for i in range(count)]


def test_the_number_of_workers_follows_the_gain() -> None:
    assert worth(_steps(1e-3, 10), 4) == 4
    assert worth(_steps(1e-3, 10), 1) == 1
    assert worth(_steps(1e-6, 3), 4) == 1, "calling the others would take longer"
    assert worth(_steps(1e-3, 10, shared=False), 4) == 1
    assert worth([], 4) == 1
