"""Types of the gradient operators' results and their refusals, known before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node, Spec
from lite_runtime.ops.registry import INFERS, Inference
from lite_runtime.reference import evaluate

Shapes = Sequence[tuple[int, ...] | None]

FITTING: list[tuple[str, Shapes, dict[str, Any]]] = [
    ("ConvWeightGrad", [(2, 4, 7, 6), (2, 6, 4, 4)], {"kernel_shape": (3, 3), "strides": (2, 1), "pads": (1, 0, 1, 0)}),
    ("ConvWeightGrad", [(2, 7, 4), (2, 7, 6)], {"kernel_shape": (1,), "group": 2, "layout": "NHWC"}),
    ("MaxPoolGrad", [(2, 4, 7, 6), (2, 4, 4, 3)], {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}),
    ("AveragePoolGrad", [(2, 7, 6, 4), (2, 6, 5, 4)], {"kernel_shape": (2, 2), "layout": "NHWC"}),
    ("BatchNormalizationGrad", [(2, 4, 3), (2, 4, 3), (4,), (4,), (4,)], {}),
    ("BatchNormalizationGrad", [(2, 4, 3), (2, 4, 3), (3,), (3,), (3,)], {"layout": "NHWC"}),
    ("LayerNormalizationGrad", [(2, 4, 3), (2, 4, 3), (4, 3), (2, 1, 1), (2, 1, 1)], {"axis": 1}),
    ("LSTMGrad", [(5, 2, 3), (1, 8, 3), (1, 8, 2), (5, 1, 2, 2), (1, 16), None, None, None, (5, 1, 2, 2)], {}),
    ("LSTMGrad", [(2, 5, 3), (2, 8, 3), (2, 8, 2), (2, 5, 2, 2), None, None, None, None, None, (2, 2, 2)],
     {"layout": 1, "direction": "bidirectional"}),
    ("GRUGrad", [(5, 2, 3), (1, 6, 3), (1, 6, 2), (5, 1, 2, 2), (1, 12), None, (1, 2, 2), (5, 1, 2, 2)], {}),
]  # fmt: skip


def node_of(op: str, shapes: Shapes, attrs: dict[str, Any], outputs: int) -> Node:
    names = tuple("" if s is None else f"i{i}" for i, s in enumerate(shapes))
    return Node(op, names, tuple(f"o{i}" for i in range(outputs)), attrs, "it")


def inferred(op: str, shapes: Shapes, attrs: dict[str, Any]) -> list[Spec]:
    specs = [None if s is None else Spec("float32", s) for s in shapes]
    return list(INFERS[op](Inference(node_of(op, shapes, attrs, 1), specs, [None] * len(specs))))


@pytest.mark.parametrize(("op", "shapes", "attrs"), FITTING)
def test_as_the_reference_gives(op: str, shapes: Shapes, attrs: dict[str, Any]) -> None:
    specs = inferred(op, shapes, attrs)
    operands = [None if s is None else np.ones(s, np.float32) for s in shapes]
    results = evaluate(node_of(op, shapes, attrs, len(specs)), operands)
    assert [(s.dtype, s.shape) for s in specs] == [(str(r.dtype), r.shape) for r in results]


@pytest.mark.parametrize(("op", "shapes", "attrs"), FITTING)
def test_every_operand_is_checked(op: str, shapes: Shapes, attrs: dict[str, Any]) -> None:
    """One more element along the last axis of one operand: it or the others no longer fit. Of X the sizes decide."""
    for i, shape in enumerate(shapes):
        if shape is None or (i == 0 and op == "ConvWeightGrad" and attrs.get("layout") != "NHWC"):
            continue
        changed = [*shapes[:i], (*shape[:-1], shape[-1] + 1), *shapes[i + 1 :]]
        with pytest.raises(ShapeError, match="it"):
            inferred(op, changed, attrs)


def test_invalid_windows() -> None:
    with pytest.raises(ShapeError, match="does not divide"):
        inferred("ConvWeightGrad", [(1, 3, 4), (1, 4, 4)], {"kernel_shape": (1,), "group": 2})
    with pytest.raises(ShapeError, match="rank 3"):
        inferred("LSTMGrad", [(5, 2), (1, 8, 3), (1, 8, 2), (5, 1, 2, 2)], {})
    with pytest.raises(ShapeError, match="at least a batch"):
        inferred("BatchNormalizationGrad", [(2,), (2,), (2,), (2,), (2,)], {})
