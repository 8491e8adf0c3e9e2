"""Certified radii in L2: the class that a model gives most often around an input, with a bound on what could change it.

Cohen, Rosenfeld and Kolter, "Certified Adversarial Robustness via Randomized Smoothing", ICML 2019, arXiv 1902.02918:
algorithms CERTIFY and PREDICT. What is certified is the smoothed classifier, the most frequent class under normal
noise, not the model by itself; it needs predictions alone, so that integer bundles are certified as they are deployed.
Noisy inputs are not kept within the range of the inputs: the proof needs the noise as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.special as special

from cloud.audit.intervals import lower_limit
from cloud.audit.victim import MOST_ROWS, Victim
from cloud.errors import AuditError

__all__ = ["ABSTAINED", "Certified", "certify", "predict_smoothed"]

Array: TypeAlias = npt.NDArray[Any]

ABSTAINED = -1
"""The class where there were too few equal answers to say one."""


@dataclass(frozen=True)
class Certified:
    """What the smoothed classifier answers, and within which distance it provably answers the same.

    Each radius holds with probability 1 - alpha over the noise that was drawn."""

    classes: Array
    """(rows,) int64; ABSTAINED where no class has more than half of the probability for certain."""
    radii: Array
    """(rows,) float64, L2, in units of the inputs; 0 where abstained."""
    labels: Array
    """(rows,) int64: true classes."""
    sigma: float
    alpha: float
    samples: int

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """(rows,) whether the answer is the true class."""
        return np.asarray(self.classes == self.labels, np.bool_)

    def accuracy(self, radius: float = 0.0) -> float:
        """The share of rows that are right, and are so for every change up to `radius`: no attack can do better than
        the rest."""
        return float((self.right & (self.radii >= radius)).mean())

    def as_data(self, radii: Sequence[float] = ()) -> dict[str, Any]:
        """Plain figures. radii: where certified accuracy is stated, by default at multiples of sigma / 2 up to the
        largest radius. `average_radius`: over all rows, 0 for those that are wrong."""
        most = float(self.radii.max())
        at = list(radii) or [step * self.sigma / 2 for step in range(int(most / (self.sigma / 2)) + 1)]
        return {
            "sigma": self.sigma, "alpha": self.alpha, "samples": self.samples, "examples": len(self.classes),
            "abstained": float((self.classes == ABSTAINED).mean()),
            "average_radius": float(np.where(self.right, self.radii, 0).mean()),
            "certified": [{"radius": radius, "accuracy": self.accuracy(radius)} for radius in at],
        }  # fmt: skip


def certify(
    victim: Victim, x: Array, labels: Array, *, sigma: float, samples: int = 1000, choosing: int = 100,
    alpha: float = 0.001, seed: int = 0,
) -> Certified:  # fmt: skip
    """The smoothed classifier's answers and certified radii; any victim.

    x: (rows, ...) float32. labels: (rows,) true classes. sigma: the noise's standard deviation, in units of the
    inputs; the model should have been trained with such noise. choosing: draws that choose the class (n0 in the paper),
    samples: draws that count it (n). alpha: the probability that a radius is too large. A radius cannot exceed
    sigma * Phi^-1(alpha ** (1 / samples)). Random numbers depend on seed and row alone. Raises AuditError for settings
    and inputs that do not fit.
    """
    x, labels = _checked(victim, x, labels, sigma, alpha, min(samples, choosing))
    classes, radii = np.full(len(x), ABSTAINED, np.int64), np.zeros(len(x))
    for row, one in enumerate(x):
        random = np.random.default_rng([seed, row])
        best = int(_counts(victim, one, sigma, choosing, random).argmax())
        bound = lower_limit(int(_counts(victim, one, sigma, samples, random)[best]), samples, alpha)
        if bound > 0.5:
            classes[row], radii[row] = best, sigma * float(special.ndtri(bound))
    return Certified(classes, radii, labels, float(sigma), float(alpha), samples)


def predict_smoothed(
    victim: Victim, x: Array, *, sigma: float, samples: int = 1000, alpha: float = 0.001, seed: int = 0
) -> Array:
    """(rows,) int64: the smoothed classifier's class, wrong with probability alpha at most; ABSTAINED where the two
    most frequent classes are too near to tell. Raises AuditError for settings and inputs that do not fit."""
    x, _ = _checked(victim, x, np.zeros(len(x), np.int64), sigma, alpha, samples)
    classes = np.full(len(x), ABSTAINED, np.int64)
    for row, one in enumerate(x):
        counts = _counts(victim, one, sigma, samples, np.random.default_rng([seed, row]))
        second, first = np.argsort(counts, kind="stable")[-2:]
        if _two_sided(int(counts[first]), int(counts[first] + counts[second])) <= alpha:
            classes[row] = first
    return classes


def _two_sided(hits: int, samples: int) -> float:
    """The probability of at least as uneven a result of fair coins; hits: at least half of the samples."""
    return min(1.0, 2 * float(special.bdtrc(hits - 1, samples, 0.5))) if hits else 1.0


def _counts(victim: Victim, x: Array, sigma: float, samples: int, random: np.random.Generator) -> Array:
    """(classes,) int64: how often each class is the answer around one input."""
    found = np.zeros(victim.classes, np.int64)
    for size in _parts(samples):
        noise = random.standard_normal((size, *x.shape), np.float32)
        noise *= np.float32(sigma)
        found += np.bincount(victim.logits(x + noise).argmax(1), minlength=victim.classes)
    return found


def _parts(samples: int) -> Iterator[int]:
    return (min(MOST_ROWS, samples - start) for start in range(0, samples, MOST_ROWS))


def _checked(victim: Victim, x: Array, labels: Array, sigma: float, alpha: float, samples: int) -> tuple[Array, Array]:
    x, labels = victim.checked(x), np.asarray(labels)
    if labels.shape != (len(x),) or labels.dtype.kind not in "iu" or len(x) == 0:
        raise AuditError(f"expected inputs, and a label for each, integers, got {len(x)} and {labels.dtype}"
                         f"{list(labels.shape)}")  # fmt: skip
    if not 0 < sigma < np.inf or not 0 < alpha < 1 or samples < 1:
        raise AuditError(
            f"expected sigma above 0, alpha between 0 and 1 and at least 1 sample, got {sigma}, {alpha} and {samples}"
        )
    return x, labels.astype(np.int64)
