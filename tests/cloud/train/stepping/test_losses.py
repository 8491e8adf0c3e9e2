"""Losses and metrics by name, against their definitions in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, log_softmax  # type: ignore[import-untyped]

from cloud.train import LOSSES, METRICS

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


def test_every_name_has_a_case() -> None:
    assert {case[0] for case in CASES} == {*LOSSES, *METRICS}
