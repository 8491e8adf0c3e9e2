"""What the signatures of a trainable bundle take, give and change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper as oh
from onnx import numpy_helper as onh

from converter import convert
from converter.errors import ConvertError, TrainingError
from converter.training.options import USUAL, Training
from lite_runtime import InputError, load
from tests.converter.training.models import batches, cnn, mlp, shaken


def _names(values: Any) -> list[str]:
    return [v.name for v in values]


def test_four_signatures_and_what_each_takes_and_gives() -> None:
    conversion = convert(mlp(), trainable="head.*")
    model = load(conversion.bundle)
    assert set(model.signatures) == {"predict", "train_step", "evaluate", "gradients"}
    assert _names(model.inputs()) == ["x"] and _names(model.outputs()) == ["logits"]
    for signature in ("train_step", "evaluate", "gradients"):
        assert _names(model.inputs(signature)) == ["x", "labels"]
    assert _names(model.outputs("train_step")) == ["loss"]
    assert _names(model.outputs("evaluate")) == ["loss", "examples", "correct"]
    assert _names(model.outputs("gradients")) == ["loss", "grad/head.weight", "grad/head.bias"]
    labels = model.inputs("train_step")[1]
    assert labels.dtype == "int64" and labels.shape == model.inputs()[0].shape[:1]  # type: ignore[index]
    facts = conversion.report.training
    assert facts["parameters"] == [{"name": "head.weight", "shape": [3, 8]}, {"name": "head.bias", "shape": [3]}]
    assert facts["count"] == 27 and facts["bytes"] == 108 and facts["state_bytes"] == 2 * 108 + 4
    assert conversion.report.golden == "stored"


def test_curvature_is_the_change_of_the_gradient() -> None:
    """Along any direction: the central difference of gradients, in the limit."""
    model = load(convert(mlp(), trainable=Training("*", signatures=(*USUAL, "curvature"))).bundle)
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((8, 6), np.float32), "labels": rng.integers(0, 3, 8)}
    start = {name: value.copy() for name, value in model.state_dict().items()}
    names = [name.removeprefix("grad/") for name in _names(model.outputs("gradients")) if name != "loss"]
    assert _names(model.outputs("curvature")) == [f"curve/{name}" for name in names]
    along = {name: rng.standard_normal(start[name].shape).astype(np.float32) for name in names}

    def gradients(side: float) -> dict[str, Any]:
        model.load_state_dict({name: start[name] + np.float32(side) * along[name] for name in names}, strict=False)
        return {name: value.copy() for name, value in model.run(feed, "gradients").items()}

    above, below = gradients(1e-2), gradients(-1e-2)
    model.load_state_dict(start)
    found = model.run({**feed, **{f"along/{name}": value for name, value in along.items()}}, "curvature")
    for name in names:
        want = (above[f"grad/{name}"] - below[f"grad/{name}"]) / 2e-2
        np.testing.assert_allclose(found[f"curve/{name}"], want, atol=0.02 * np.abs(want).max() + 1e-4, err_msg=name)


def test_a_gradient_that_has_none_is_named() -> None:
    nodes = [oh.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)]
    weights = {"w": np.ones((1, 12, 2), np.float32), "r": np.ones((1, 12, 3), np.float32)}
    inputs = [oh.make_tensor_value_info("x", 1, ["T", "N", 2])]
    outputs = [oh.make_tensor_value_info("y", 1, ["T", 1, "N", 3])]
    held = [onh.from_array(value, name) for name, value in weights.items()]
    source = oh.make_model(oh.make_graph(nodes, "g", inputs, outputs, held), opset_imports=[oh.make_opsetid("", 20)])
    convert(source, trainable="*")
    with pytest.raises(TrainingError, match=r"signature curvature: .* differentiated once more, but .*\n.*LSTMGrad"):
        convert(source, trainable=Training("*", signatures=(*USUAL, "curvature")))


def test_signatures_can_be_left_out() -> None:
    model = load(convert(mlp(), trainable=Training("*", signatures=("gradients",))).bundle)
    assert model.signatures == ("gradients",)
    assert set(model.state_dict()) == {"body0.weight", "body0.bias", "head.weight", "head.bias"}


def test_evaluate_and_gradients_change_nothing_and_train_step_does() -> None:
    source = mlp()
    model = load(convert(source, trainable="*").bundle)
    x, labels = batches(source, 3, 16, 1)[0]
    start = model.state_dict()
    before = model.run({"x": x, "labels": labels}, "evaluate")
    assert before["correct"] == (model.run({"x": x})["logits"].argmax(-1) == labels).sum()
    model.run({"x": x, "labels": labels}, "gradients")
    assert all(np.array_equal(start[name], value) for name, value in model.state_dict().items())
    for _ in range(30):
        model.run({"x": x, "labels": labels}, "train_step")
    after = model.run({"x": x, "labels": labels}, "evaluate")
    assert after["loss"] < before["loss"] and after["examples"] == 16
    changed = [name for name, value in model.state_dict().items() if not np.array_equal(start[name], value)]
    assert set(changed) == set(start) - {"hyper/learning_rate"}


def test_a_device_sets_the_learning_rate() -> None:
    source = mlp()
    x, labels = batches(source, 3, 4, 1)[0]
    model = load(convert(source, trainable=Training("*", optimizer="sgd", learning_rate=1.0)).bundle)
    start = model.state_dict()
    gradient = model.run({"x": x, "labels": labels}, "gradients")["grad/head.weight"]
    model.load_state_dict({"hyper/learning_rate": np.float32(0.25)}, strict=False)
    model.run({"x": x, "labels": labels}, "train_step")
    np.testing.assert_allclose(model.state_dict()["head.weight"], start["head.weight"] - 0.25 * gradient, rtol=1e-6)


def test_any_batch_size_and_short_batches_filled_up() -> None:
    source = cnn()
    model = load(convert(source, trainable=Training("*", optimizer="sgd")).bundle)
    x, labels = batches(source, 4, 7, 1)[0]
    for size in (1, 2, 7):
        model.run({"x": x[:size], "labels": labels[:size]}, "train_step")
    model.reset_state()
    short = model.run({"x": x[:3], "labels": labels[:3]}, "gradients")
    filled = np.where(np.arange(7) < 3, labels, -1)
    for name, value in model.run({"x": x, "labels": filled}, "gradients").items():
        np.testing.assert_allclose(value, short[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_step_that_cannot_run_changes_nothing() -> None:
    source = mlp()
    model = load(convert(source, trainable="*").bundle)
    x, labels = batches(source, 3, 4, 1)[0]
    start = model.state_dict()
    for feed in ({"x": x, "labels": labels[:3]}, {"x": x}, {"x": x, "labels": labels.astype(np.float32)}):
        with pytest.raises(InputError):
            model.run(feed, "train_step")
    assert all(np.array_equal(start[name], value) for name, value in model.state_dict().items())


def test_the_loss_reads_the_logits_before_a_last_softmax() -> None:
    x, labels = batches(mlp(), 3, 4, 1)[0]
    feed = {"x": x, "labels": labels}
    plain, soft = (load(convert(mlp(softmax=s), trainable="*").bundle) for s in (False, True))
    assert soft.run({"x": x})["probabilities"].sum(-1) == pytest.approx(1.0)
    wanted = plain.run(feed, "gradients")
    for name, value in soft.run(feed, "gradients").items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("loss", ["mse", "huber", "sigmoid_cross_entropy"])
def test_other_losses_go_down(loss: Any) -> None:
    source = mlp()
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((8, 6), np.float32), "labels": rng.random((8, 3), np.float32).round()}
    model = load(convert(source, trainable=Training("*", loss=loss, optimizer="adam", learning_rate=0.05)).bundle)
    first = model.run(feed, "train_step")["loss"]
    for _ in range(40):
        last = model.run(feed, "train_step")["loss"]
    assert last < 0.7 * first
    np.testing.assert_allclose(model.run(feed, "evaluate")["loss"], model.run(feed, "gradients")["loss"], rtol=1e-6)


def test_running_statistics_move_and_predictions_follow_them() -> None:
    source = shaken(cnn())
    model = load(convert(source, trainable=Training("*", optimizer="sgd", batch_norm="train")).bundle)
    x, labels = batches(source, 4, 8, 1)[0]
    before = [model.run({"x": x})["logits"] for _ in range(4)][-1]
    model.run({"x": x, "labels": labels}, "gradients")
    assert [n for n in model.state_dict() if "running" in n]
    assert np.abs(model.run({"x": x})["logits"] - before).max() > 1e-4
    wanted = load(convert(source, trainable=Training("*", optimizer="sgd", batch_norm="train")).bundle)
    wanted.load_state_dict(model.state_dict())
    for _ in range(4):
        np.testing.assert_allclose(model.run({"x": x})["logits"], wanted.run({"x": x})["logits"], rtol=1e-6)


def test_combinations_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="only a bundle can be trainable"):
        convert(mlp(), trainable="*", to="onnx")
    with pytest.raises(TrainingError, match=r"matches 'nothing'; there are 'body0\.weight'"):
        convert(mlp(), trainable="nothing", output=tmp_path / "m.mslite")
    assert not list(tmp_path.iterdir())
    source = mlp()
    source.graph.inputs[0].name = "labels"
    with pytest.raises(ConvertError, match="rename it"):
        convert(source, trainable="*")


def test_the_last_layer_of_a_real_classifier(shared_models: Path) -> None:
    path = shared_models / "mlperftiny_ic_resnet8_fp32.tflite"
    plain = load(convert(path).bundle)
    training = Training("model/dense/*", optimizer="adam", learning_rate=0.05)
    model = load(convert(path, trainable=training).bundle)
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 255, (8, 32, 32, 3)).astype(np.float32)
    feed = {"input_1": x, "labels": rng.integers(0, 10, 8)}
    (output,) = _names(plain.outputs())
    np.testing.assert_allclose(model.run({"input_1": x})[output], plain.run({"input_1": x})[output], atol=1e-4)
    losses = [float(model.run(feed, "train_step")["loss"]) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    assert model.run(feed, "evaluate")["correct"] > 5
    names = {name for name in model.state_dict() if "/" in name and not name.startswith(("hyper", "optimizer"))}
    assert names == {"model/dense/MatMul", "model/dense/BiasAdd/ReadVariableOp/resource"}
