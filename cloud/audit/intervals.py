"""Confidence intervals of counted shares.

Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", Biometrika
1934: never too narrow, for any number of trials.
"""

from __future__ import annotations

from typing import NamedTuple

from cloud.errors import AuditError

__all__ = ["Interval", "clopper_pearson"]


class Interval(NamedTuple):
    """A share with the limits between which the true one lies with the stated confidence."""

    value: float
    low: float
    high: float


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> Interval:
    """The two-sided interval of `hits` of `trials`. One side alone holds with confidence (1 + confidence) / 2. Raises
    AuditError for counts that make no sense."""
    if not (0 <= hits <= trials and trials > 0 and 0 < confidence < 1):
        raise AuditError(
            f"expected 0 <= hits <= trials, trials > 0 and a confidence in (0, 1), got {hits}, {trials}, {confidence}"
        )
    from scipy.special import betaincinv  # half a second of every start if it were imported at once

    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return Interval(hits / trials, low, high)
