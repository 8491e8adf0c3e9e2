"""Lower bounds of epsilon beside the accountant's, planted mistakes, and secrets in a language model."""

from __future__ import annotations

import math

import numpy as np
import optax
import pytest
from scipy import stats

import msedge
from cloud import zoo
from cloud.audit.privacy.canaries import (
    Speaker,
    audit_mechanism,
    audit_run,
    epsilon_of_errors,
    epsilon_of_gaussian,
    epsilon_of_guesses,
    exposure,
    extract,
)
from cloud.errors import AuditError
from federated.privacy.accountant import Accountant
from federated.privacy.noise import NoiseSource, SeededSource


class Weak(NoiseSource):
    """A mistake: only a part of the noise that is accounted for."""

    def __init__(self, share: float) -> None:
        self.share, self.whole = share, SeededSource(3)

    def normal(self, size: int) -> np.ndarray:
        return self.share * self.whole.normal(size)


def central(multiplier: float, **more: object) -> dict[str, object]:
    return {"clip": 0.5, "noise": "central", "multiplier": multiplier, **more}


def test_errors_prove_what_randomised_response_costs() -> None:
    """Of a mechanism that tells the truth with p = e / (1 + e), epsilon is 1."""
    rng, wrong = np.random.default_rng(0), 1 / (1 + math.e)
    bounds = [
        epsilon_of_errors(rng.binomial(4000, wrong), 4000, rng.binomial(4000, wrong), 4000, 0.0) for _ in range(200)
    ]
    assert np.mean(np.array(bounds) <= 1) >= 0.95
    assert np.median(bounds) > 0.85
    assert epsilon_of_errors(50, 100, 50, 100, 1e-5) == 0


def test_gaussian_errors_prove_nearly_all_of_epsilon() -> None:
    """At noise 1 a threshold of a half is wrong as often as a normal number is above a half."""
    rng, wrong = np.random.default_rng(4), stats.norm.sf(0.5)
    claimed = Accountant().charge(1.0).epsilon(1e-5)
    counts = rng.binomial(20_000, wrong, (200, 2))
    bounds = np.array([epsilon_of_gaussian(a, 20_000, b, 20_000, 1e-5) for a, b in counts])
    assert np.mean(bounds <= claimed) >= 0.95 and np.median(bounds) > 0.9 * claimed
    assert epsilon_of_gaussian(60, 100, 60, 100, 1e-5) == 0


def test_guesses_prove_what_randomised_response_costs() -> None:
    rng = np.random.default_rng(1)
    bounds = [epsilon_of_guesses(4000, 4000, rng.binomial(4000, math.e / (1 + math.e)), 0.0) for _ in range(60)]
    assert np.mean(np.array(bounds) <= 1) >= 0.95
    assert np.median(bounds) > 0.85
    assert epsilon_of_guesses(1000, 100, 95, 1e-5) > epsilon_of_guesses(1000, 100, 95, 1e-3) > 0
    assert epsilon_of_guesses(100, 100, 50, 1e-5) == 0


@pytest.mark.parametrize(
    ("privacy", "rounds", "rate"),
    [
        (central(0.7), 1, 1.0),
        (central(2.0, by_layer=True), 3, 1.0),
        (central(1.0, sampling="poisson"), 4, 0.25),
        ({"clip": 2.0, "noise": "central", "epsilon": 1.0}, 2, 1.0),
    ],
)
def test_the_accountant_is_right(privacy: dict[str, object], rounds: int, rate: float) -> None:
    source = SeededSource(7)
    found = audit_mechanism(privacy, rounds=rounds, rate=rate, trials=160, source=source)
    assert 0 <= found.lower <= found.claimed and found.holds
    assert (found.gaussian is None) == (rate < 1)
    run = audit_run(privacy, canaries=60, rounds=rounds, rate=rate, source=SeededSource(8))
    assert run.holds and run.claimed == pytest.approx(found.claimed)


@pytest.mark.parametrize("share", [0.0, 0.125])
def test_missing_noise_is_found(share: float) -> None:
    """The mechanism claims less than 1, and both audits prove more."""
    privacy = central(4.0)
    found = audit_mechanism(privacy, trials=300, source=Weak(share))
    run = audit_run(privacy, canaries=100, source=Weak(share))
    assert found.claimed == pytest.approx(run.claimed) and found.claimed < 1
    assert not found.holds and found.lower > 1.2
    assert not run.holds and run.lower > 1.2


def test_half_of_the_noise_is_found_where_it_is_gaussian() -> None:
    found = audit_mechanism(central(2.0), trials=1500, source=Weak(0.5))
    assert found.lower < found.claimed < found.gaussian and not found.holds


def test_mistakes_in_the_question_are_named() -> None:
    with pytest.raises(AuditError, match="expected central noise, got none"):
        audit_mechanism({"clip": 1.0})
    with pytest.raises(AuditError, match="expected at least 20 trials, got 3"):
        audit_mechanism(central(1.0), trials=3)
    with pytest.raises(AuditError, match="at least 40 canaries, got 8"):
        audit_run(central(1.0), canaries=8)
    with pytest.raises(AuditError, match="set sampling to poisson"):
        audit_mechanism(central(1.0), rate=0.5)
    with pytest.raises(AuditError, match="right <= guesses <= canaries"):
        epsilon_of_guesses(10, 20, 3, 0.0)


PREFIX, ALPHABET, LENGTH = [11, 12, 13], list(range(8)), 5


@pytest.fixture(scope="module")
def secrets() -> tuple[Speaker, np.ndarray, np.ndarray]:
    """A small GPT, trained on random symbols, and on one secret many times; that secret, and one that it never saw."""
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 16, (256, 9)).astype(np.int32)
    told, never = rng.integers(0, 8, (2, LENGTH))
    for row in range(0, 256, 8):
        texts[row] = [14, *PREFIX, *told]
    model = zoo.transformer(8, 16, width=16, layers=1, heads=2)
    trainer = msedge.Trainer(model, optimizer=optax.adam(1e-2), seed=0)
    trainer.fit((texts[:, :-1], texts[:, 1:]), 30, 64)
    return Speaker(trainer.export()), told, never


def test_a_secret_that_was_learned_is_exposed(secrets: tuple[Speaker, np.ndarray, np.ndarray]) -> None:
    speaker, told, never = secrets
    found = exposure(speaker, [14, *PREFIX], told[:4], ALPHABET, samples=1000)
    assert found.bits == 12 and found.rank == 1 and found.sampled > 9.9
    assert exposure(speaker, [14, *PREFIX], never[:4], ALPHABET, samples=1000).sampled < 7
    np.testing.assert_array_equal(extract(speaker, [14, *PREFIX], 4, ALPHABET, beam=4), told[:4])


def test_losses_are_the_models(secrets: tuple[Speaker, np.ndarray, np.ndarray]) -> None:
    speaker, told, _ = secrets
    text = np.array([[14, *PREFIX, *told[:4]]])
    each = [-speaker.next(text[:, :at])[0, text[0, at]] for at in range(4, 8)]
    np.testing.assert_allclose(speaker.losses(text, 4), [sum(each)], rtol=1e-4)
    with pytest.raises(AuditError, match="at most 8 tokens, got 9"):
        speaker.losses(np.zeros((1, 9), int), 4)
    with pytest.raises(AuditError, match="of the alphabet's symbols"):
        exposure(speaker, PREFIX, [9], ALPHABET)
    with pytest.raises(AuditError, match="tokens \\(rows, length\\)"):
        Speaker(zoo.mlp(4, 2))
