"""Streaming models through conversion: the file's variables are the bundle's state, as LiteRT keeps them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT

import lite_runtime
from converter import convert
from converter.errors import QuantizeError, TrainingError
from converter.frontends import tflite
from converter.ir.kept import ends
from converter.quantize.accuracy.evaluation import Accuracy
from lite_runtime.running.interpreter import Interpreter
from tests.converter.frontends.tflite.support import floats
from tests.converter.streams import (
    FRAME,
    denoiser,
    integer_lstm,
    large_cell,
    ring_buffer,
    two_signatures,
    wake_word,
)

STEPS = 1000
MODELS: dict[str, tuple[Callable[[], bytes], tuple[int, ...]]] = {
    "wake word": (wake_word, (1, FRAME)),
    "wake word in integers": (lambda: wake_word(quantised=True), (1, FRAME)),
    "LSTM in integers": (lambda: integer_lstm()[0], (1, 1, FRAME)),
    "denoiser": (denoiser, (1, 1, FRAME)),
    "large cell": (large_cell, (1, 2, FRAME)),
    "ring buffer": (ring_buffer, (1, 1, FRAME)),
    "ring buffer with initial values": (lambda: ring_buffer(initial=0.5), (1, 1, FRAME)),
}


@pytest.fixture(params=MODELS)
def stream(request: pytest.FixtureRequest) -> tuple[bytes, bytes, np.ndarray, np.ndarray]:
    """A model, its bundle, STEPS inputs, and LiteRT's outputs."""
    make, shape = MODELS[request.param]
    data = make()
    theirs = LiteRT(model_content=data, num_threads=1)
    theirs.allocate_tensors()
    (entry,), (result,) = theirs.get_input_details(), theirs.get_output_details()
    inputs = floats(STEPS, *shape, seed=7)
    if entry["dtype"] == np.int8:
        scale, zero = entry["quantization"]
        inputs = np.clip(np.rint(inputs / scale) + zero, -128, 127).astype(np.int8)
    outputs = []
    for x in inputs:
        theirs.set_tensor(entry["index"], x)
        theirs.invoke()
        outputs.append(theirs.get_tensor(result["index"]))
    return data, convert(data).bundle, inputs, np.stack(outputs)


