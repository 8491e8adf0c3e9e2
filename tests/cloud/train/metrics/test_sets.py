"""Metrics over a whole set: against scikit-learn and COCO's program, whatever the batches and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from scipy.special import log_softmax, softmax
from sklearn import metrics as sk

from cloud.errors import TrainError
from cloud.train import LOSSES, SET_METRICS, JaxTask, SetMetric, Trainer
from cloud.train.metrics.table import metric_of
from cloud.train.metrics.whole import Kept

RNG = np.random.default_rng(0)
N = 90
LOGITS = RNG.normal(size=(N, 5)).astype(np.float32)
CLASSES = np.minimum(RNG.integers(0, 5, N), 3)  # nothing is of class 4, which is predicted
TWO = np.round(RNG.normal(size=(N, 2)), 1).astype(np.float32)  # with equal scores
SIDE = RNG.integers(0, 2, N)
YES = (RNG.random((N, 5)) < 0.3).astype(np.float32)
NUMBERS = RNG.normal(size=(N, 3)).astype(np.float32)
TARGET = (NUMBERS + RNG.normal(size=(N, 3))).astype(np.float32)
WORDS = RNG.normal(size=(N, 4, 6)).astype(np.float32)
NEXT = RNG.integers(0, 6, (N, 4))
PLACES = RNG.normal(size=(N, 3)).astype(np.float32)

SOFTMAX, SIGMOID, SQUARES = "softmax_cross_entropy", "sigmoid_cross_entropy", "mean_squared_error"


def of_words(word: str, way: str) -> list[tuple[Any, ...]]:
    """Precision, recall or F1: of classes, of decisions, and without a way of two classes."""
    score = getattr(sk, f"{word}_score")
    if not way:
        chosen, one = TWO.argmax(1), TWO[:, :1] > 0
        return [
            (SOFTMAX, TWO, SIDE, lambda: score(SIDE, chosen)),
            (SIGMOID, TWO[:, :1], SIDE, lambda: score(SIDE, one[:, 0])),
        ]
    return [
        (SOFTMAX, LOGITS, CLASSES, lambda: score(CLASSES, LOGITS.argmax(1), average=way, zero_division=0)),
        (SIGMOID, LOGITS, YES, lambda: score(YES, LOGITS > 0, average=way, zero_division=0)),
        (SOFTMAX, WORDS, NEXT, lambda: score(NEXT.ravel(), WORDS.argmax(2).ravel(), average=way)),
    ]


def average_precisions(labels: Any, first: int = 0) -> float:
    """Every example looks for those of its label, by definition."""
    unit = PLACES / np.linalg.norm(PLACES, axis=1, keepdims=True)
    found = []
    for row in range(N):
        others = np.arange(N) != row
        scores, yes = (unit @ unit[row])[others], (labels == labels[row])[others]
        best = np.argsort(-scores)[:first]
        found.append(float(yes[best].any()) if first else sk.average_precision_score(yes, scores))
    return float(np.mean(found))


def over_classes(score: Callable[..., Any]) -> float:
    there = range(4)
    return float(np.mean([score(c == CLASSES, softmax(LOGITS.astype(float), axis=1)[:, c]) for c in there]))


def perplexity() -> float:
    return float(np.exp(-np.take_along_axis(log_softmax(WORDS.astype(float), axis=2), NEXT[..., None], 2).mean()))


CASES: dict[str, list[tuple[str, Any, Any, Callable[[], Any]]]] = {
    **{f"{w}{'_' * bool(a)}{a}": of_words(w, a) for w in ("f1", "precision", "recall") for a in ("", "micro", "macro")},
    "confusion": [(SOFTMAX, LOGITS, CLASSES, lambda: sk.confusion_matrix(CLASSES, LOGITS.argmax(1), labels=range(5)))],
    "roc_auc": [
        (SOFTMAX, TWO, SIDE, lambda: sk.roc_auc_score(SIDE, TWO[:, 1] - TWO[:, 0])),
        (SOFTMAX, LOGITS, CLASSES, lambda: over_classes(sk.roc_auc_score)),
        (SIGMOID, LOGITS, YES, lambda: sk.roc_auc_score(YES, LOGITS)),
    ],
    "pr_auc": [
        (SIGMOID, TWO[:, :1], SIDE, lambda: sk.average_precision_score(SIDE, TWO[:, 0])),
        (SOFTMAX, LOGITS, CLASSES, lambda: over_classes(sk.average_precision_score)),
        (SIGMOID, LOGITS, YES, lambda: sk.average_precision_score(YES, LOGITS)),
    ],
    "perplexity": [(SOFTMAX, WORDS, NEXT, perplexity)],
    "rmse": [(SQUARES, NUMBERS, TARGET, lambda: sk.root_mean_squared_error(TARGET, NUMBERS))],
    "mae": [(SQUARES, NUMBERS, TARGET, lambda: sk.mean_absolute_error(TARGET, NUMBERS))],
    "r2": [
        (SQUARES, NUMBERS, TARGET, lambda: sk.r2_score(TARGET, NUMBERS)),
        (SQUARES, NUMBERS, TARGET * 0 + 1, lambda: sk.r2_score(TARGET * 0 + 1, NUMBERS)),
    ],
    "retrieval_map": [(SQUARES, PLACES, CLASSES, lambda: average_precisions(CLASSES))],
    "retrieval_recall_1": [(SQUARES, PLACES, CLASSES, lambda: average_precisions(CLASSES, 1))],
}


def value(name: str, loss: str, output: Any, labels: Any, size: int) -> Any:
    """In batches of `size`, the last one padded."""
    metric = metric_of(name, LOSSES[loss])
    assert isinstance(metric, SetMetric)
    kept = Kept({"it": metric})
    run = jax.jit(kept.of)
    for begin in range(0, N, size):
        rows = np.arange(begin, begin + size) % N
        kept.add(run(output[rows], labels[rows], (np.arange(begin, begin + size) < N).astype(np.float32)))
    return kept.values()["it"]


@pytest.mark.parametrize("name", CASES)
def test_against_scikit_learn(name: str) -> None:
    for loss, output, labels, expected in CASES[name]:
        found = value(name, loss, output, labels, 40)
        np.testing.assert_allclose(found, expected(), rtol=1e-6, atol=1e-12)


def test_every_name_has_a_case() -> None:
    assert {*CASES} | {name for name in SET_METRICS if name.startswith("coco")} == {*SET_METRICS}


OUTPUTS = {"classes": LOGITS, "yes": TWO[:, :1], "numbers": NUMBERS}
LABELS = {"classes": CLASSES, "yes": SIDE.astype(np.float32), "numbers": TARGET}
HEADS = {"classes": SOFTMAX, "yes": SIGMOID, "numbers": SQUARES}
NAMES = {"classes": ["f1_macro", "roc_auc", "confusion", "top_3_accuracy"], "yes": ["f1", "pr_auc"], "numbers": ["r2"]}


def looked_up(params: Any, row: Any) -> Any:
    """The outputs above as a model's, which knows them by their number."""
    return {name: params[name][row] for name in OUTPUTS}


