"""Sequential tests: the evidence may be looked at after every device, and the error probabilities hold all the same.

`Failures` is Wald's sequential probability ratio test ("Sequential Tests of Statistical Hypotheses", Annals of
Mathematical Statistics, 1945) of a failure rate: acceptable at most `low`, unacceptable at least `high`. Its ratio is
a test martingale: under any rate up to `low` its expectation does not grow, whatever the order of devices, so that by
Ville's inequality it ever reaches 1 / alpha with probability alpha at most; and its reciprocal under any rate from
`high` on. So these thresholds are used, and not Wald's approximations, which hold for these hypotheses alone.

`Harm` tests whether bounded values have a mean above a margin by betting (Waudby-Smith & Ramdas, "Estimating means of
bounded random variables by betting", JRSS B 86, 2024): a capital that starts at 1 and, if the mean is at most the
margin, is a non-negative supermartingale. Nothing is assumed of the distribution. The bets are the paper's predictable
plug-in (section 5.3).
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

__all__ = ["Failures", "Harm"]

_BET = 0.9
"""The share of the capital that may be lost in one bet."""


class Failures(NamedTuple):
    """How many devices did well and how many did not."""

    good: int = 0
    bad: int = 0

    def evidence(self, low: float, high: float) -> float:
        """The logarithm of the likelihood ratio, of `high` against `low`: above 0 speaks against the version."""
        return self.bad * log(high / low) + self.good * log((1 - high) / (1 - low))

    def verdict(self, low: float, high: float, alpha: float, beta: float) -> str:
        """ "bad": the rate is above `low`, which is wrong with probability alpha at most. "good": it is below `high`,
        wrong with probability beta at most. "": not known yet."""
        found = self.evidence(low, high)
        return "bad" if found >= -log(alpha) else "good" if found <= log(beta) else ""


class Harm(NamedTuple):
    """The capital's logarithm, its highest so far, and what the bets are made of: the number of values, their sum and
    the sum of their squares."""

    capital: float = 0.0
    highest: float = 0.0
    number: int = 0
    total: float = 0.0
    squares: float = 0.0

    def after(self, value: float, margin: float) -> Harm:
        """With one more value, from 0 to 1, against the hypothesis that the mean is at most `margin`."""
        capital = self.capital + log(1 + self._bet(margin) * (value - margin))
        return Harm(
            capital, max(self.highest, capital), self.number + 1, self.total + value, self.squares + value * value
        )

    def _bet(self, margin: float) -> float:
        """From the values before. Half a value of a half stands for those that are not there yet."""
        mean = (0.5 + self.total) / (1 + self.number)
        variance = max((0.25 + self.squares) / (1 + self.number) - mean * mean, 1e-4)
        gain = mean - margin
        return min(max(gain / (variance + gain * gain), 0.0), _BET / margin)

    def found(self, alpha: float) -> bool:
        """Whether the mean is above the margin: wrong with probability alpha at most, however often it is asked."""
        return self.highest >= -log(alpha)
