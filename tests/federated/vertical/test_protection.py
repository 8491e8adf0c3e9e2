"""Protections against their definitions, and attacks against gradients of which the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated.errors import FederatedError
from federated.privacy.accountant import Accountant
from federated.privacy.noise import SeededSource
from federated.vertical.config import Protect
from federated.vertical.leakage import auc, cosine_attack, norm_attack
from federated.vertical.protection import Guard, randomised


def guard(rows: int = 50, **words: float) -> Guard:
    return Guard(Protect(**words), np.zeros(rows, np.int64), SeededSource(0))


@given(st.integers(1, 20), st.floats(0.01, 10), st.integers(0, 2**32))
def test_rows_are_clipped_and_short_ones_stay(rows: int, clip: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((rows, 2, 3)) * 10.0 ** rng.integers(-3, 3, (rows, 1, 1))).astype(np.float32)
    found = guard(rows, clip=clip).leaving(values, np.arange(rows))
    before, after = (np.linalg.norm(each.reshape(rows, -1), axis=1) for each in (values, found))
    np.testing.assert_allclose(after, np.minimum(before, clip), rtol=1e-5)
    np.testing.assert_allclose(found * before[:, None, None], values * after[:, None, None], rtol=1e-3, atol=1e-6)


def test_without_protection_the_bits_stay() -> None:
    values = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert guard().leaving(values, np.arange(5)).tobytes() == values.tobytes()


def test_noise_is_a_multiple_of_what_a_row_can_change() -> None:
    values = np.zeros((4000, 5), np.float32)
    found = guard(4000, clip=3.0, multiplier=0.5).leaving(values, np.arange(4000), scale=0.1)
    assert found.std() == pytest.approx(0.5 * 2 * 3.0 * 0.1, rel=0.03)


def test_the_account_is_that_of_the_row_sent_most_often() -> None:
    made = guard(6, clip=1.0, multiplier=2.0)
    for rows in ([0, 1, 2], [2, 3], [2]):
        made.leaving(np.ones((len(rows), 1), np.float32), np.array(rows))
    assert made.sent.tolist() == [1, 1, 3, 1, 0, 0]
    assert made.epsilon() == pytest.approx(Accountant().charge(2.0, rounds=3).epsilon(1e-6))
    assert guard(clip=1.0).epsilon() is None
    with pytest.raises(FederatedError, match="each row once in a batch"):
        made.leaving(np.ones((2, 1), np.float32), np.array([4, 4]))


def test_nothing_leaves_beyond_the_budget() -> None:
    made = guard(3, clip=1.0, multiplier=3.0, most_epsilon=2.0)
    made.leaving(np.ones((1, 1), np.float32), np.array([0]))
    with pytest.raises(FederatedError, match=r"most_epsilon: expected what is sent of a row to cost at most 2"):
        made.leaving(np.ones((2, 1), np.float32), np.array([1, 0]))
    assert made.sent.tolist() == [1, 0, 0], "refused before it was charged"
    made.leaving(np.ones((1, 1), np.float32), np.array([1]))


@pytest.mark.parametrize(("classes", "epsilon"), [(2, 1.0), (2, 3.0), (5, 2.0)])
def test_labels_are_randomised_as_often_as_epsilon_says(classes: int, epsilon: float) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, 3 + classes, 60_000)
    found = randomised(labels, epsilon, rng)
    table = np.array([[(found[labels == 3 + a] == 3 + b).mean() for b in range(classes)] for a in range(classes)])
    stays = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    np.testing.assert_allclose(table, np.where(np.eye(classes), stays, (1 - stays) / (classes - 1)), atol=0.015)
    # No answer is more than e^epsilon times as likely with one label as with another.
    assert (table.max(0) / table.min(0) <= math.exp(epsilon) * 1.15).all()
    assert found.dtype == labels.dtype


def test_labels_that_are_no_classes() -> None:
    with pytest.raises(FederatedError, match=r"expected classes \[n\], got float32 \[3, 1\]"):
        randomised(np.zeros((3, 1), np.float32), 1.0, np.random.default_rng(0))
    assert randomised(np.full(4, 7), 1.0, np.random.default_rng(0)).tolist() == [7] * 4


def test_auc_counts_pairs() -> None:
    rng = np.random.default_rng()
    scores, labels = rng.integers(0, 6, 40).astype(float), rng.integers(0, 2, 40)
    labels[:2] = 0, 1
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1] for b in scores[labels == 0]]
    assert auc(scores, labels) == pytest.approx(np.mean(pairs))
    with pytest.raises(FederatedError, match="classes 0 and 1"):
        auc(scores, labels * 0)


def test_attacks_find_what_is_there_and_nothing_in_noise() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(2000) < 0.1).astype(np.int64)
    direction = rng.standard_normal(8)
    known = int(np.flatnonzero(labels)[0])
    longer = rng.standard_normal((2000, 8)) * np.where(labels, 3.0, 1.0)[:, None]
    assert norm_attack(longer, labels) > 0.95 and cosine_attack(longer, labels, known) < 0.6
    aimed = rng.standard_normal((2000, 8)) + np.outer(2 * labels - 1, 2 * direction)
    assert cosine_attack(aimed, labels, known) > 0.95
    noise = rng.standard_normal((2000, 8))
    assert norm_attack(noise, labels) < 0.55 and cosine_attack(noise, labels, known) < 0.56
