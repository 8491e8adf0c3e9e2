"""Attacks by a float twin's gradients that see the integer file's answers: stronger than examples of the twin alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud.audit.attacks import auto_pgd, carlini_wagner, deepfool
from cloud.audit.straight_through import StraightThrough
from cloud.audit.victim import Array, Victim, WhiteBox, open_bundle
from cloud.errors import AuditError

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def file(network: ir.Model, digits: Rows) -> Victim:
    """Its inputs have 255 steps, not the 17 that the digits have."""
    x = digits[0][64:320] + np.random.default_rng(0).uniform(0, 1 / 16, (256, 64)).astype(np.float32)
    return open_bundle(converter.convert(network, quantize="int8", calibration={"x": x}).bundle)


def test_nearest_examples_are_the_files(file: Victim, victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows
    both = StraightThrough(file, victim)
    for attack, more in ((deepfool, {}), (carlini_wagner, {"steps": 60, "searches": 3})):
        transferred = file.logits(attack(victim, x, labels, **more).inputs).argmax(1) != labels
        found = attack(both, x, labels, **more)
        np.testing.assert_array_equal(found.success, file.logits(found.inputs).argmax(1) != labels)
        assert found.rate == 1 > transferred.mean(), attack.__name__


def test_within_epsilon_more_is_found_than_by_transfer(file: Victim, victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows
    transferred = file.logits(auto_pgd(victim, x, labels, epsilon=0.1).inputs).argmax(1) != labels
    found = auto_pgd(StraightThrough(file, victim), x, labels, epsilon=0.1)
    np.testing.assert_array_equal(found.success, file.logits(found.inputs).argmax(1) != labels)
    assert found.rate > transferred.mean()


class Probabilities(Victim):
    """A file that ends in a Softmax of 8 bits."""

    def __init__(self, inner: Victim) -> None:
        super().__init__("softmax", inner.shape, inner.classes)
        self.inner = inner

    def _scores(self, x: Array) -> Array:
        powers = np.exp(self.inner.logits(x))
        return np.round(powers / powers.sum(1, keepdims=True) * 255) / np.float32(255)


def test_probabilities_count_as_their_logarithms(victim: WhiteBox, rows: Rows) -> None:
    """Losses take scores for logits: with probabilities in their place the margins would be at most 1."""
    x, labels = rows
    soft = StraightThrough(Probabilities(victim), victim)
    plain, rounded = (auto_pgd(model, x, labels, epsilon=0.1).rate for model in (victim, soft))
    assert plain > 0.3 and abs(plain - rounded) < 0.05
    scores = soft.linearised(x)[0]
    assert scores.min() > -7 and scores.max() < 0.001 and np.ptp(scores, 1).min() > 3


def test_a_twin_of_other_shapes(file: Victim) -> None:
    other = WhiteBox("other", lambda _, x: x, (), (5,), 5)
    with pytest.raises(AuditError, match=r"other: expected inputs \[64\] and 10 classes"):
        StraightThrough(file, other)
