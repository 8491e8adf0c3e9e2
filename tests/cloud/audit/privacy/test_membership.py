"""Membership inference: signals, curves, shadow models, LiRA."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from scipy import stats

import msedge
from cloud import zoo
from cloud.audit.intervals import clopper_pearson
from cloud.audit.privacy.membership import (
    SIGNALS,
    Shadows,
    halves,
    lira,
    logit_confidence,
    measure,
    membership,
    shifted,
    summary,
    threshold_attacks,
    train_shadows,
)
from cloud.audit.victim import Victim, from_onnx, open_bundle
from cloud.errors import AuditError

ROWS, EPOCHS, BATCH = 240, 60, 32


def noisy(digits: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Digits, a fifth of them with wrong labels, which can only be known by heart."""
    rng = np.random.default_rng(5)
    x, y = digits[0][:ROWS], digits[1][:ROWS].astype(np.int64)
    wrong = rng.random(ROWS) < 0.2
    return x, np.where(wrong, (y + 1 + rng.integers(0, 9, ROWS)) % 10, y)


def small(seed: int) -> object:
    return zoo.mlp(64, 10, [32], seed)


@pytest.fixture(scope="module")
def data(digits: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return noisy(digits)


@pytest.fixture(scope="module")
def shadows(data: tuple[np.ndarray, np.ndarray]) -> Shadows:
    optimizer = optax.adam(1e-2)
    return train_shadows(small, *data, models=8, epochs=EPOCHS, batch_size=BATCH, optimizer=optimizer)


@pytest.fixture(scope="module")
def target(data: tuple[np.ndarray, np.ndarray]) -> tuple[object, np.ndarray]:
    """A model trained by heart on a random half, and which half."""
    is_member = halves(2, ROWS, seed=99)[0]
    trainer = msedge.Trainer(small(7), optimizer=optax.adam(1e-2), seed=7)
    trainer.fit((data[0][is_member], data[1][is_member]), EPOCHS, BATCH)
    return trainer.export(), is_member


@pytest.fixture(scope="module")
def bundle(target: tuple[object, np.ndarray], data: tuple, tmp_path_factory: pytest.TempPathFactory) -> Victim:
    """The same as an integer bundle."""
    path = tmp_path_factory.mktemp("bundle") / "int8.mslite"
    msedge.convert(target[0], output=path, quantize="int8", calibration={"x": data[0][:64]})
    return open_bundle(path)


def test_signals_are_those_of_their_definitions() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (50, 5))
    labels = np.arange(50) % 5
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    own = p[np.arange(50), labels]
    others = np.where(np.eye(5, dtype=bool)[labels], 0, p * np.log(1 - p))
    for name, wanted in {
        "correct": p.argmax(1) == labels,
        "loss": np.log(own),
        "confidence": own,
        "entropy": (p * np.log(p)).sum(1),
        "modified entropy": (1 - own) * np.log(own) + others.sum(1),
        "logit confidence": np.log(own / (1 - own)),
    }.items():
        np.testing.assert_allclose(SIGNALS[name](logits, labels), wanted, rtol=1e-9, atol=1e-12)


def test_confidences_near_one_do_not_round() -> None:
    sure = np.array([[90.0, 0.0, 0.0], [200.0, 0.0, 0.0]])
    np.testing.assert_allclose(logit_confidence(sure, np.array([0, 0])), [90 - np.log(2), 200 - np.log(2)])


def test_curve_by_hand() -> None:
    found = measure("x", np.array([4.0, 3.0, 1.0, 3.0, 2.0, 0.0]), np.array([1, 1, 1, 0, 0, 0], bool))
    assert found.auc.value == pytest.approx(6.5 / 9)
    assert found.balanced_accuracy == pytest.approx((1 / 3 + 1) / 2)
    assert found.tpr_at(0.01).value == pytest.approx(1 / 3)
    assert (found.fpr[0], found.tpr[0], found.fpr[-1], found.tpr[-1]) == (0, 0, 1, 1)


def test_interval_of_the_area_holds_the_true_one() -> None:
    rng, is_member = np.random.default_rng(1), np.repeat([True, False], 60)
    true = stats.norm.cdf(0.5 / np.sqrt(2))
    found = [measure("x", rng.normal(is_member * 0.5, 1), is_member).auc for _ in range(200)]
    assert 0.9 <= np.mean([one.low <= true <= one.high for one in found]) <= 0.99


def test_clopper_pearson() -> None:
    ours, theirs = clopper_pearson(3, 20), stats.binomtest(3, 20).proportion_ci(0.95, "exact")
    np.testing.assert_allclose(ours[1:], theirs)
    assert clopper_pearson(0, 20).low == 0 and clopper_pearson(20, 20).high == 1
    with pytest.raises(AuditError, match="0 <= hits <= trials"):
        clopper_pearson(3, 2)


def test_every_example_is_in_half_of_the_models() -> None:
    keep = halves(8, 101, seed=3)
    assert (keep.sum(1) == 50).all()
    assert set(keep.sum(0)) <= {1, 2, 3, 4} and keep.sum(0).max() == 4
    assert not (keep[0] & keep[1]).any()


