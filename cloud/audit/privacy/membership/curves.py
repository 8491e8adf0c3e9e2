"""How well scores tell members from non-members: ROC, its area, and what an attacker finds at few false alarms.

Carlini et al. 2022 (see `lira`): an attack matters if it is sure of a few members, which the true positive rate at a
low false positive rate shows and an average does not. DeLong, DeLong and Clarke-Pearson, "Comparing the Areas under Two
or More Correlated Receiver Operating Characteristic Curves", Biometrics 1988, for the interval of the area.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cloud.audit.intervals import Interval, clopper_pearson
from cloud.audit.privacy.membership.signals import Array
from cloud.errors import AuditError

__all__ = ["RATES", "AtRate", "Membership", "measure"]

RATES = (0.001, 0.01)
"""False positive rates at which the true positive rate is stated."""
_NORMAL = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class AtRate:
    """What an attacker finds with the lowest threshold that has at most this rate of false alarms."""

    fpr: float
    """The rate asked for."""
    false_alarms: int
    """Non-members above the threshold: 0 if there are fewer than 1 / fpr of them, when the rate is not resolved."""
    tpr: Interval
    """The share of members above the threshold, with its 95 % interval (of the members, at this threshold)."""


@dataclass(frozen=True)
class Membership:
    """An attack's success. By chance, auc and balanced_accuracy are 0.5, and a true positive rate its fpr."""

    attack: str
    members: int
    non_members: int
    auc: Interval
    """With DeLong's 95 % interval."""
    balanced_accuracy: float
    """At the best threshold, or that which the attack learned elsewhere; see `learned`."""
    learned: bool
    """Whether the threshold was learned from other models. If not, it is the best one in hindsight: a bound."""
    at: tuple[AtRate, ...]
    fpr: Array
    """(points,) of the ROC, float64, from 0 to 1."""
    tpr: Array
    """(points,)"""

    def tpr_at(self, fpr: float) -> Interval:
        """The true positive rate at one of the stated false positive rates. Raises AuditError for another."""
        for one in self.at:
            if one.fpr == fpr:
                return one.tpr
        raise AuditError(f"expected a rate of {', '.join(str(one.fpr) for one in self.at)}, got {fpr}")


def measure(attack: str, scores: Array, is_member: Array, decided: Array | None = None) -> Membership:
    """The success of scores (n,), higher for members, against the truth (n,) bool. decided: (n,) bool, what the attack
    itself takes for members. Raises AuditError for scores that are not numbers, and without members or non-members."""
    scores, is_member = np.asarray(scores, np.float64), np.asarray(is_member)
    if scores.ndim != 1 or is_member.shape != scores.shape or is_member.dtype != np.bool_:
        raise AuditError(
            f"expected scores (n,) and whether each is a member, bool (n,), got {scores.dtype}{list(scores.shape)} and "
            f"{is_member.dtype}{list(is_member.shape)}"
        )
    inside, outside = np.sort(scores[is_member]), np.sort(scores[~is_member])
    if not len(inside) or not len(outside):
        raise AuditError(f"expected members and non-members, got {len(inside)} and {len(outside)}")
    if np.isnan(scores).any():
        raise AuditError(f"{attack}: expected scores that are numbers, got NaN")
    levels = np.unique(scores)[::-1]
    fpr = np.concatenate([[0.0], 1 - np.searchsorted(outside, levels, "left") / len(outside)])
    tpr = np.concatenate([[0.0], 1 - np.searchsorted(inside, levels, "left") / len(inside)])
    if decided is None:
        accuracy = float((tpr + 1 - fpr).max() / 2)
    else:
        accuracy = float((decided[is_member].mean() + 1 - decided[~is_member].mean()) / 2)
    at = tuple(_at(rate, inside, outside) for rate in RATES)
    return Membership(
        attack, len(inside), len(outside), _area(inside, outside), accuracy, decided is not None, at, fpr, tpr
    )


def _at(rate: float, inside: Array, outside: Array) -> AtRate:
    allowed = math.floor(rate * len(outside) + 1e-9)
    threshold = outside[len(outside) - 1 - allowed]  # strictly above it are at most `allowed`
    hits = int((inside > threshold).sum())
    return AtRate(rate, int((outside > threshold).sum()), clopper_pearson(hits, len(inside)))


def _area(inside: Array, outside: Array) -> Interval:
    """The chance that a member scores higher than a non-member, ties counted half."""

    def placed(own: Array, others: Array) -> Any:
        below, upto = (np.searchsorted(others, own, side) for side in ("left", "right"))
        return (below + upto) / (2 * len(others))

    of_members, of_others = placed(inside, outside), placed(outside, inside)
    area = float(of_members.mean())
    variance = sum(float(part.var(ddof=1)) / len(part) for part in (of_members, of_others) if len(part) > 1)
    reach = _NORMAL * math.sqrt(variance)
    return Interval(area, max(0.0, area - reach), min(1.0, area + reach))
