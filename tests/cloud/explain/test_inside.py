"""Grad-CAM and relevance: closed forms, what is conserved, ONNX models beside their bundles."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud import zoo
from cloud.audit.victim import from_bundle, from_onnx
from cloud.explain import METHODS, RULES, GraphSubject, channel_map, grad_cam, graph_subject, layers_of, lrp, methods
from lite_runtime.errors import ExplainError
from lite_runtime.explaining import Limits, explain, wish_for
from tests.cloud.models import parsed, tiny_net

X = np.random.default_rng(1).random((1, 8, 8), np.float32)


def convolutional() -> ir.Model:
    """Images to two classes, without biases."""
    b = zoo.Builder("net", 2)
    y = b.relu(b.conv(b.input("x", ("batch", 1, 8, 8)), 4, 3, name="first"), name="shown")
    y = b.relu(b.conv(y, 6, 3, stride=2, name="second"), name="last")
    weights = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    pooled = b.global_average_pool(y)
    return b.model(logits=b.op("MatMul", pooled, b.weight("w", weights), shape=("batch", 2)))


@pytest.fixture(scope="module")
def subject() -> GraphSubject:
    return graph_subject(from_onnx(convolutional()))


@pytest.mark.parametrize("rules", sorted(RULES))
def test_relevance_adds_up_to_the_score(subject: GraphSubject, rules: str) -> None:
    found = lrp(subject, X, 1, rules=rules)
    assert found.score == pytest.approx(subject.scores(X[None])[0, 1], rel=1e-5)
    assert found.attributions.sum() == pytest.approx(found.score, rel=1e-3)


def test_the_epsilon_rule_without_biases_is_the_gradient_times_the_input(subject: GraphSubject) -> None:
    """Ancona et al. 2018, "Towards Better Understanding of Gradient-based Attribution Methods", for ReLU networks."""
    wanted = explain(subject, X, "input_x_gradient", wish_for(subject, X), 0).attributions
    np.testing.assert_allclose(lrp(subject, X, 0, rules="epsilon").attributions, wanted, atol=2e-5)


@pytest.mark.parametrize(
    ("rules", "wanted"), [("epsilon", [2, -4, 3]), ("gamma", [2.5, -4, 3.75]), ("z_plus", [2, 0, 3])]
)
def test_a_dense_layer_shares_by_the_rule(rules: str, wanted: list[float]) -> None:
    model = parsed("a (float[n, 3] x) => (float[n, 2] y) <float[3, 2] w = {1, 0, -2, 1, 3, 1}> { y = MatMul(x, w) }")
    found = lrp(graph_subject(from_onnx(model)), np.array([2.0, 2.0, 1.0], np.float32), 0, rules=rules)
    assert found.score == pytest.approx(1)
    assert found.attributions == pytest.approx(np.array(wanted) / sum(wanted), rel=1e-4)


def test_a_bias_keeps_its_part_with_epsilon_and_nothing_with_the_others() -> None:
    model = parsed(
        "agraph (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 1, 1, 2}, float[2] b = {2, 0}> "
        "{ z = MatMul(x, w) y = Add(z, b) }"
    )
    subject, x = graph_subject(from_onnx(model)), np.ones(2, np.float32)
    assert lrp(subject, x, 0, rules="epsilon").attributions == pytest.approx([1, 1], rel=1e-4)
    assert lrp(subject, x, 0, rules="z_plus").attributions == pytest.approx([2, 2], rel=1e-4)


def test_grad_cam_is_the_mean_gradient_times_the_channels(subject: GraphSubject) -> None:
    """Behind the last layer there is a mean and a matrix: the gradient of each element is known."""
    layer = layers_of(subject)[-1]
    assert layer == "last"
    found, score = channel_map(subject, X, 1, layer)
    assert found.sum() == pytest.approx(score, rel=1e-4) and found.shape == (4, 4)
    whole = grad_cam(subject, X, 1, relu=False)
    assert whole.settings["layer"] == "last" and whole.attributions.shape == (1, 8, 8)
    assert whole.attributions.mean() == pytest.approx(found.mean(), rel=0.3)
    assert grad_cam(subject, X, 1).attributions.min() >= 0
    assert grad_cam(subject, X, 1, layer="first").attributions.shape == (1, 8, 8)


def test_a_bundle_is_explained_as_its_onnx_model() -> None:
    """The bundle's graph has fused activations, sums of branches, channels last, and a softmax at the end."""
    source = zoo.resnet8((1, 8, 8), seed=2, softmax=True, filters=(4, 8))
    onnx, bundle = (
        graph_subject(white) for white in (from_onnx(source), from_bundle(converter.convert(source).bundle))
    )
    for name in ("saliency", "grad_cam", "lrp"):
        one, other = (explain(s, X, name, wish_for(s, X), 3, METHODS).attributions for s in (onnx, bundle))
        np.testing.assert_allclose(one, other, atol=1e-3 * abs(one).max(), err_msg=name)


def test_batch_norm_takes_part() -> None:
    subject = graph_subject(from_onnx(tiny_net()))
    found = lrp(subject, X, 4, rules="epsilon")
    wanted = explain(subject, X, "input_x_gradient", wish_for(subject, X), 4).attributions
    np.testing.assert_allclose(found.attributions, wanted, atol=1e-4)


def test_what_does_not_fit_is_refused(subject: GraphSubject) -> None:
    with pytest.raises(ExplainError, match="expected one of first, shown, second, last, got 'third'"):
        grad_cam(subject, X, 0, layer="third")
    with pytest.raises(ExplainError, match="expected one of epsilon"):
        lrp(subject, X, 0, rules="alpha")
    dense = graph_subject(from_onnx(zoo.mlp(64, 10, [8])))
    with pytest.raises(ExplainError, match="needs a convolution"):
        grad_cam(dense, X.reshape(64), 0)
    odd = parsed("agraph (float[n, 2] x) => (float[n, 2] y) { z = Sin(x) y = Div(z, x) }")
    with pytest.raises(ExplainError, match=r"no rule for Sin as they are used here; integrated_gradients"):
        lrp(graph_subject(from_onnx(odd)), X[0, 0, :2], 0)
    with pytest.raises(ExplainError, match="lrp needs 1 rows"):
        limited = subject.within(Limits(rows=1))
        limited.scores(X[None])
        explain(limited, X, "lrp", wish_for(limited, X), 0, methods(rules="gamma"))