def evaluated(parallel: str, size: int) -> Any:
    from cloud.train import Head

    heads = {name: Head(loss, metrics=NAMES[name]) for name, loss in HEADS.items()}
    trainer = Trainer(JaxTask(looked_up, OUTPUTS), loss=heads, optimizer=optax.sgd(0.0), parallel=parallel)
    if parallel != "none":
        trainer.fit((np.arange(N), LABELS), steps=1, batch_size=80)
    return trainer.evaluate((np.arange(N), LABELS), size)


def test_batches_and_devices_change_nothing() -> None:
    """Of several heads at once; batches with padding, and rows on eight devices."""
    one, other, many = evaluated("none", 90), evaluated("none", 32), evaluated("data", 56)
    for found in (other, many):
        sums = {"classes_top_3_accuracy", *(f"{name}_loss" for name in HEADS)}
        exact = {name: v for name, v in one.metrics.items() if name not in sums}
        assert {name: found.metrics[name] for name in exact} == exact and len(exact) == 5
        np.testing.assert_array_equal(found.tables["classes_confusion"], one.tables["classes_confusion"])
        for name in sums:
            assert found.metrics[name] == pytest.approx(one.metrics[name], rel=1e-6)
        assert found.examples == N
    top = np.mean([label in row for label, row in zip(CLASSES, LOGITS.argsort(1)[:, -3:], strict=True)])
    assert one.metrics["classes_top_3_accuracy"] == pytest.approx(top)
    assert one.loss == pytest.approx(sum(one.metrics[f"{name}_loss"] for name in HEADS), rel=1e-5)


