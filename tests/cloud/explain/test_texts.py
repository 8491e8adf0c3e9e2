"""Models of token ids: scores as the runtime's, gradients by the vectors, positions of a language model."""

from __future__ import annotations

import numpy as np
import pytest

import converter
import lite_runtime
from cloud import zoo
from cloud.explain import METHODS, GraphSubject, text_from_bundle, text_from_onnx
from lite_runtime.errors import ExplainError
from lite_runtime.explaining import Subject, explain, subject_of, wish_for
from tests.cloud.models import parsed

IDS = np.array([5, 3, 7, 2, 0, 0], np.int32)


@pytest.fixture(scope="module")
def classifier() -> tuple[Subject, Subject]:
    """BERT by its bundle, and as deployed."""
    data = converter.convert(zoo.bert(6, 3, vocabulary=9, positions=8, width=8, layers=1, seed=2)).bundle
    return text_from_bundle(data), subject_of(lite_runtime.load(data), plain=True)


def test_gradients_are_those_of_the_vectors(classifier: tuple[Subject, Subject]) -> None:
    """By differences of the score; padding has none, because nothing attends to it."""
    subject = classifier[0]
    assert subject.embedding is not None
    around, vectors = subject.embedding.around(IDS), subject.embedding.vectors(IDS[None])[0]
    slopes = around.gradient(vectors[None], 1)[0]
    assert around.shape == (6, 8) and not slopes[4:].any() and slopes[:4].any(1).all()
    step = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32) * 1e-3
    moved = around.scores(np.stack([vectors + step, vectors - step]))[:, 1]
    assert (moved[0] - moved[1]) / 2 == pytest.approx((slopes * step).sum(), rel=2e-2)


def test_relevance_of_tokens_is_that_of_their_vectors(classifier: tuple[Subject, Subject]) -> None:
    subject, deployed = classifier
    found = explain(subject, IDS, "lrp", wish_for(subject, IDS), 2, METHODS)
    assert found.score == pytest.approx(deployed.scores(IDS[None])[0, 2], rel=1e-4)
    assert found.attributions.shape == (6,) and not found.attributions[4:].any() and found.attributions[:4].all()


def test_a_position_of_a_language_model_sees_what_is_before_it() -> None:
    model = zoo.gpt(6, 9, width=8, layers=1, heads=2)
    data = converter.convert(model).bundle
    deployed = subject_of(lite_runtime.load(data), plain=True, position=2)
    whole = lite_runtime.load(data).run({"x": IDS[None]})["logits"]
    np.testing.assert_allclose(deployed.scores(IDS[None]), whole[:, 2], rtol=1e-6)
    subject = text_from_onnx(model, position=2)
    np.testing.assert_allclose(subject.scores(IDS[None]), whole[:, 2], atol=1e-5)
    found = explain(subject, IDS, "input_x_gradient", wish_for(subject, IDS), 1)
    assert found.attributions[:3].all() and not found.attributions[3:].any()
    with pytest.raises(ExplainError, match="expected a position from -6 to 5, got 6"):
        text_from_onnx(model, position=6)


def test_what_is_no_text_is_refused(classifier: tuple[Subject, Subject]) -> None:
    assert classifier[0].embedding is not None
    with pytest.raises(ExplainError, match="expected token ids from 0 to 8, got 9"):
        classifier[0].embedding.vectors(IDS[None] + 2)
    counted = parsed("a (int64[n, 2] x) => (float[n, 2] y) { y = Cast<to = 1>(x) }")
    with pytest.raises(ExplainError, match="expected one table of vectors in which x is looked up, got 0"):
        text_from_onnx(counted)
    floats = parsed("a (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }")
    with pytest.raises(ExplainError, match="expected token ids, got x float32"):
        text_from_onnx(floats)
    assert isinstance(classifier[0].embedding.around(IDS), GraphSubject)
