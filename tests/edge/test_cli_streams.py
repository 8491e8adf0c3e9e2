"""The commands on streaming models, whose .tflite keeps variables between runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lite_runtime
from converter import convert
from tests.conftest import SHARED
from tests.converter.streams import FRAME, denoiser, ring_buffer, wake_word
from tests.edge.test_cli import as_json, msedge

MODELS = {"denoiser": denoiser, "ring_buffer": ring_buffer, "wake_word": wake_word}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.tflite"
    path.write_bytes(MODELS[request.param]())
    msedge("convert", path, "-o", path.with_suffix(".mslite"))
    return path


def test_verify_compares_steps_of_a_stream(model: Path) -> None:
    """Each run is the next step of both; it failed before at every model with variables."""
    found = as_json("verify", model, model.with_suffix(".mslite"), "--samples", "20", "--layers")
    assert found["same"] and found["runs"] == 20 and found["outputs"][0]["relative"] < 1e-5
    assert found["layers"] and min(row["snr"] for row in found["layers"]) > 60


def test_verify_notices_lost_state(model: Path, tmp_path: Path) -> None:
    """The same network with another initial state or none differs at a later step."""
    other = tmp_path / "other.tflite"
    other.write_bytes(ring_buffer(initial=0.5))
    if model.stem == "ring_buffer":
        found = as_json("verify", other, model.with_suffix(".mslite"), code=1)
        assert not found["same"]


def test_verify_uses_both_limits(model: Path) -> None:
    """Of the range, or absolute: one of them is enough, and both are told."""
    bundle = model.with_suffix(".mslite")
    found = as_json("verify", model, bundle, "--tolerance", "0", "--absolute", "0.001")
    assert found["same"] and (found["tolerance"], found["absolute"]) == (0, 0.001)
    stdout, _ = msedge("verify", model, bundle, "--tolerance", "0.5", "--absolute", "0")
    assert "equal within 0.5 of each output's range, or 0, over 3 runs" in stdout


def test_bench_against_litert(model: Path) -> None:
    found = as_json("bench", model, "--against", "litert", "--rounds", "3")
    ours, theirs = found["runs"][0]["contenders"]
    assert theirs["name"] == "litert" and theirs["difference"] < 1e-5 and not found["runs"][0]["absent"]
    assert ours["seconds"] > 0


def test_run_continues_a_stream(tmp_path: Path) -> None:
    path, state, x = tmp_path / "ring.tflite", tmp_path / "ring.msstate", tmp_path / "x.npy"
    path.write_bytes(ring_buffer())
    msedge("convert", path, "-o", tmp_path / "ring.mslite")
    np.save(x, np.ones((1, 1, FRAME), np.float32))
    command = ["run", tmp_path / "ring.mslite", "-i", f"frame={x}", "--save-state", state]
    first = as_json(*command)["outputs"]
    second = as_json(*command, "--state", state)["outputs"]
    assert first != second and as_json(*command)["outputs"] == first
    assert [row["name"] for row in as_json("inspect", tmp_path / "ring.mslite")["state"]] == ["stream/ring"]


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    """A recurrent cell as exporters write it: h goes in, hn comes out."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((FRAME, 8)), "r": rng.standard_normal((8, 8)) / 4}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["h", "r"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Tanh", ["s"], ["hn"]),
        helper.make_node("ReduceSum", ["hn"], ["y"], keepdims=1),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
            (("x", [1, FRAME]), ("h", [1, 8]), ("y", [1, 1]), ("hn", [1, 8]))]  # fmt: skip
    kept = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "cell", ends[:2], ends[2:], kept)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "c.onnx")
    return tmp_path / "c.onnx"


def test_declared_state_of_an_onnx_model(cell: Path) -> None:
    """ONNX has no state: --state says which output continues as which input."""
    bundle = cell.with_suffix(".mslite")
    msedge("convert", cell, "-o", bundle, "--state", "h=hn")
    model = lite_runtime.load(bundle)
    assert [v.name for v in model.inputs()] == ["x"] and [v.name for v in model.outputs()] == ["y"]
    found = as_json("verify", cell, bundle, "--samples", "10", "--layers")
    assert found["same"] and found["runs"] == 10 and found["layers"]
    bench = as_json("bench", bundle, "--source", cell, "--against", "onnxruntime,openvino", "--rounds", "3")["runs"][0]
    assert [c["name"] for c in bench["contenders"]] == ["msedge", "onnxruntime", "openvino"] and not bench["absent"]
    assert all(c["difference"] < 1e-5 for c in bench["contenders"][1:])


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("h", "expected INPUT=OUTPUT"),
        ("g=hn", "expected an input of x, h, got 'g'"),
        ("h=z", "expected an output of y, hn, got 'z'"),
        ("h=y", "input 'h' is FLOAT[1, 8], output 'y' is FLOAT[1, 1]"),
    ],
)
def test_wrong_states(cell: Path, state: str, text: str) -> None:
    code = 2 if "=" not in state else 3
    _, stderr = msedge("convert", cell, "-o", cell.with_suffix(".mslite"), "--state", state, code=code)
    assert text in " ".join(stderr.split()) and not cell.with_suffix(".mslite").exists()


def test_a_real_denoiser() -> None:
    """DTLN's first part, whose LSTM state is an input and an output: a thousand steps, saved in between."""
    path = SHARED / "models" / "dtln_model_1.onnx"
    if not path.exists():
        pytest.skip("needs the shared models")
    import onnxruntime

    made = convert(path, state={"input_3": "tf_op_layer_stack_2"}).bundle
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    model, state = lite_runtime.load(made), np.zeros((1, 2, 128, 2), np.float32)
    rng = np.random.default_rng(0)
    for i in range(1000):
        x = np.abs(rng.standard_normal((1, 1, 257))).astype(np.float32)
        want, state = session.run(["activation_2", "tf_op_layer_stack_2"], {"input_2": x, "input_3": state})
        got = model.run({"input_2": x})["activation_2"]
        assert np.abs(got - want).max() < 1e-4
        if i == 500:
            model = lite_runtime.load(made, state=model.state_dict())
