"""What errors of a test prove about epsilon.

An (epsilon, delta)-private mechanism does not let any test of "was this device in it" have few false positives and few
false negatives at once (Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015).
Jagielski, Ullman and Oprea, "Auditing Differentially Private Machine Learning: How Private is Private SGD?", NeurIPS
2020: errors counted over many runs, with Clopper-Pearson limits. Steinke, Nasr and Jagielski, "Privacy Auditing with
One (1) Training Run", NeurIPS 2023, theorem 5.2: guesses of many canaries in one run, each of which was in it with
probability 1/2.
"""

from __future__ import annotations

import math

import numpy as np

from cloud.audit.intervals import clopper_pearson
from cloud.errors import AuditError

__all__ = ["epsilon_of_errors", "epsilon_of_gaussian", "epsilon_of_guesses"]

MOST = 50.0
"""The largest epsilon that is searched."""


def epsilon_of_errors(
    false_positives: int, without: int, false_negatives: int, within: int, delta: float, confidence: float = 0.95
) -> float:
    """A lower bound of epsilon that holds with this confidence: 0 if the errors prove nothing.

    false_positives of `without` runs without the canary, false_negatives of `within` runs with it, by a test that was
    chosen before they were looked at. Raises AuditError for counts or a delta that make no sense.
    """
    _check(delta, confidence)
    fpr = clopper_pearson(false_positives, without, confidence).high  # each side fails with (1 - confidence) / 2
    fnr = clopper_pearson(false_negatives, within, confidence).high
    found = [math.log((1 - delta - a) / b) for a, b in ((fpr, fnr), (fnr, fpr)) if 1 - delta - a > 0]
    return max([0.0, *found])


def epsilon_of_gaussian(
    false_positives: int, without: int, false_negatives: int, within: int, delta: float, confidence: float = 0.95
) -> float:
    """The same of a mechanism that is known to add Gaussian noise to a sum in which the canary is or is not, but not
    how much: tighter, as one pair of errors then says all about it. Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski,
    Carlini and Terzis, "Tight Auditing of Differentially Private Machine Learning", USENIX Security 2023, section 4.2;
    Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018, theorem 8, for epsilon.
    Raises AuditError as `epsilon_of_errors`, and for delta 0."""
    _check(delta, confidence)
    if not delta:
        raise AuditError("expected delta above 0: Gaussian noise has no epsilon without one")
    from scipy.special import log_ndtr, ndtr, ndtri  # half a second of every start if it were imported at once

    fpr = clopper_pearson(false_positives, without, confidence).high
    fnr = clopper_pearson(false_negatives, within, confidence).high
    mean = -float(ndtri(fpr) + ndtri(fnr))
    if mean <= 0:
        return 0.0

    def spent(epsilon: float) -> float:
        far = epsilon / mean
        return float(ndtr(mean / 2 - far) - np.exp(epsilon + log_ndtr(-mean / 2 - far)))

    low, high = 0.0, 4 * MOST
    if spent(low) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return low


def epsilon_of_guesses(canaries: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """A lower bound of epsilon that holds with this confidence, from `guesses` about `canaries` in one run, of which
    `right` are right; their number must not depend on which are. Raises AuditError as `epsilon_of_errors`."""
    _check(delta, confidence)
    if not 0 <= right <= guesses <= canaries or not guesses:
        raise AuditError(f"expected 0 <= right <= guesses <= canaries, got {right}, {guesses}, {canaries}")
    if _chance(canaries, guesses, right, 0.0, delta) >= 1 - confidence:
        return 0.0
    low, high = 0.0, MOST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _chance(canaries, guesses, right, middle, delta) < 1 - confidence else (low, middle)
        )
    return low


def _chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The theorem's bound on the probability of so many right guesses: that of randomised response, and what delta
    adds."""
    from scipy.stats import binom  # a second of every start if it were imported at once

    share = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, share))
    if not right or not delta:
        return min(tail, 1.0)
    nearer = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, share))  # P(right - i <= X < right), i from 1
    return min(1.0, tail + 2 * canaries * delta * float((nearer / np.arange(1, right + 1)).max()))


def _check(delta: float, confidence: float) -> None:
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise AuditError(f"expected delta in [0, 1) and a confidence in (0, 1), got {delta} and {confidence}")
