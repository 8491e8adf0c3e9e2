"""Confidence intervals of counted shares: how far chance alone could move them.

Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", Biometrika
1934: never too narrow, for any number of trials. Wilson, "Probable Inference, the Law of Succession, and Statistical
Inference", Journal of the American Statistical Association 1927: of the right width in the mean.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from cloud.errors import AuditError

__all__ = ["Interval", "clopper_pearson", "lower_limit", "wilson"]

_Z = 1.959964
"""95 % of a normal distribution lie within so many standard deviations."""


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
    tail = (1 - confidence) / 2
    return Interval(hits / trials, lower_limit(hits, trials, tail), 1 - lower_limit(trials - hits, trials, tail))


def lower_limit(hits: int, trials: int, tail: float) -> float:
    """The lower limit by Clopper and Pearson alone: it is above the true share in a share `tail` of cases at most."""
    from scipy.special import betaincinv  # half a second of every start if it were imported at once

    return float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927); (0, 1) for no examples."""
    if not count:
        return 0.0, 1.0
    share, square = hits / count, _Z**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - reach), min(1.0, middle + reach)
