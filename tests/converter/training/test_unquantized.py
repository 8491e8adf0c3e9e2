"""Training parts of models that come quantised: they become float, what is before them stays on integers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter import convert
from converter.ir import build
from converter.pass_lists import to_ir
from converter.training import Training, parameters
from lite_runtime import load
from tests.converter.training.models import INT8, batches, cnn, shaken


@cache
def _quantised() -> tuple[bytes, Any, Any]:
    """Standard ONNX in QDQ form, with rows and labels."""
    source = shaken(cnn())
    x, labels = batches(source, 4, 32, 1)[0]
    return convert(source, to="onnx", quantize=INT8, calibration={"x": x}).bundle, x, labels


@pytest.mark.parametrize(("glob", "integer"), [("*head.weight*", 3), ("*last.conv.weight*", 2), ("*", 0)])
def test_nodes_that_depend_on_a_parameter_become_float_again(glob: str, integer: int) -> None:
    source, x, labels = _quantised()
    plain = load(convert(source).bundle).run({"x": x})["logits"]
    model = load(convert(source, trainable=Training(glob, optimizer="adam", learning_rate=0.02)).bundle)
    assert [n.op for n in model.bundle.signatures["train_step"].nodes].count("QLinearConv") == integer
    got = model.run({"x": x})["logits"]
    assert np.abs(got - plain).max() < 0.1 * np.ptp(plain)
    start = {name: value for name, value in model.state_dict().items() if "/" not in name}
    losses = [float(model.run({"x": x, "labels": labels}, "train_step")["loss"]) for _ in range(40)]
    assert losses[-1] < 0.9 * losses[0]
    model.load_state_dict({name: 10 * value for name, value in start.items()}, strict=False)  # no range clips it
    assert np.abs(model.run({"x": x})["logits"]).max() > 3 * np.abs(plain).max()


def test_steps_behind_the_parameters_go_and_others_stay() -> None:
    model = to_ir(_quantised()[0])
    before = sum(build.is_op(node, "QuantizeLinear") for node in model.graph)
    (name,) = [n for n in parameters.stored(model, model.graph.outputs[0]) if n.startswith("head.weight")]
    chosen = parameters.choose(model, (name,), "")
    assert list(chosen) == [name] and chosen[name].dtype is not None and chosen[name].dtype.name == "FLOAT"
    after = sum(build.is_op(node, "QuantizeLinear") for node in model.graph)
    assert before - 1 <= after <= before


@pytest.mark.parametrize(
    ("file", "glob"),
    [
        ("mlperftiny_ic_resnet8_int8.tflite", "model/dense/*"),
        ("mlperftiny_kws_dscnn_int8.tflite", "*/dense/*"),
        ("mlperftiny_kws_dscnn_dynrange.tflite", "*/dense/*"),
    ],
)
def test_the_last_layer_of_a_real_integer_model(shared_models: Path, file: str, glob: str) -> None:
    plain = load(convert(shared_models / file).bundle)
    conversion = convert(shared_models / file, trainable=Training(glob, optimizer="adam", learning_rate=0.01))
    model = load(conversion.bundle)
    assert {len(p["shape"]) for p in conversion.report.training["parameters"]} == {1, 2}
    rng = np.random.default_rng(0)
    (value,) = model.inputs()
    shape = (8, *(d for d in value.shape or () if isinstance(d, int)))
    x = rng.integers(-100, 100, shape).astype(value.dtype)
    output = model.outputs()[0].name
    wanted, got = (m.run({value.name: x})[output].astype(np.float32) for m in (plain, model))
    assert np.abs(got - wanted).max() <= (8 if wanted.max() > 1 else 1e-5)
    feed = {value.name: x, "labels": rng.integers(0, wanted.shape[1], 8)}
    losses = [float(model.run(feed, "train_step")["loss"]) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
