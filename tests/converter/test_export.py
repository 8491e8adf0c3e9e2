"""Our operators exported to standard ONNX: onnxruntime computes the same to the last bit."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from converter import export
from converter.ir import build, own_shapes, shapes
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


@pytest.mark.parametrize("alpha", [1.0, 1.3])
def test_gated_units_are_written_for_older_runtimes(alpha: float) -> None:
    b = Builder(28)
    x = b.input("x", [3, 8])
    y = b("SwiGLU", b("Swish", x, alpha=alpha), b("Neg", x), alpha=alpha)
    model = ir.serde.deserialize_model(b.model(y))
    build.adopt(model)
    shapes.infer(model)
    proto = onnx.load_model_from_string(export.onnx_bytes(model))
    assert proto.opset_import[0].version == 20
    data = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
    swish = reference.evaluate(Node("Swish", ("x",), ("y",), {"alpha": alpha}), [data])[0]
    wanted = reference.evaluate(Node("SwiGLU", ("g", "v"), ("y",), {"alpha": alpha}), [swish, -data])[0]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": data})[0], wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_and_rms_norm_are_written_for_older_runtimes(masked: bool) -> None:
    """Fused by our passes, unknown to opset 20: from opset 21 on onnxruntime refuses quantised graphs."""
    b = Builder(OPSET)
    x = b.input("x", [2, 3, 5, 8])
    scale = b.const(np.linspace(0.5, 1.5, 8, dtype=np.float32))
    given = [b("RMSNormalization", x, scale, axis=-1, epsilon=1e-3), x, x]
    mask = np.random.default_rng(3).normal(size=(5, 5)).astype(np.float32)
    y = b("Attention", *given, *([b.const(mask)] if masked else []), **({"scale": 0.25} if masked else {}))
    model = ir.serde.deserialize_model(b.model(y))
    build.adopt(model)
    shapes.infer(model)
    proto = onnx.load_model_from_string(export.onnx_bytes(model))
    assert proto.opset_import[0].version == 20
    assert not {n.op_type for n in proto.graph.node} & {"Attention", "RMSNormalization"}
    data = np.random.default_rng(4).normal(size=(2, 3, 5, 8)).astype(np.float32)
    normal = reference.evaluate(
        Node("RMSNormalization", ("x", "s"), ("y",), {"axis": -1, "epsilon": 1e-3}),
        [data, np.linspace(0.5, 1.5, 8, dtype=np.float32)],
    )[0]
    node = Node("Attention", ("q", "k", "v", "m")[: 4 if masked else 3], ("y",), {"scale": 0.25} if masked else {})
    wanted = reference.evaluate(node, [normal, data, data, *([mask] if masked else [])])[0]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": data})[0], wanted, rtol=2e-5, atol=2e-6)