def test_what_a_metric_does_not_fit() -> None:
    with pytest.raises(TrainError, match=r"'f1' is for two classes or one decision: use f1_micro or f1_macro"):
        value("f1", SOFTMAX, LOGITS, CLASSES, 45)
    with pytest.raises(TrainError, match=r"does not fit an output float32\[45, 5\] and labels float32\[45, 5\]"):
        value("coco_map", SQUARES, LOGITS, YES, 45)
    with pytest.raises(TrainError, match=r"got 'f1_marco'; did you mean 'f1_macro'\?"):
        metric_of("f1_marco", LOSSES[SOFTMAX])
    assert np.isnan(value("roc_auc", SIGMOID, TWO[:, :1], SIDE * 0, 45))


def detections(seed: int) -> dict[str, Any]:
    """Detections near objects and elsewhere, crowds, padding, equal scores, as `coco` takes them."""
    r = np.random.default_rng(seed)

    def boxes(*size: int) -> Any:
        low, extent = r.integers(0, 120, (*size, 2)), r.integers(4, 110, (*size, 2))
        return np.concatenate([low, low + extent], -1).astype(np.float32)

    objects, kinds = boxes(6, 6), r.integers(-1, 3, (6, 6))
    found, said, scores = boxes(6, 12), r.integers(-1, 3, (6, 12)), (r.integers(0, 50, (6, 12)) / 50).astype(np.float32)
    close = r.random((6, 6)) < 0.7
    near = objects + r.integers(-6, 7, (6, 6, 4))
    found[:, :6][close], said[:, :6][close] = near[close], kinds[close]
    output = {"boxes": found, "scores": scores, "classes": said}
    return {"output": output, "labels": {"boxes": objects, "classes": kinds, "crowd": r.random((6, 6)) < 0.15}}


COCO = {
    1: (0.1353263967853368, 0.24992426778909774, 0.14623233423086554, 0.03465346534653466, 0.24182495648945693, 0.0),
    2: (0.08918749017758919, 0.16069464089266067, 0.09625962596259625, 0.025, 0.12713271327132714, -1.0),
}
"""What pycocotools 2.0.11 says, by seed: AP, AP50, AP75, and AP of small, medium and large objects."""


@pytest.mark.parametrize("seed", COCO)
def test_detections_as_cocos_own_program(seed: int) -> None:
    data = detections(seed)
    for name, expected in zip([n for n in SET_METRICS if n.startswith("coco")], COCO[seed], strict=True):
        metric = metric_of(name, LOSSES[SQUARES])
        assert isinstance(metric, SetMetric)
        kept = Kept({name: metric})
        for rows in (slice(0, 4), slice(2, 6)):  # the first two rows of the second batch are padding
            output, labels = ({key: array[rows] for key, array in data[part].items()} for part in ("output", "labels"))
            kept.add(kept.of(output, labels, (np.arange(4) >= (2 if rows.start else 0)).astype(np.float32)))
        assert kept.values()[name] == pytest.approx(expected, abs=1e-12)
