"""An audit's result, and the test by which canaries are told apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Audited", "evidence"]


@dataclass(frozen=True)
class Audited:
    """A mechanism's epsilon between what was proven against it and what is claimed for it."""

    lower: float
    """Epsilon is at least this, with the stated confidence."""
    claimed: float
    """What the accountant says: an upper bound, if the mechanism does what was accounted for."""
    delta: float
    confidence: float
    trials: int
    """Runs, or canaries in one run."""
    errors: int
    """Wrong answers of the test among those that were counted."""
    gaussian: float | None = None
    """A tighter lower bound, if the noise is Gaussian and every device takes part; None where that is not so."""

    @property
    def holds(self) -> bool:
        """Whether the claim stands. If it does not, the mechanism adds less noise than was accounted for, or clips
        less, with the stated confidence."""
        return max(self.lower, self.gaussian or 0.0) <= self.claimed


def evidence(seen: np.ndarray, noise: float, rate: float) -> np.ndarray:
    """The logarithm of the likelihood ratio (n,) that a canary is in a run. seen: (n, rounds), its part of each sum in
    units of the clipping bound, which is 0 or 1 plus noise of this deviation. rate: of Poisson sampling, 1 for every
    round. The best test there is, by Neyman and Pearson, if the mechanism is as claimed."""
    each = (2 * seen - 1) / (2 * max(noise, 1e-6) ** 2)
    if rate < 1:
        each = np.logaddexp(np.log1p(-rate), np.log(rate) + each)
    return np.asarray(each.sum(1))
