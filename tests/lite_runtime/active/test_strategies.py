"""Strategies of active learning: closed forms, agreement with slow definitions, and what each is for."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.active import (
    STRATEGIES,
    Seen,
    badge,
    bald,
    choose,
    dropout_draws,
    entropy,
    k_center,
    least_confident,
    margin,
    without_dropout,
)
from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Value

RNG = np.random.default_rng(11)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def test_uncertainties_have_their_closed_forms() -> None:
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    assert np.allclose(least_confident(p), [0.5, 0, 2 / 3])
    assert np.allclose(margin(p), [0, -1, 0])
    assert np.allclose(entropy(p), [np.log(2), 0, np.log(3)])


def test_bald_is_what_a_label_would_tell() -> None:
    sure = np.array([[0.9, 0.1], [0.9, 0.1]])
    torn, each = np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    draws = np.stack([sure, torn, each], axis=1)
    assert np.allclose(bald(draws), [0, 0, np.log(2)], atol=1e-9)


def slow_k_center(pool: Array, held: Array, count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        far = [min([((row - other) ** 2).sum() for other in [*held, *pool[chosen]]]) for row in pool]
        for row in chosen:
            far[row] = -1
        chosen.append(int(np.argmax(far)))
    return chosen


def test_k_center_is_its_definition() -> None:
    pool, held = RNG.standard_normal((40, 5)), RNG.standard_normal((300, 5)) * 0.2
    assert k_center(pool, held, 9).tolist() == slow_k_center(pool, held, 9)
    assert len(set(k_center(pool, None, 60).tolist())) == 40
    assert k_center(pool, None, 1)[0] == np.argmin(((pool - pool.mean(0)) ** 2).sum(1))


def test_coreset_takes_one_of_each_cluster() -> None:
    centres = np.eye(6) * 50
    pool = np.repeat(centres, 30, axis=0) + RNG.standard_normal((180, 6)) * 0.01
    assert sorted(k_center(pool, pool[:30], 5) // 30) == [1, 2, 3, 4, 5]


def test_badge_prefers_long_and_different_gradients() -> None:
    """Rows whose class is certain have no gradient; of the others, one of each of four directions is taken."""
    features = np.repeat(np.eye(4) * 5, 10, axis=0)
    unsure = np.tile([0.5, 0.5], (40, 1))
    unsure[::10] = [1.0, 0.0]
    chosen = badge(unsure, features, 4, seed=3)
    assert sorted(chosen // 10) == [0, 1, 2, 3]
    assert not set(chosen.tolist()) & {0, 10, 20, 30}
    assert len(set(badge(np.tile([1.0, 0.0], (5, 1)), np.ones((5, 2)), 9).tolist())) == 5


def test_badge_s_distances_are_those_of_the_gradients() -> None:
    """With two rows left, the second is taken with a probability in proportion to its squared distance."""
    p, f = softmax(RNG.standard_normal((3, 4))), RNG.standard_normal((3, 5))
    error = p.copy()
    error[np.arange(3), p.argmax(1)] -= 1
    whole = np.einsum("nc,nf->ncf", error, f).reshape(3, -1)
    first = int(np.argmax((whole**2).sum(1)))
    far = ((whole - whole[first]) ** 2).sum(1)
    seconds = [badge(p, f, 2, seed)[1] for seed in range(400)]
    for row in range(3):
        assert abs(seconds.count(row) / 400 - far[row] / far.sum()) < 0.1


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_chooses_different_rows(strategy: str) -> None:
    p = softmax(RNG.standard_normal((30, 4)))
    draws = softmax(RNG.standard_normal((6, 30, 4)))
    seen = Seen(p, draws, RNG.standard_normal((30, 7)), RNG.standard_normal((3, 7)))
    rows = choose(strategy, 8, seen, seed=1)
    assert rows.shape == (8,) and len(set(rows.tolist())) == 8
    assert rows.tolist() == choose(strategy, 8, seen, seed=1).tolist()
    assert len(choose(strategy, 99, seen)) == 30
    for name in STRATEGIES[strategy].needs:
        with pytest.raises(InputError, match=f"needs .*{name}"):
            choose(strategy, 8, seen._replace(**{name: None}))


def test_the_most_unsure_come_first() -> None:
    p = np.array([[0.9, 0.1], [0.55, 0.45], [0.7, 0.3]])
    assert choose("margin", 2, Seen(p)).tolist() == [1, 2]
    assert choose("entropy", 3, Seen(p)).tolist() == [1, 2, 0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: choose("best", 1, Seen()), "expected a strategy of least_confident"),
        (lambda: choose("margin", 0, Seen(np.ones((1, 2)) / 2)), "at least 1 label, got 0"),
        (lambda: margin(np.ones((3, 2))), "apply softmax"),
        (lambda: margin(np.ones((3, 1))), "at least 2 classes"),
        (lambda: entropy(np.array([[np.nan, 1.0]])), "apply softmax"),
        (lambda: bald(np.ones((3, 2)) / 2), r"\(draws, n, classes\)"),
        (lambda: k_center(np.ones(3), None, 1), "flatten"),
        (lambda: k_center(np.array([[np.inf]]), None, 1), "finite"),
        (lambda: k_center(np.ones((2, 3)), np.ones((1, 4)), 1), r"\(m, 3\)"),
        (lambda: badge(np.ones((2, 2)) / 2, np.ones((3, 2)), 1), r"\(3, classes\)"),
    ],
)
def test_mistakes_are_named(call: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()  # type: ignore[operator]


def test_masks_drop_at_their_rate_and_keep_the_mean() -> None:
    inputs = (Value("x", "float32", ("n", 3)), Value("dropout_mask:0.25:a", "float32", (1, 4000)))
    seen: list[Array] = []

    def predict(masks: object) -> Array:
        seen.append(masks["dropout_mask:0.25:a"])  # type: ignore[index]
        return np.array([[0.5, 0.5]])

    assert dropout_draws(predict, inputs, 3, seed=2).shape == (3, 1, 2)
    assert {float(v) for v in np.unique(seen)} == {0.0, np.float32(4 / 3)}
    assert abs(np.mean(seen) - 1) < 0.02 and not np.array_equal(seen[0], seen[1])
    assert list(without_dropout(inputs)) == ["dropout_mask:0.25:a"]
    for wrong, said in (
        (inputs[:1], "dropout_inputs"),
        ((Value("dropout_mask:1:a", "float32", (1, 2)),), "from 0 to below 1"),
        ((Value("dropout_mask:0.5:a", "float32", ("n", 2)),), "fixed shape"),
    ):
        with pytest.raises(InputError, match=said):
            dropout_draws(predict, wrong)
    with pytest.raises(InputError, match="2 draws"):
        dropout_draws(predict, inputs, 1)
