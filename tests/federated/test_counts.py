"""A device's evaluation is a mean over the examples that the bundle counted, not over all rows."""

from __future__ import annotations

import numpy as np

from cloud.zoo import mlp
from converter import convert
from converter.training import Training
from federated.client.lite import CHUNK, LiteLearner
from federated.learner import Batch


def test_labels_that_name_no_class_do_not_count() -> None:
    lite = LiteLearner(bytes(convert(mlp(4, 3, hidden=()), trainable="*").bundle), backend="reference")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((CHUNK + 40, 4)).astype(np.float32)
    labels = rng.integers(0, 3, len(x))
    named = rng.random(len(x)) < 0.5
    found = lite.evaluate(lite.params, Batch({"x": x}, np.where(named, labels, -1)))
    wanted = lite.evaluate(lite.params, Batch({"x": x[named]}, labels[named]))
    assert (found.examples, found.correct) == (named.sum(), wanted.correct)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-5)
    none = lite.evaluate(lite.params, Batch({"x": x}, np.full(len(x), -1)))
    assert (none.examples, none.correct, none.loss) == (0, 0, 0)


def test_several_numbers_per_example() -> None:
    lite = LiteLearner(
        bytes(convert(mlp(4, 3, hidden=()), trainable=Training("*", loss="mse")).bundle), backend="reference"
    )
    rng = np.random.default_rng(1)
    batch = Batch({"x": rng.standard_normal((6, 4)).astype(np.float32)}, rng.standard_normal((6, 3)).astype(np.float32))
    found = lite.evaluate(lite.params, batch)
    (weight,) = (value for value in lite.params.values() if value.ndim == 2)
    (bias,) = (value for value in lite.params.values() if value.ndim == 1)
    x = batch.inputs["x"]
    y = x @ (weight if len(weight) == x.shape[1] else weight.T) + bias
    assert found.examples == 18 and found.correct == 0
    np.testing.assert_allclose(found.loss, np.square(y - batch.labels).sum(), rtol=1e-5)