def agree(got: np.ndarray, expected: np.ndarray) -> None:
    """Floats within 1e-5 of the range, integers bit for bit."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    far = np.abs(got.astype(np.float64) - expected)
    if expected.dtype == np.int8:
        assert not far.any(), (far.max(), np.mean(far > 0))
    else:
        assert far.max() <= 1e-5 * np.abs(expected).max(), far.max()


def test_a_thousand_steps(stream: tuple[bytes, bytes, np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """`Model.run` keeps the state; in the middle it is saved, and another process would continue from the file."""
    _, bundle, inputs, expected = stream
    model = lite_runtime.load(bundle)
    (entry,), (result,) = model.inputs(), model.outputs()
    assert not model.cost({entry.name: inputs[0]}).reference
    half = STEPS // 2
    got = [model.run({entry.name: x})[result.name] for x in inputs[:half]]
    model.save_state(tmp_path / "stream.msstate")
    kept = model.state_dict()
    other = lite_runtime.load(bundle, threads=2, state=tmp_path / "stream.msstate")
    got += [other.run({entry.name: x})[result.name] for x in inputs[half:]]
    agree(np.stack(got), expected)
    other.load_state_dict(kept)
    again = [other.run({entry.name: x})[result.name] for x in inputs[half : half + 3]]
    np.testing.assert_array_equal(np.stack(again), np.stack(got[half : half + 3]))
    model.reset_state()
    np.testing.assert_array_equal(model.run({entry.name: inputs[0]})[result.name], got[0])


def test_a_thousand_steps_by_the_interpreter(stream: tuple[bytes, bytes, np.ndarray, np.ndarray]) -> None:
    data, bundle, inputs, expected = stream
    ours, theirs = Interpreter(model_content=bundle), LiteRT(model_content=data)
    ours.allocate_tensors()
    (entry,), (result,) = ours.get_input_details(), ours.get_output_details()
    for mine, other in ((entry, theirs.get_input_details()[0]), (result, theirs.get_output_details()[0])):
        assert mine["name"] == other["name"] and mine["quantization"] == pytest.approx(other["quantization"], abs=0)
        for name, values in other["quantization_parameters"].items():
            np.testing.assert_array_equal(mine["quantization_parameters"][name], values)
    got = []
    for x in inputs:
        ours.set_tensor(entry["index"], x)
        ours.invoke()
        got.append(ours.get_tensor(result["index"]))
    agree(np.stack(got), expected)
    ours.reset_all_variables()
    ours.set_tensor(entry["index"], inputs[0])
    ours.invoke()
    np.testing.assert_array_equal(ours.get_tensor(result["index"]), got[0])
    ours.allocate_tensors()
    ours.set_tensor(entry["index"], inputs[1])
    ours.invoke()
    np.testing.assert_array_equal(ours.get_tensor(result["index"]), got[1])  # as LiteRT: only a resize resets
    ours.resize_tensor_input(entry["index"], inputs[0].shape)
    ours.allocate_tensors()
    ours.set_tensor(entry["index"], inputs[0])
    ours.invoke()
    np.testing.assert_array_equal(ours.get_tensor(result["index"]), got[0])


def test_a_failed_step_changes_nothing() -> None:
    model = lite_runtime.load(convert(denoiser()).bundle)
    model.run({"magnitudes": floats(1, 1, FRAME)})
    before = model.state_dict()
    with pytest.raises(lite_runtime.InputError):
        model.run({"magnitudes": floats(1, 2, FRAME)})
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_signatures_share_a_variable() -> None:
    model = lite_runtime.load(convert(two_signatures()).bundle)
    assert set(model.signatures) == {"predict", "add", "read"}
    assert list(model.state_dict()) == ["sum"]
    x, one = floats(3), np.ones(1, np.float32)
    model.run({"x": x}, "add")
    model.run({"x": x}, "predict")
    np.testing.assert_array_equal(model.run({"scale": 2 * one}, "read")["scaled"], 4 * x)
    assert [v.name for v in model.inputs("read")] == ["scale"] and [v.name for v in model.outputs("read")] == ["scaled"]


def test_equal_names_of_variables_in_two_subgraphs_are_two_states() -> None:
    """Tensors that keep their contents belong to their subgraph, whatever their names."""
    from tests.converter.frontends.tflite.builder import Builder

    b = Builder()
    signatures = {}
    for name in ("left", "right"):
        graph = b if name == "left" else b.subgraph(name)
        x = graph.input("x", (1, 4))
        weights = [graph.const(np.eye(4, dtype=np.float32)), graph.const(np.eye(4, dtype=np.float32))]
        operands = [x, *weights, graph.const(np.zeros(4, np.float32)), graph.variable("h", (1, 4))]
        y = graph.op("RNN", operands, (1, 4), fused_activation_function="NONE")
        graph.output(y)
        signatures[name] = (x, y, graph)
    for name, (x, y, graph) in signatures.items():
        b.signature(name, {"x": x}, {"y": y}, graph)
    model = lite_runtime.load(convert(b.build()).bundle)
    assert sorted(model.state_dict()) == ["h@0", "h@1"]
    one = np.ones((1, 4), np.float32)
    for _ in range(3):
        model.run({"x": one}, "left")
    np.testing.assert_array_equal(model.run({"x": one}, "right")["y"], one)
    np.testing.assert_array_equal(model.run({"x": one}, "left")["y"], 4 * one)


def test_a_variable_that_a_tensor_is_named_after() -> None:
    """The variable's input gets another name than the tensor's; the state is still found (it was not)."""
    from tests.converter.frontends.tflite.builder import Builder

    b = Builder()
    x = b.input("total", (3,))
    handle = b.op("VAR_HANDLE", [], (), "resource", shared_name="total")
    read = b.op("READ_VARIABLE", [handle], (3,), "float32")
    total = b.op("ADD", [read, x], (3,), "float32")
    b.node("ASSIGN_VARIABLE", [handle, total], [])
    b.output(total)
    model = lite_runtime.load(convert(b.build()).bundle)
    for i in range(1, 4):
        got = model.run({"total": np.ones(3, np.float32)})
        np.testing.assert_array_equal(next(iter(got.values())), np.full(3, i, np.float32))


def test_int8_from_a_stream_of_float_frames() -> None:
    """Calibration runs the stream, so that the ranges of the state are those in use; state stays float."""
    frames = floats(64, 1, 1, FRAME, seed=3)
    exact, small = convert(denoiser()), convert(denoiser(), quantize="int8", calibration={"magnitudes": frames})
    float_, int8 = lite_runtime.load(exact.bundle), lite_runtime.load(small.bundle)
    assert int8.state_dict().keys() == float_.state_dict().keys()
    error, power = 0.0, 0.0
    for x in frames:
        want, got = (next(iter(m.run({"magnitudes": x}).values())) for m in (float_, int8))
        error += float(np.square(want - got).sum())
        power += float(np.square(want).sum())
    assert error < 1e-3 * power  # 30 dB
    again = convert(denoiser(), quantize="int8", calibration={"magnitudes": frames})
    assert again.bundle == small.bundle


def test_int8_inputs_leave_the_state_as_it_is() -> None:
    from converter.quantize import Options

    frames = floats(64, 1, FRAME, seed=3)
    made = convert(wake_word(), quantize=Options(mode="int8", io="int8"), calibration={"frame": frames})
    model = lite_runtime.load(made.bundle)
    assert [v.dtype for v in model.inputs()] == ["int8"]
    assert {array.dtype for array in model.state_dict().values()} == {np.dtype(np.float32)}
    interpreter = Interpreter(model_content=made.bundle)
    scale, zero = interpreter.get_input_details()[0]["quantization"]
    assert scale > 0 and -128 <= zero <= 127


def test_standard_onnx_describes_the_state() -> None:
    """Standard ONNX has no state: the variables are inputs and outputs, and the metadata say which."""
    import onnx

    made = onnx.load_from_string(convert(ring_buffer(initial=0.5), to="onnx").bundle)
    assert {v.name for v in made.graph.input} == {"frame", "stream/ring"}
    assert "stream/ring.next" in {v.name for v in made.graph.output}
    found = tflite.load(ring_buffer()).models["predict"]
    assert ends(found.graph) == {"stream/ring", "stream/ring.next"}


def test_what_a_stream_cannot_be() -> None:
    with pytest.raises(TrainingError, match="expected a source without variables, got memory0, memory1"):
        convert(wake_word(), trainable="*")
    frames = {"frame": floats(8, 1, FRAME)}
    with pytest.raises(QuantizeError, match=r"accuracy.*measured on the calibration data"):
        convert(wake_word(), quantize="int8", calibration=frames, accuracy=Accuracy(0.5, data=frames))
    with pytest.raises(QuantizeError, match="is empty"):
        convert(wake_word(), quantize="int8", calibration={"frame": floats(0, 1, FRAME)})
    with pytest.raises(QuantizeError, match="memory0"):
        convert(wake_word(), quantize="int8", calibration=frames | {"memory0": floats(8, 1, 72)})
