"""The signature `explain` of a bundle: its gradients, what it is of, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import converter
import lite_runtime
from cloud import zoo
from converter.errors import TrainingError
from edge.cli.app import app
from lite_runtime.explaining import integrated_gradients, saliency, subject_of
from tests.cloud.models import parsed, tiny_net

IMAGES = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)


def scores(model: lite_runtime.Model, x: np.ndarray) -> np.ndarray:
    return np.asarray(model.run({"x": x})["logits"], np.float64)


def test_slopes_are_finite_differences() -> None:
    model = lite_runtime.load(converter.convert(zoo.mlp(5, 3, [8], seed=4), explainable=True).bundle)
    x = np.random.default_rng(1).standard_normal(5).astype(np.float32)
    found = saliency(subject_of(model), x, 2)
    steps = 1e-2 * np.eye(5, dtype=np.float32)
    wanted = (scores(model, x + steps) - scores(model, x - steps))[:, 2] / 2e-2
    np.testing.assert_allclose(found.attributions, wanted, atol=1e-3)
    assert found.score == pytest.approx(scores(model, x[None])[0, 2], abs=1e-5)


def test_scores_are_those_before_a_softmax() -> None:
    source = parsed(
        "a (float[n, 2] x) => (float[n, 2] scores) <float[2, 2] w = {1, 0, 0, 2}> "
        "{ z = MatMul(x, w) scores = Softmax<axis = -1>(z) }"
    )
    subject = subject_of(lite_runtime.load(converter.convert(source, explainable=True).bundle))
    found = saliency(subject, np.float32([9, 1]), 1)
    assert found.score == pytest.approx(2) and found.attributions == pytest.approx([0, 2])


def test_integers_predict_and_floats_explain() -> None:
    made = converter.convert(tiny_net(), explainable=True, quantize="int8", calibration={"x": IMAGES})
    plain = converter.convert(tiny_net(), explainable=True)
    one, other = (subject_of(lite_runtime.load(each.bundle)) for each in (made, plain))
    deployed = subject_of(lite_runtime.load(made.bundle), plain=True)
    assert one.has_gradient and not deployed.has_gradient and deployed.meaning == "output logits"
    found = [integrated_gradients(s, IMAGES[0], 3, baselines=0 * IMAGES[0], steps=32) for s in (one, other)]
    np.testing.assert_allclose(found[0].attributions, found[1].attributions, atol=1e-5)
    assert abs(found[0].gap or 0) < 1e-2
    assert not np.allclose(deployed.scores(IMAGES), one.scores(IMAGES), atol=1e-4)


def test_a_fixed_batch_is_filled_up() -> None:
    made = converter.convert(tiny_net(), explainable=True, input_shapes={"x": (4, 1, 8, 8)}).bundle
    opened = converter.convert(tiny_net(), explainable=True).bundle
    one, other = (subject_of(lite_runtime.load(each)) for each in (made, opened))
    np.testing.assert_allclose(one.gradient(IMAGES[:6], 1), other.gradient(IMAGES[:6], 1), atol=1e-5)


def test_the_command_writes_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    there = tmp_path_factory.mktemp("made")
    ir.save(zoo.mlp(5, 3, [8]), there / "net.onnx")
    np.save(there / "x.npy", np.ones((1, 5), np.float32))
    run = CliRunner().invoke
    done = run(app, ["convert", f"{there}/net.onnx", "-o", f"{there}/net.mslite", "--explainable"])
    assert done.exit_code == 0, done.output
    done = run(app, ["explain", f"{there}/net.mslite", "-i", f"{there}/x.npy"])
    assert "integrated_gradients: logit, by the bundle's signature explain" in done.output, done.output
    assert run(app, ["verify", f"{there}/net.onnx", f"{there}/net.mslite"]).exit_code == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("a (float[n, 2] x) => (float[n, 2, 2] y) { a = Constant<value_ints = [1]>() z = Unsqueeze(x, a) "
         "y = Concat<axis = 1>(z, z) }", r"float32 \[rows, classes\] or \[rows\], got y"),
        ("a (int64[n, 2] x) => (float[n, 2] y) { y = Cast<to = 1>(x) }", "an input of float32"),
    ],
)  # fmt: skip
def test_what_has_no_gradient_is_refused(body: str, words: str) -> None:
    with pytest.raises(TrainingError, match=words):
        converter.convert(parsed(body), explainable=True)


def test_operators_without_a_gradient_are_listed() -> None:
    body = "a (float[n, 2, 2] x) => (float[n] y) { y = Det(x) }"
    with pytest.raises(TrainingError, match=r"explainable: the scores are differentiated, but .*(?s:.*)Det"):
        converter.convert(parsed(body), explainable=True)


def test_what_does_not_go_together_is_refused() -> None:
    for words, more in (("only a bundle", {"to": "onnx"}), ("slopes", {"trainable": "*"})):
        with pytest.raises(TrainingError, match=words):
            converter.convert(zoo.mlp(5, 3, [8]), explainable=True, **more)  # type: ignore[arg-type]
