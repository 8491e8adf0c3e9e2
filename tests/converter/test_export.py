"""What our operators are written as in standard ONNX: onnxruntime computes the same to the last bit."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from converter import export
from converter.ir import build, own_shapes
from lite_runtime import reference
from lite_runtime.graph import OPSET, Node
from tests.converter.support import Builder


@pytest.mark.parametrize("shift", [-5.0, -0.2, 0.0, 0.3, 4.0])
@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_dynamic_quantisation(dtype: str, kept: int, shift: float) -> None:
    b = Builder(OPSET)
    made = b("DynamicQuantizeLinear", b.input("x", [7, 5, 9]), outputs=3, domain="msedge", kept=kept, dtype=dtype)
    proto = b.model(*made)
    for value in proto.graph.output:
        value.ClearField("type")
    proto.opset_import.append(helper.make_opsetid("msedge", 1))
    model = ir.serde.deserialize_model(proto)
    build.adopt(model)
    own_shapes.fill(model)
    x = (np.random.default_rng(kept).normal(size=(7, 5, 9)) + shift).astype(np.float32)
    x[3], x[4] = 0, 1e-41
    node = Node("DynamicQuantizeLinear", ("x",), ("y", "s", "z"), {"kept": kept, "dtype": dtype})
    wanted = reference.evaluate(node, [x])
    session = onnxruntime.InferenceSession(export.onnx_bytes(model), providers=["CPUExecutionProvider"])
    for got, want in zip(session.run(None, {"x": x}), wanted, strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want)