def test_one_program_trains_as_the_trainer_does(data: tuple[np.ndarray, np.ndarray]) -> None:
    """With one batch an epoch the order of examples does not matter, and both take the same steps."""
    x, y = data
    made = train_shadows(small, x, y, models=4, epochs=5, batch_size=ROWS, optimizer=optax.sgd(0.1), seed=11, group=2)
    trainer = msedge.Trainer(small(13), optimizer=optax.sgd(0.1), seed=0)
    trainer.fit((x[made.keep[2]], y[made.keep[2]]), 5, ROWS // 2)
    for name, value in trainer.params.items():
        np.testing.assert_allclose(made.weights[0][name][2], value, atol=2e-5)
    logits = made.logits(x)
    assert logits.shape == (4, ROWS, 10)
    np.testing.assert_allclose(logits[2], trainer.predict(x), atol=2e-4)


def test_lira_finds_what_thresholds_do_not(data: tuple, target: tuple, shadows: Shadows, bundle: Victim) -> None:
    """A model that knows wrong labels by heart, as an ONNX model and as an integer bundle."""
    for victim in (from_onnx(target[0]), bundle):
        found = {one.attack: one for one in membership(victim, *data, target[1], shadows=shadows)}
        assert found["LiRA online"].auc.low > 0.6
        assert found["LiRA offline"].auc.low > 0.55
        assert found["shadow models (Shokri)"].auc.low > 0.5 and found["shadow models (Shokri)"].learned
        assert found["LiRA online"].auc.value > found["entropy"].auc.value + 0.05
    more = membership(bundle, *data, target[1], shadows=shadows, views=[lambda x: 0.9 * x, lambda x: 1.1 * x])
    assert more[-2].attack == "LiRA online" and more[-2].auc.low > 0.6 and more[-2].auc != found["LiRA online"].auc


def test_nothing_is_found_of_examples_that_no_model_saw(data: tuple, shadows: Shadows, target: tuple) -> None:
    """With members drawn anew, after training, scores must be those of chance: the test of the tests."""
    anew = halves(2, ROWS, seed=1234)[0]
    found = membership(from_onnx(target[0]), *data, anew, shadows=shadows)
    truth = np.corrcoef(anew, target[1])[0, 1]
    assert abs(truth) < 0.2
    for one in found:
        assert abs(one.auc.value - 0.5) < 0.12, one.attack


def test_lira_is_the_ratio_of_densities() -> None:
    rng = np.random.default_rng(2)
    keep = halves(8, 30)
    shadows = rng.normal(np.where(keep, 2.0, 0.0), 1.0)[:, :, None]
    target = rng.normal(0, 1, (30, 1))
    inside = np.array([shadows[keep[:, i], i, 0] for i in range(30)])
    without = np.array([shadows[~keep[:, i], i, 0] for i in range(30)])
    wanted = stats.norm.logpdf(target[:, 0], inside.mean(1), inside.std(1)) - stats.norm.logpdf(
        target[:, 0], without.mean(1), without.std(1)
    )
    np.testing.assert_allclose(lira(target, shadows, keep, variance="example", centre="mean"), wanted)
    offline = stats.norm.logcdf(target[:, 0], without.mean(1), without.std(1))
    np.testing.assert_allclose(lira(target, shadows, keep, mode="offline", variance="example", centre="mean"), offline)


def test_a_summary_names_the_strongest_attack(data: tuple, target: tuple) -> None:
    attacks = membership(from_onnx(target[0]), *data, target[1])
    found = summary(attacks)
    assert found.rows[0][0] == max(attacks, key=lambda one: one.auc.value).attack and found.warnings
    right = from_onnx(target[0]).logits(data[0]).argmax(1) == data[1]
    assert found.figures["gap"] == pytest.approx(right[target[1]].mean() - right[~target[1]].mean())
    assert set(found.figures) == {"auc", "auc_low", "balanced_accuracy", "tpr_at_0.01", "tpr_at_0.001", "gap"}
    assert all(line[0] <= line[20] <= line[40] == 1 for line in found.found.values())
    with pytest.raises(AuditError, match="at least one attack"):
        summary([])


def test_views_move_images() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    moved = shifted(1, -1)(x)
    assert (moved[0, 0, 0] == 0).all() and (moved[0, 0, :, 3] == 0).all()
    np.testing.assert_array_equal(moved[0, 0, 1:, :3], x[0, 0, :3, 1:])


def test_too_few_models_and_wrong_arrays_are_named(data: tuple, target: tuple, shadows: Shadows) -> None:
    x, y = data
    keep = halves(2, 10)
    with pytest.raises(AuditError, match="at least 2 shadow models that lack each example, got 1"):
        lira(np.zeros((10, 1)), np.zeros((2, 10, 1)), keep, variance="example")
    with pytest.raises(AuditError, match="even number of shadow models"):
        halves(3, 10)
    with pytest.raises(AuditError, match="that are among the members"):
        twice = np.concatenate([x, x[target[1]][:3]])
        flags = np.append(target[1], [False] * 3)
        membership(from_onnx(target[0]), twice, np.append(y, y[:3]), flags)
    with pytest.raises(AuditError, match="expected labels from 0 to 9, got 0 to 10"):
        threshold_attacks(np.zeros((4, 10)), np.array([0, 1, 2, 10]), np.array([1, 1, 0, 0], bool))
    with pytest.raises(AuditError, match="expected 240 labels, integers, got int64\\[239\\]"):
        membership(from_onnx(target[0]), x, y[:-1], target[1])
    with pytest.raises(AuditError, match="over the same 240 examples, got ones over 100"):
        membership(from_onnx(target[0]), x, y, target[1], shadows=replace(shadows, keep=shadows.keep[:, :100]))
    with pytest.raises(AuditError, match="expected members and non-members, got 4 and 0"):
        measure("x", np.zeros(4), np.ones(4, bool))
    with pytest.raises(AuditError, match="expected finite losses"):
        train_shadows(small, x, y, models=2, epochs=3, optimizer=optax.sgd(1e20))
    assert jax.tree.leaves(shadows.weights)[0].shape[0] == 8
