"""Operators declared to keep rows independent do so: changing one row does not change the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.graph import Array, Node, spec_of
from lite_runtime.learning.rowwise import MIXED, lines_of

ROWS = 3


class Case(NamedTuple):
    op: str
    inputs: tuple[Any, ...]
    """Inputs that depend on rows, as lists of their sizes without the first; constants as arrays; None: omitted."""
    lines: int = 1
    attrs: dict[str, Any] = {}  # noqa: RUF012
    outputs: int = 1
    first: int = 1
    """Lines of the inputs."""


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def scale(value: float = 0.05) -> Array:
    return np.array(value, np.float32)


ZERO = np.array(0, np.int8)
BYTES = np.ones((4, 4, 1, 1), np.int8)
KEEPING = [
    Case("Relu", ([4],)),
    Case("Add", ([4, 5], [4, 5])),
    Case("Mul", ([4, 5], floats(5))),
    Case("Div", (floats(1, 4, 5), [4, 5])),
    Case("Add", ([4], floats(3, 4))),
    Case("Add", ([4], [4]), 2, first=2),
    Case("SwiGLU", ([4, 5], [4, 5]), 1, {"alpha": 1.3}),
    Case("CastLike", ([4, 5], np.zeros(1, np.int32))),
    Case("Where", (np.array([True, False]), [2], [2])),
    Case("MatMul", ([4], floats(4, 5))),
    Case("MatMul", ([2, 4], floats(4, 5), floats(5), [2, 5])),
    Case("MatMul", ([2, 4], [4, 3])),
    Case("MatMul", (floats(2, 4), [4, 3])),
    Case("MatMul", ([4, 2], floats(4, 3)), 1, {"transA": 1}),
    Case("Gemm", ([4], floats(5, 4), floats(5)), 1, {"transB": 1}),
    Case("Conv", ([2, 5, 5], floats(3, 2, 3, 3), floats(3)), 1, {"kernel_shape": (3, 3)}),
    Case("Conv", ([2, 5, 5], floats(2, 2, 1, 1), None, [2, 5, 5]), 1, {"kernel_shape": (1, 1)}),
    Case("MaxPool", ([2, 6, 6],), 2, {"kernel_shape": (2, 2)}, first=2),
    Case("GlobalAveragePool", ([2, 6, 6],)),
    Case("BatchNormalization", ([2, 4], floats(2), floats(2), floats(2), abs(floats(2)))),
    Case("LayerNormalization", ([2, 4], floats(4))),
    Case("Softmax", ([2, 4],), 1, {"axis": -1}),
    Case("TopK", ([5], ints(2)), outputs=2),
    Case("ReduceMean", ([2, 4], ints(1)), 1, {"keepdims": 0}),
    Case("ReduceSum", ([2, 4], ints(-1))),
    Case("ArgMax", ([2, 4],), 1, {"axis": 2, "keepdims": 0}),
    Case("Transpose", ([2, 4],), 1, {"perm": (0, 2, 1)}),
    Case("Reshape", ([2, 4], ints(-1, 4)), 2),
    Case("Reshape", ([4], ints(3, 2, 4)), 1, first=2),
    Case("Flatten", ([2, 4],)),
    Case("Unsqueeze", ([2], ints(1))),
    Case("Concat", ([2, 4], [3, 4]), 1, {"axis": 1}),
    Case("Split", ([4, 2],), 1, {"axis": 1, "num_outputs": 2}, 2),
    Case("Slice", ([4, 2], ints(1), ints(3), ints(1))),
    Case("Gather", ([4, 2], ints(1, 3)), 1, {"axis": 1}),
    Case("Pad", ([4], ints(0, 1, 0, 2))),
    Case("Expand", ([1, 4], ints(3, 5, 4))),
    Case("Attention", ([2, 4], [2, 4], [2, 4]), 1, {"q_num_heads": 2, "kv_num_heads": 2}),
    Case("QuantizeLinear", ([4], scale(), ZERO)),
    Case("DynamicQuantizeLinear", ([2, 4],), 1, {"kept": 1}, 3),
    Case("BitCast", ([4],), 1, {"to": 6}),
    Case("Einsum", ([2, 4], floats(4, 5)), 1, {"equation": "bij,jk->bik"}),
    Case("Einsum", ([4], [4]), 1, {"equation": "bi, bi -> b"}),
    Case("CumSum", ([4, 2], ints(1))),
    Case("CumProd", ([4, 2], ints(-1))),
    Case("DFT", ([8, 1],), 1),
    Case("DFT", ([8, 2], None, ints(1)), 1),
    Case("STFT", ([16, 1], ints(4), None, ints(8)),),
    Case("OneHot", ([4], ints(3), ints(0, 1))),
    Case("Trilu", ([4, 4],)),
    Case("CenterCropPad", ([4, 6], ints(6, 3)), 1, {"axes": (1, 2)}),
    Case("ReverseSequence", ([4, 2], ints(2, 3, 1)), 1, {"batch_axis": 0, "time_axis": 1}),
    Case("AffineGrid", ([2, 3], ints(3, 1, 4, 4))),
    Case("GridSample", ([2, 4, 4], [3, 3, 2])),
    Case("Col2Im", ([8, 4], ints(3, 3), ints(2, 2))),
    Case("Det", ([3, 3],)),
    Case("Inverse", ([3, 3],)),
    Case("Det", ([3, 3],), 2, first=2),
    Case("CausalConvWithState", ([2, 6], floats(2, 1, 3), None, [2, 2]), outputs=2),
    Case("RotaryEmbedding", ([2, 5, 4], floats(3, 5, 2), floats(3, 5, 2))),
    Case("DeformConv", ([2, 4, 4], floats(3, 2, 1, 1), [2, 4, 4], None, [1, 4, 4])),
    Case("LinearAttention", ([5, 4], [5, 4], [5, 4], [2, 2, 2]), 1,
         {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}, 2),
    Case("Binarizer", ([4],), 1, {"threshold": 0.5}),
    Case("Imputer", ([4],), 1, {"imputed_value_floats": (1.0,), "replaced_value_float": 0.0}),
    Case("Normalizer", ([4],), 1, {"norm": "L2"}),
    Case("Scaler", ([4],), 1, {"offset": (1.0,), "scale": (2.0,)}),
    Case("LinearRegressor", ([4],), 1, {"coefficients": (1.0, 2.0, 3.0, 4.0)}),
    Case("LabelEncoder", ([4],), 1, {"keys_floats": (1.0,), "values_floats": (2.0,)}),
]
MIXING = [
    Case("Softmax", ([4],), attrs={"axis": 0}),
    Case("Softmax", ([4],), attrs={"axis": -2}),
    Case("LayerNormalization", ([4], floats(3, 4)), attrs={"axis": 0}),
    Case("ReduceMean", ([4],)),
    Case("ReduceMean", ([4], ints(0))),
    Case("ReduceMean", ([4], ints(-2))),
    Case("ArgMax", ([4],)),
    Case("Transpose", ([4],), attrs={"perm": (1, 0)}),
    Case("Transpose", ([4],)),
    Case("MatMul", ([4], floats(3, 5)), attrs={"transA": 1}),
    Case("MatMul", (floats(5, 3), [4])),
    Case("MatMul", ([3], [3])),
    Case("Gemm", ([4], floats(3, 5)), attrs={"transA": 1}),
    Case("Gemm", ([3], [3])),
    Case("Conv", (floats(1, 2, 3, 3), [2, 3, 3]), attrs={"kernel_shape": (3, 3)}),
    Case("Concat", ([4], [4]), attrs={"axis": 0}),
    Case("Concat", ([4], [4]), attrs={"axis": -2}),
    Case("Slice", ([4], ints(0), ints(3), ints(0), ints(-1))),
    Case("Slice", ([4], ints(0), ints(3))),
    Case("Gather", ([4], ints(2, 1, 0)), attrs={"axis": 0}),
    Case("Pad", ([4], ints(1, 0, 0, 0))),
    Case("Reshape", ([4], ints(2, 6))),
    Case("Flatten", ([4],), attrs={"axis": 0}),
    Case("Add", ([], [1])),
    Case("CumSum", ([4], ints(0))),
    Case("CumSum", ([4], ints(-2))),
    Case("Einsum", ([4], floats(4, 3)), attrs={"equation": "bi,ij->jb"}),
    Case("Einsum", ([3], floats(3)), attrs={"equation": "bb,b->b"}),
    Case("Einsum", ([4], floats(4)), attrs={"equation": "...i,i"}),
    Case("DFT", ([8, 1], None, ints(0))),
    Case("OneHot", ([4], ints(3), ints(0, 1)), attrs={"axis": 0}),
    Case("Trilu", ([3],)),
    Case("CenterCropPad", ([4], ints(3, 2))),
    Case("CenterCropPad", ([4], ints(2)), attrs={"axes": (-2,)}),
    Case("ReverseSequence", ([4], ints(1, 2, 3, 2)), attrs={"batch_axis": 1, "time_axis": 0}),
    Case("Det", ([3],)),
    Case("MatMulInteger", (np.ones((5, 3), np.int8), [4])),
    Case("Normalizer", ([],), attrs={"norm": "L1"}),
    Case("DynamicQuantizeLinear", ([4],), outputs=3),
    Case("BatchNormalization", ([2, 4], *[floats(2)] * 3, abs(floats(2))), attrs={"training_mode": 1}, outputs=3),
]


def given(case: Case, seed: int) -> list[Array | None]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal((ROWS * case.first, *x)).astype(np.float32) if isinstance(x, list) else x
        for x in case.inputs
    ]


def said(case: Case) -> int:
    inputs = given(case, 0)
    names = ["" if x is None else f"i{i}" for i, x in enumerate(inputs)]
    node = Node(case.op, tuple(names), tuple(f"o{i}" for i in range(case.outputs)), case.attrs)
    results = reference.evaluate(node, inputs)
    specs = {name: spec_of(x) for name, x in zip([*names, *node.outputs], [*inputs, *results], strict=True) if name}
    known = {name: x for name, x, of in zip(names, inputs, case.inputs, strict=True) if isinstance(of, np.ndarray)}
    lines = {name: case.first for name, of in zip(names, case.inputs, strict=True) if isinstance(of, list)}
    return lines_of(node, specs, known, lines, ROWS)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", KEEPING, ids=lambda case: case.op)
def test_rows_are_independent(case: Case) -> None:
    assert said(case) == case.lines
    node = Node(case.op, tuple("x" if x is not None else "" for x in case.inputs), ("y",) * case.outputs, case.attrs)
    inputs = given(case, 1)
    before = reference.evaluate(node, inputs)
    for row in range(ROWS):
        others = [
            np.where(np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1)) // case.first == row, x, y)
            if isinstance(of, list) and x is not None and y is not None else x
            for of, x, y in zip(case.inputs, inputs, given(case, 2 + row), strict=True)
        ]  # fmt: skip
        after = reference.evaluate(node, others)
        for one, other in zip(before, after, strict=True):
            lines = slice(case.lines * row, case.lines * (row + 1))
            np.testing.assert_allclose(one[lines], other[lines], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", MIXING, ids=lambda case: case.op)
def test_operators_that_mix_rows_are_found(case: Case) -> None:
    assert said(case) == MIXED


def test_mixed_rows_stay_mixed() -> None:
    (spec,) = (spec_of(floats(3, 4)),)
    assert spec is not None
    node = Node("Relu", ("x",), ("y",))
    assert lines_of(node, {"x": spec, "y": spec}, {}, {"x": MIXED}, ROWS) == MIXED
    assert lines_of(Node("Unheard", ("x",), ("y",)), {"x": spec, "y": spec}, {}, {"x": 1}, ROWS) == MIXED
