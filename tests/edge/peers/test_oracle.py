"""ONNX Runtime as `msedge verify` uses it: exact on this processor too, with weights whose products need 16 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from converter import convert
from edge.cli.app import app
from edge.measuring.contest import PEERS, peers_of
from edge.peers.exact import UP, exact
from edge.peers.oracle import Oracle
from lite_runtime.graph import Array
from tests.fuzz.converting.ort_files import saved

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((8, 64)) * 2).astype(np.float32)
W = RNG.choice(np.array([-127, 127], np.int8), (64, 16))
X_STEP, W_STEP, Y_STEP = np.float32(0.03), np.float32(0.01), np.float32(0.5)


def rounded(values: Array, step: float, zero: int, dtype: Any) -> Array:
    limits = np.iinfo(dtype)
    return (np.clip(np.rint(values / step) + zero, limits.min, limits.max) - zero) * step


def build(nodes: list[onnx.NodeProto], inputs: dict[str, Array], constants: dict[str, Any]) -> onnx.ModelProto:
    infos = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "one", infos, outputs, initializers)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def between_floats(kind: str, dtype: Any, given: bool, by_column: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Q(op(DQ …)): what static quantisers write, and ONNX Runtime fuses into a product of bytes."""
    conv = kind == "Conv"
    x, w = (X[..., None], np.ascontiguousarray(W.T)[..., None]) if conv else (X, W)
    steps = np.full(16, W_STEP) if by_column else W_STEP
    zero = np.array(0 if dtype == np.int8 else 128, dtype)
    constants = {"xs": X_STEP, "ws": steps, "ys": Y_STEP, "z": zero} | ({} if given else {"w": w})
    inputs = {"x": x} | ({"w": w} if given else {})
    weights = ["w", "ws"] if by_column else ["w", "ws", "wz"]
    constants |= {} if by_column else {"wz": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", weights, ["wd"], axis=0 if conv else 1),
        helper.make_node(kind, ["xd", "wd"], ["f"]),
        helper.make_node("QuantizeLinear", ["f", "ys", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "z"], ["y"]),
    ]
    return build(nodes, inputs, constants), inputs


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Conv"])
def test_products_between_floats_do_not_saturate(kind: str, dtype: Any, given: bool, by_column: bool) -> None:
    model, inputs = between_floats(kind, dtype, given, by_column)
    zero = 0 if dtype == np.int8 else 128
    sums = rounded(X, X_STEP, zero, dtype).astype(np.float64) @ (W * float(W_STEP))
    (got,) = Oracle(model).run(inputs).values()
    np.testing.assert_allclose(got.reshape(sums.shape), rounded(sums, Y_STEP, zero, dtype), atol=1e-4)


def test_the_zero_point_tells_what_an_operator_unknown_to_onnx_returns() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "z"], ["xq"]),
        helper.make_node("QLinearSigmoid", ["xq", "xs", "z", "ss", "sz"], ["s"], domain="com.microsoft"),
        helper.make_node("QLinearMatMul", ["s", "ss", "sz", "w", "ws", "wz", "ys", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "ys", "z"], ["y"]),
    ]
    step = np.float32(1 / 255)
    scales = {"xs": X_STEP, "ws": W_STEP, "ys": np.float32(0.1), "ss": step}
    model = build(nodes, {"x": X}, {"w": W, "wz": np.int8(0), "z": np.uint8(128), "sz": np.uint8(0), **scales})
    inner = rounded(1 / (1 + np.exp(-rounded(X, X_STEP, 128, np.uint8).astype(np.float64))), step, 0, np.uint8)
    wanted = rounded(inner @ (W * float(W_STEP)), 0.1, 128, np.uint8)
    (got,) = Oracle(model).run({"x": X}).values()
    assert np.abs(got - wanted).max() < 0.15  # one step of the result, since a sigmoid may round another way


