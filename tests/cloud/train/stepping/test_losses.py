"""Losses and metrics by name, against their definitions in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import expit, log_softmax  # type: ignore[import-untyped]

from cloud.errors import TrainError
from cloud.train import LOSSES, METRICS, Head, JaxTask, Trainer, classified_loss, decided_loss
from cloud.train.stepping.heads import aims_of

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 8)).astype(np.float32)
WORDS = RNG.normal(size=(6, 5, 8)).astype(np.float32)
CLASSES = RNG.integers(0, 8, 6)
NEXT = RNG.integers(0, 8, (6, 5))
TARGET = RNG.normal(size=(6, 8)).astype(np.float32) * 2
YES = (TARGET > 0).astype(np.float32)


def surprise(logits: np.ndarray, labels: np.ndarray) -> Any:
    return -np.take_along_axis(log_softmax(logits, axis=-1), labels[..., None], axis=-1)[..., 0]


def huber(x: np.ndarray) -> Any:
    return np.where(np.abs(x) <= 1, x * x / 2, np.abs(x) - 0.5)


CASES: list[tuple[str, np.ndarray, np.ndarray, Callable[[], Any]]] = [
    ("softmax_cross_entropy", LOGITS, CLASSES, lambda: surprise(LOGITS, CLASSES)),
    ("softmax_cross_entropy", LOGITS, np.eye(8, dtype=np.float32)[CLASSES], lambda: surprise(LOGITS, CLASSES)),
    ("softmax_cross_entropy", WORDS, NEXT, lambda: surprise(WORDS, NEXT).mean(1)),
    ("sigmoid_cross_entropy", LOGITS, YES, lambda: -np.log(expit(np.where(YES > 0, LOGITS, -LOGITS))).mean(1)),
    ("sigmoid_cross_entropy", LOGITS[:, :1], YES[:, 0], lambda: -np.log(expit(LOGITS * (2 * YES - 1)))[:, 0]),
    ("mean_squared_error", LOGITS, TARGET, lambda: np.square(LOGITS - TARGET).mean(1)),
    ("mean_absolute_error", LOGITS, TARGET, lambda: np.abs(LOGITS - TARGET).mean(1)),
    ("huber", LOGITS, TARGET, lambda: huber(LOGITS - TARGET).mean(1)),
    ("given", LOGITS, CLASSES, lambda: LOGITS.mean(1)),
    ("accuracy", LOGITS, CLASSES, lambda: LOGITS.argmax(1) == CLASSES),
    ("accuracy", WORDS, NEXT, lambda: (WORDS.argmax(2) == NEXT).mean(1)),
    ("top_5_accuracy", LOGITS, CLASSES, lambda: (LOGITS.argsort(1)[:, -5:] == CLASSES[:, None]).any(1)),
]


@pytest.mark.parametrize(("name", "output", "labels", "expected"), CASES, ids=[case[0] for case in CASES])
def test_losses_as_defined(name: str, output: np.ndarray, labels: np.ndarray, expected: Callable[[], Any]) -> None:
    found = {**METRICS, **LOSSES}[name](output, labels)
    assert found.shape == (6,)
    np.testing.assert_allclose(found, np.asarray(expected(), np.float32), rtol=1e-5, atol=1e-6)


WEIGHTS = np.linspace(0.5, 2, 8)
CHANCE = np.exp(-surprise(LOGITS, CLASSES))
SMOOTH = np.eye(8)[CLASSES] * 0.9 + 0.1 / 8
RIGHT = expit(np.where(YES > 0, LOGITS, -LOGITS).astype(float))
CHANGED: dict[str, tuple[Any, np.ndarray, Any]] = {
    "smoothing": (classified_loss(smoothing=0.1), CLASSES, lambda: -(SMOOTH * log_softmax(LOGITS, axis=1)).sum(1)),
    "weights": (classified_loss(weights=WEIGHTS), CLASSES, lambda: surprise(LOGITS, CLASSES) * WEIGHTS[CLASSES]),
    "focus": (classified_loss(focus=2.0), CLASSES, lambda: surprise(LOGITS, CLASSES) * (1 - CHANCE) ** 2),
    "decided focus": (decided_loss(focus=2.0), YES, lambda: (-np.log(RIGHT) * (1 - RIGHT) ** 2).mean(1)),
    "decided weights": (decided_loss(weights=(1, 3)), YES, lambda: (-np.log(RIGHT) * (1 + 2 * YES)).mean(1)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_losses_with_changes(name: str) -> None:
    loss, labels, expected = CHANGED[name]
    np.testing.assert_allclose(loss(LOGITS, labels), expected(), rtol=1e-4, atol=1e-6)


def test_focal_losses_have_slopes_where_all_is_right() -> None:
    for loss, output, labels in (
        (classified_loss(focus=0.5), jnp.array([[200.0, 0.0]]), jnp.array([0])),
        (decided_loss(focus=0.5), jnp.array([[200.0]]), jnp.array([[1.0]])),
    ):
        assert np.isfinite(jax.grad(lambda o, loss=loss, y=labels: loss(o, y).sum())(output)).all()


def test_changes_that_make_no_sense() -> None:
    with pytest.raises(TrainError, match="two class weights, of no and of yes"):
        decided_loss(weights=[1.0])
    with pytest.raises(TrainError, match="class weights of at least 0"):
        classified_loss(weights=[1.0, -1.0])
    two = Trainer(JaxTask(lambda params, x: x @ params, np.ones((4, 3), np.float32)), loss=classified_loss(weights=[1]))
    with pytest.raises(TrainError, match="1 class weights for 3 classes"):
        two.fit((np.ones((4, 4), np.float32), np.zeros(4, np.int32)), 1)


X = RNG.normal(size=(10, 4)).astype(np.float32)
BOTH = {"kind": RNG.integers(0, 3, 10), "size": RNG.normal(size=(10, 1)).astype(np.float32)}
START = {"kind": RNG.normal(size=(4, 3)).astype(np.float32), "size": RNG.normal(size=(4, 1)).astype(np.float32)}


def two_heads(params: Any, x: Any) -> Any:
    return {name: x @ weight for name, weight in params.items()}


def test_several_losses_add_up_with_weights_of_heads_and_examples() -> None:
    """The gradient of a padded batch, in microbatches, against the sum written out."""
    heads = {"kind": Head(weight=0.5, metrics=["accuracy"]), "size": Head("mean_squared_error", weight=2.0)}
    weights = np.linspace(0, 3, 10).astype(np.float32)
    run = Trainer(JaxTask(two_heads, START), loss=heads, optimizer=optax.sgd(1.0), accumulate=2)
    run.fit((X, BOTH, weights), 1, 10)

    def total(params: Any) -> Any:
        kind = LOSSES["softmax_cross_entropy"](X @ params["kind"], BOTH["kind"])
        size = LOSSES["mean_squared_error"](X @ params["size"], BOTH["size"])
        return jnp.mean((0.5 * kind + 2 * size) * weights)

    for name, slope in jax.grad(total)(START).items():
        np.testing.assert_allclose(run.params[name], START[name] - slope, atol=1e-5)
    found = run.evaluate((X, BOTH, weights), 4)
    assert found.loss == pytest.approx(float(total(run.params)), rel=1e-5)
    plain = run.evaluate((X, BOTH), 4)
    assert found.metrics == pytest.approx(plain.metrics) and plain.loss != pytest.approx(found.loss)
    assert plain.loss == pytest.approx(0.5 * plain.metrics["kind_loss"] + 2 * plain.metrics["size_loss"], rel=1e-5)
    assert plain.metrics["kind_accuracy"] == np.mean((X @ run.params["kind"]).argmax(1) == BOTH["kind"])


def test_of_which_metrics_less_is_better() -> None:
    size = Head("mean_squared_error", metrics=["rmse", "r2", "mean_absolute_error"])
    less = aims_of({"kind": Head(metrics=["accuracy", "perplexity"]), "size": size}, None).less
    assert less == {"loss", "kind_loss", "kind_perplexity", "size_loss", "size_rmse", "size_mean_absolute_error"}
    assert aims_of("huber", {"mine": lambda output, labels: output}).less == {"loss"}


def test_heads_and_weights_that_do_not_fit() -> None:
    run = Trainer(JaxTask(two_heads, START), loss={"kind": "softmax_cross_entropy", "length": "huber"})
    with pytest.raises(TrainError, match=r"loss 'length': expected output 'length' in a dict, got \['kind', 'size'\]"):
        run.fit((X, BOTH), 1)
    with pytest.raises(TrainError, match=r"labels\['kind'\]: expected classes from 0; got -1 in row 3"):
        run.fit((X, {**BOTH, "kind": np.where(np.arange(10) == 3, -1, 0)}), 1)
    with pytest.raises(TrainError, match="sample_weight: expected finite numbers of at least 0, got nan in row 9"):
        run.fit((X, BOTH, [1.0] * 9 + [np.nan]), 1)


def test_every_name_has_a_case() -> None:
    assert {case[0] for case in CASES} == {*LOSSES, *METRICS}
