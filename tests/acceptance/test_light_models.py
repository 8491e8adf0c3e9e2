"""The large networks that ONNX ships without their weights: filled with random weights, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import converter
import lite_runtime

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = ["squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121", "resnet50"]


def _with_weights(path: Path, rng: np.random.Generator) -> onnx.ModelProto:
    """The model with each constant it fills from a shape replaced by random numbers that keep activations in range."""
    model = onnx.load(path)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        if len(shape) > 1:
            weights = rng.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        else:  # biases, and statistics that must be positive
            weights = rng.uniform(0.5, 1.5, shape)
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32, copy=False), node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    path = tmp_path / "model.onnx"
    onnx.save(_with_weights(FOLDER / f"light_{name}.onnx", rng), path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    # One after the other: ResNet-50's weights are 100 MB in each.
    session = onnxruntime.InferenceSession(path, options)
    inputs = {v.name: rng.standard_normal(v.shape).astype(np.float32) for v in session.get_inputs()}
    wanted = {v.name: y for v, y in zip(session.get_outputs(), session.run(None, inputs), strict=True)}
    del session
    bundle = converter.convert(path).bundle
    runtime = lite_runtime.load(bundle, backend="native")
    del bundle
    assert {v.name for v in runtime.inputs()} == inputs.keys()
    got = runtime.run(inputs)
    assert runtime.cost(inputs).reference == () and got.keys() == wanted.keys()
    for title, want in wanted.items():
        assert np.abs(got[title] - want).max() <= 1e-4 * np.ptp(want), title


def test_weights_made_from_shapes_stay_small_in_the_file_and_native_in_memory() -> None:
    data = converter.convert(FOLDER / "light_squeezenet.onnx").bundle
    model = lite_runtime.load(data, backend="native")
    inputs = {v.name: np.ones([int(d) for d in v.shape or ()], np.float32) for v in model.inputs()}
    assert len(data) < 1 << 16 and model.cost(inputs).reference == ()