def test_weights_of_four_bits_are_multiplied_in_float() -> None:
    """ONNX Runtime fuses them into MatMulNBits, which rounds activations to 8 bits unless told otherwise."""
    w, scale = RNG.integers(-8, 8, (128, 64)), RNG.uniform(0.01, 0.1, (4, 64)).astype(np.float32)
    x = (RNG.standard_normal((1, 128)) * np.where(RNG.random((1, 128)) < 0.05, 50, 1)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "wd"], ["y"]),
    ]
    model = build(nodes, {"x": x}, {"s": scale})
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, w.shape, w.ravel().tolist()))
    model.opset_import[0].version, model.ir_version = 21, 10
    wanted = x.astype(np.float64) @ (w * np.repeat(scale, 32, axis=0))
    (got,) = Oracle(model).run({"x": x}).values()
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def test_verify_does_not_attribute_saturation_to_a_bundle(tmp_path: Path) -> None:
    model, inputs = between_floats("MatMul", np.uint8, given=False, by_column=False)
    source, bundle, data = tmp_path / "m.onnx", tmp_path / "m.mslite", tmp_path / "x.npz"
    onnx.save(model, source)
    np.savez(data, **inputs)
    convert(source, output=bundle)
    command = ["verify", str(source), str(bundle), "--data", str(data), "--backend", "reference"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output


def test_the_given_model_stays_and_weights_are_not_stored_twice() -> None:
    """int8 weights are replaced, since two copies could exceed what protobuf can store."""
    model, _ = between_floats("MatMul", np.uint8, given=False, by_column=True)
    before = model.SerializeToString()
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in exact(model).graph.initializer}
    assert model.SerializeToString() == before and "w" not in constants
    np.testing.assert_array_equal(constants[f"w + {UP}"], W.astype(np.int16) + UP)


def test_speed_is_measured_with_the_model_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: onnx.ModelProto) -> onnx.ModelProto:
        raise AssertionError

    monkeypatch.setattr("edge.peers.exact.exact", refuse)
    model, inputs = between_floats("MatMul", np.uint8, given=False, by_column=False)
    onnx.save(model, tmp_path / "m.onnx")
    assert list(PEERS["onnxruntime"](tmp_path / "m.onnx", 1)(inputs)) == ["y"]
    with pytest.raises(AssertionError):
        Oracle(model)


def test_files_in_ort_format_are_run_as_they_are(tmp_path: Path) -> None:
    """Convert, verify and bench one from the command line; layers are compared with the same file's graph."""
    model = build(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "b"], ["s"]),
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["y"]),
        ],
        {"x": X},
        {"w": W.astype(np.float32) / 127, "b": np.full(16, 3, np.float32), "v": np.eye(16, 5, dtype=np.float32)},
    )
    source, bundle = tmp_path / "model.ort", tmp_path / "model.mslite"
    source.write_bytes(saved(model.SerializeToString()))
    want = onnxruntime.InferenceSession(str(source)).run(None, {"x": X})[0]
    np.testing.assert_array_equal(Oracle(source).run({"x": X})["y"], want)
    np.testing.assert_allclose(Oracle(source, taps=["r"]).run({"x": X})["r"][:, :5], want, rtol=1e-6)
    made = CliRunner().invoke(app, ["convert", str(source), "-o", str(bundle), "--json"])
    assert made.exit_code == 0, made.output
    checked = CliRunner().invoke(app, ["verify", str(source), str(bundle), "--layers", "--json"])
    assert checked.exit_code == 0, checked.output
    found = json.loads(checked.stdout)
    assert found["same"] and "y" in {row["name"] for row in found["layers"]}
    shown = json.loads(CliRunner().invoke(app, ["inspect", str(bundle), "--json"]).stdout)
    assert shown["provenance"]["source"] == "model.ort"
    assert peers_of(source) == ("onnxruntime",)
    assert np.abs(PEERS["onnxruntime"](source, 1)({"x": X})["y"] - want).max() == 0


def test_another_model_in_ort_format_is_told_apart(tmp_path: Path) -> None:
    constants = {"w": W.astype(np.float32) / 127}
    model = build([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": X}, constants)
    other = build([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": X}, {"w": -constants["w"]})
    source, bundle = tmp_path / "model.ort", tmp_path / "model.mslite"
    source.write_bytes(saved(model.SerializeToString()))
    convert(other, output=bundle)
    checked = CliRunner().invoke(app, ["verify", str(source), str(bundle), "--json"])
    assert checked.exit_code == 1 and json.loads(checked.stdout)["first_divergence"]["source_op"] == "MatMul"
