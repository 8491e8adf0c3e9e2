"""Data that a model cannot learn from: refused by name, before a step, as arrays and as pipelines."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from cloud import data
from cloud.errors import TrainError
from cloud.train import Trainer
from cloud.train.stepping.losses import smoothed_cross_entropy
from cloud.zoo import mlp

X = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
Y = np.arange(32) % 4
TEXTS = np.array(["a", "b"] * 16)


def at_nine(value: int) -> Any:
    return np.where(np.arange(32) == 9, value, Y)


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", smoothed_cross_entropy(0.1)])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        (
            X,
            at_nine(4),
            r"labels: expected classes from 0 to 3, as the model has 4 outputs; got 4 in row 9, and 1 such",
        ),
        (X, at_nine(-1), r"got -1 in row 9"),
        (X, Y.astype(np.float32), r"labels: expected whole numbers .* got float32\[\d+\]; .*astype\('int32'\)"),
        (X, TEXTS, r"labels: expected numbers, got strings \(<U1"),
        (X, np.array([None] * 32), r"labels: expected numbers|expected value\['labels'\] to be an array"),
        (X, {"a": Y}, r"labels: expected one array of classes, got a dict of \['a'\]"),
        (np.stack([TEXTS] * 8, 1), Y, r"input 'x': expected numbers, got strings"),
        (X, np.full(32, "2020-01-01", "M8[D]"), r"labels: expected numbers, got times"),
    ],
)
def test_labels_and_inputs_are_refused_by_name(x: Any, labels: Any, message: str, streamed: bool, loss: Any) -> None:
    trainer = Trainer(mlp(8, 4), loss=loss, metrics=())
    given: Any = (x, labels)
    if streamed:
        rows = [{"x": x[k], "labels": {"a": Y[k]} if isinstance(labels, dict) else labels[k]} for k in range(32)]
        given = data.source(rows).batch(16)
    before = np.array(trainer.params[next(iter(trainer.params))])
    with pytest.raises(Exception, match=message):
        trainer.fit(given, batch_size=16)
    assert trainer.steps_done == 0
    np.testing.assert_array_equal(before, trainer.params[next(iter(trainer.params))])


def test_other_labels_are_learned_from() -> None:
    for loss, labels in (
        ("mean_squared_error", np.random.default_rng(1).normal(size=(32, 4)).astype(np.float32)),
        ("mean_squared_error", -np.ones((32, 4), np.int32)),
        ("softmax_cross_entropy", np.eye(4, dtype=np.float32)[Y]),
        (lambda out, tree: jnp.square(out[:, 0] - tree["a"]) + tree["b"], {"a": -Y.astype(np.float32), "b": Y}),
    ):
        trainer = Trainer(mlp(8, 4), loss=loss, metrics=())
        first, *_, last = trainer.fit((X, labels), epochs=9, batch_size=16)
        assert last.training.loss < first.training.loss
        trainer.evaluate((X, labels))
    with pytest.raises(TrainError, match=r"expected the same number .*'labels\['b'\]|labels\[.b.\]"):
        Trainer(mlp(8, 4)).fit((X, {"a": Y, "b": Y[:3]}))
