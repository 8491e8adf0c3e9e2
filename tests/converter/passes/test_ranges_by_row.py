"""Ranges that are measured at run time, by row: which operators change, and what a row's result then depends on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import lower, to_ir
from converter.ir.build import nodes
from converter.pass_lists import OF_TEXTS, PASSES, PREPARE, optimize
from lite_runtime import bundle


def product(rank: int, *, shown: bool = False) -> onnx.ModelProto:
    """A dynamically quantised product as ONNX Runtime's tool writes it. shown: the integers are an output too."""
    rng = np.random.default_rng(0)
    held = {"w": rng.integers(-127, 128, (8, 4)).astype(np.int8), "s": np.float32(0.01)}
    made = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        helper.make_node("MatMulInteger", ["q", "w", "xz"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["xs", "s"], ["m"]),
        helper.make_node("Mul", ["f", "m"], ["y"]),
    ]
    sizes = ["a", "b", "c"][: rank - 1]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*sizes, 4])]
    outputs += [helper.make_tensor_value_info("q", TensorProto.UINT8, [*sizes, 8])] * shown
    graph = helper.make_graph(
        made, "product", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*sizes, 8])], outputs,
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_row_depends_on_itself_alone(rank: int) -> None:
    model = to_ir(product(rank))
    optimize(model, (*PREPARE, *OF_TEXTS))
    (measuring,) = (node for node in nodes(model) if node.op_type == "DynamicQuantizeLinear")
    assert measuring.attributes["kept"].as_int() == rank - 1
    data = bundle.write(None, {"predict": lower(model)})
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 8)[-rank:]).astype(np.float32)
    wide = x.copy()
    wide[-1] *= 100
    for backend in ("native", "reference"):
        run = lite_runtime.load(data, backend=backend).run
        one, other = (np.asarray(run({"x": array})["y"]) for array in (x, wide))
        assert np.array_equal(one[:-1], other[:-1])
        rows = [run({"x": row.reshape((1,) * (rank - 1) + (8,))})["y"].ravel() for row in x.reshape(-1, 8)]
        assert np.array_equal(np.stack(rows), one.reshape(-1, 4))


def test_integers_that_something_else_reads_keep_one_range() -> None:
    model = to_ir(product(2, shown=True))
    optimize(model, (*PREPARE, *OF_TEXTS))
    assert all("kept" not in node.attributes for node in nodes(model))


def test_other_models_keep_what_onnx_says() -> None:
    model = to_ir(product(2))
    optimize(model, PASSES)
    assert all("kept" not in node.attributes for node in nodes(model))
