"""The mechanism of private rounds, run many times with a canary and without.

The worst case of Nasr, Songi, Thakurta, Papernot and Carlini, "Adversary Instantiation: Lower Bounds for Differentially
Private Machine Learning", S&P 2021: the canary's update has the length of the clipping bound, everything else is known,
and the mean of every round is seen. The updates go through the project's own clipping, sums and noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from cloud.audit.privacy.canaries.audited import Audited, evidence
from cloud.audit.privacy.canaries.bounds import epsilon_of_errors, epsilon_of_gaussian
from cloud.errors import AuditError
from federated.codec import Spec
from federated.messages.transforms import Transforms
from federated.privacy.accountant import Accountant
from federated.privacy.noise import NoiseSource, SecureSource

__all__ = ["audit_mechanism"]

Bound: TypeAlias = Callable[[int, int, int, int, float, float], float]

LEVELS = 50
"""Thresholds that are tried."""
OTHERS = 1
"""Devices besides the canary in each round, whose updates are known."""
LAYERS, SIZE = ("first", "second"), 4
"""The arrays of an update, and the elements of each."""


def audit_mechanism(
    privacy: Mapping[str, Any], *, rounds: int = 1, rate: float = 1.0, trials: int = 1000,
    source: NoiseSource | None = None, confidence: float = 0.95, seed: int = 0,
) -> Audited:  # fmt: skip
    """A lower bound of the epsilon of `rounds` rounds with central noise, beside the accountant's.

    privacy: the section [privacy] of a run. rate: the share of devices in a round, each by itself with `sampling =
    "poisson"`. trials: runs with the canary and as many without; half of them choose the test, the others count.
    source: what the mechanism draws its noise from. Raises AuditError for a run without central noise, and too few
    trials.
    """
    transforms = Transforms.of((), privacy)
    private = transforms.privacy
    if private.noise != "central":
        raise AuditError(f"expected central noise, got {private.noise}; without noise epsilon is infinite")
    if trials < 20:
        raise AuditError(f"expected at least 20 trials, got {trials}")
    if rate < 1 and private.sampling != "poisson":
        raise AuditError(f"expected rate 1 without Poisson sampling, got {rate}; set sampling to poisson")
    source, rng = source or SecureSource(), np.random.default_rng(seed)
    multiplier = transforms.multiplier(rounds, rate)
    claimed = transforms.charge(Accountant(), multiplier, rate, rounds).epsilon(private.delta)
    scores = []
    for present in (False, True):
        seen = np.array([
            [_seen(transforms, multiplier, present and rng.random() < rate, rate, source) for _ in range(rounds)]
            for _ in range(trials)
        ])  # fmt: skip
        scores.append(evidence(seen, multiplier, rate))
    half, bounds = trials // 2, {}
    for bound in (epsilon_of_errors, epsilon_of_gaussian):
        first, second = (scores[0][:half], scores[1][:half]), (scores[0][half:], scores[1][half:])
        threshold = _chosen(bound, *first, private.delta, confidence)
        bounds[bound] = _at(bound, threshold, *second, private.delta, confidence), _errors(threshold, *second)
    (lower, errors), (gaussian, _) = bounds[epsilon_of_errors], bounds[epsilon_of_gaussian]
    trials_counted = 2 * (trials - half)
    return Audited(
        lower, claimed, private.delta, confidence, trials_counted, sum(errors), gaussian if rate == 1 else None
    )


def _seen(transforms: Transforms, multiplier: float, present: bool, rate: float, source: NoiseSource) -> float:
    """The canary's part of one round's sum, as everyone sees it who has the mean, in units of the bound."""
    part = np.full(SIZE, 1 / np.sqrt(2 * SIZE), np.float32)  # of a direction over both layers
    canary = {"params": dict.fromkeys(LAYERS, np.float32(2 * transforms.privacy.clip) * part)}  # clipped to the bound
    nothing = {"params": dict.fromkeys(LAYERS, np.zeros(SIZE, np.float32))}
    updates = [nothing] * OTHERS + [canary] * present
    expected = rate * (OTHERS + 1) if transforms.privacy.sampling == "poisson" else None
    sent = [transforms.outgoing(update, source).tree for update in updates]
    total = transforms.summed(sent, [1.0] * len(sent))
    mean = transforms.mean(total, Spec.of(nothing), len(sent), source, multiplier, expected)
    divisor = expected or len(sent)
    return sum(float(mean["params"][name] @ part) for name in LAYERS) * divisor / transforms.privacy.clip


def _errors(threshold: float, without: np.ndarray, within: np.ndarray) -> tuple[int, int]:
    return int((without > threshold).sum()), int((within <= threshold).sum())


def _at(
    bound: Bound, threshold: float, without: np.ndarray, within: np.ndarray, delta: float, confidence: float
) -> float:
    wrong = _errors(threshold, without, within)
    return bound(wrong[0], len(without), wrong[1], len(within), delta, confidence)


def _chosen(bound: Bound, without: np.ndarray, within: np.ndarray, delta: float, confidence: float) -> float:
    """The threshold with the best bound on these."""
    levels = np.quantile(np.concatenate([without, within]), np.linspace(0.005, 0.995, LEVELS))
    return float(levels[int(np.argmax([_at(bound, one, without, within, delta, confidence) for one in levels]))])
