"""An operator that only onnxruntime has, in everything that is made of a model. Values are compared with onnxruntime's
in test_upgrade.py and test_ops.py (JAX), gradients with JAX's in test_rules.py."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from converter import convert
from converter.training import Training
from lite_runtime import bundle, load
from tests.converter.support import Builder, ops


def network(b: Builder) -> onnx.ModelProto:
    """Two convolutions with the activation between them, and a dense layer."""
    y = b("Conv", b.input("x", ["n", 3, 8, 8]), b.weight(8, 3, 3, 3), b.weight(8), pads=[1, 1, 1, 1])
    y = b("Conv", b("QuickGelu", y, domain="com.microsoft"), b.weight(4, 8, 3, 3), b.weight(4))
    y = b("Gemm", b("QuickGelu", b("Flatten", y), domain="com.microsoft"), b.weight(144, 3), b.weight(3))
    model = b.model(y)
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def rows(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def test_quantised_it_is_a_table() -> None:
    source = network(Builder(17))
    plain = convert(source).bundle
    small = convert(source, quantize="int8", calibration=rows(16)).bundle
    assert "QuickGelu" in ops(bundle.read(plain).signatures["predict"])
    found = ops(bundle.read(small).signatures["predict"])
    assert "LookupTable" in found and "QuickGelu" not in found
    feed = {"x": np.concatenate([row["x"] for row in rows(8)])}
    (wanted,), (got,) = (load(made).run(feed).values() for made in (plain, small))
    assert np.square(wanted).sum() > 100 * np.square(wanted - got).sum()


def test_a_bundle_with_it_learns() -> None:
    model = load(convert(network(Builder(17)), trainable=Training(("*",))).bundle)
    rng = np.random.default_rng(5)
    feed = {"x": rng.standard_normal((16, 3, 8, 8)).astype(np.float32), "labels": rng.integers(0, 3, 16)}
    losses = [float(model.run(feed, "train_step")["loss"]) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_exported_it_is_standard_onnx() -> None:
    import onnxruntime

    source = network(Builder(17))
    made = convert(source, to="onnx").bundle
    assert {node.domain for node in onnx.load_model_from_string(made).graph.node} == {""}
    feed, providers = rows(1)[0], ["CPUExecutionProvider"]
    (wanted,), (got,) = (
        onnxruntime.InferenceSession(model, providers=providers).run(None, feed)
        for model in (source.SerializeToString(), made)
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
