"""How near reconstructions are to the examples, and how near one comes without the messages.

Peak signal to noise in decibels, and the structural similarity of Wang, Bovik, Sheikh and Simoncelli, "Image Quality
Assessment: From Error Visibility to Structural Similarity", IEEE TIP 2004 (Gaussian windows, deviation 1.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cloud.errors import AuditError

__all__ = ["MARGIN", "Recovered", "compare", "psnr", "ssim"]

MOST = 100.0
"""Decibels of equal images."""
MARGIN = 10.0
"""Decibels above chance from which on an example is given back."""


@dataclass(frozen=True)
class Recovered:
    """Reconstructions beside the examples that they are nearest to, one each."""

    originals: Any
    """(n, ...) float32: the examples that the device trained on."""
    images: Any
    """(n, ...) float32: the reconstruction assigned to each; zeros where there are fewer."""
    psnr: Any
    """(n,) decibels."""
    ssim: Any
    """(n,) of images with rows and columns; NaN for other inputs."""
    chance_mean: Any
    """(n,) decibels of the mean of other people's examples, the best picture without the messages."""
    chance_other: Any
    """(n,) decibels of as many other people's examples, assigned in the same way."""
    rank: Any
    """(n,) how many of other people's examples correlate better with the reconstruction, means taken away: 0 tells the
    example from all of them, which by chance happens once in k + 1 times; k where there is no reconstruction."""

    @property
    def chance(self) -> Any:
        """(n,) decibels of the better of both."""
        return np.maximum(self.chance_mean, self.chance_other)

    @property
    def given_back(self) -> Any:
        """(n,) bool: an error of at most a tenth of the best guess without messages."""
        return self.psnr >= self.chance + MARGIN

    @property
    def told_apart(self) -> Any:
        """(n,) bool: no other example correlates better with the reconstruction."""
        return self.rank == 0

    @property
    def gain(self) -> float:
        """Mean decibels above the better of both chances; at or below 0, the messages told nothing that can be seen."""
        return float(self.psnr.mean() - max(self.chance_mean.mean(), self.chance_other.mean()))


def psnr(image: Any, other: Any, span: float = 1.0) -> float:
    """Of two arrays of one shape whose values have this range."""
    error = float(((np.asarray(image, np.float64) - other) ** 2).mean())
    return MOST if error <= span * span * 10 ** (-MOST / 10) else float(10 * np.log10(span * span / error))


def ssim(image: Any, other: Any, span: float = 1.0) -> float:
    """Of two images (..., rows, columns), the mean over pixels and leading axes."""
    from scipy.ndimage import gaussian_filter  # a second of every start if it were imported at once

    def smooth(x: Any) -> Any:
        return gaussian_filter(x, 1.5, axes=(-2, -1), truncate=3.5, mode="reflect")

    a, b = np.asarray(image, np.float64), np.asarray(other, np.float64)
    mean_a, mean_b = smooth(a), smooth(b)
    var_a, var_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    both = smooth(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    likeness = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(likeness.mean())


def compare(found: Any, originals: Any, others: Any, *, clip: tuple[float, float] = (0.0, 1.0)) -> Recovered:
    """Assign reconstructions (m, ...) to the examples (n, ...) that the device trained on, so that the sum of decibels
    is largest. others: (k, ...) examples of other people, at least n, for what chance gives. Raises AuditError for
    shapes that do not match."""
    originals, others = (np.asarray(part, np.float32) for part in (originals, others))
    found = np.asarray(found, np.float32).reshape(-1, *originals.shape[1:])
    if others.shape[1:] != originals.shape[1:] or len(others) < len(originals):
        raise AuditError(
            f"expected at least {len(originals)} other examples of shape {list(originals.shape[1:])}, got "
            f"{list(others.shape)}"
        )
    span = clip[1] - clip[0]
    images = _assigned(np.clip(np.nan_to_num(found), *clip), originals, span)
    chance = _assigned(others[: len(originals)], originals, span)
    middle = others.mean(0)
    square = originals.ndim >= 3
    return Recovered(
        originals, images, np.array([psnr(a, b, span) for a, b in zip(images, originals, strict=True)]),
        np.array([ssim(a, b, span) if square else np.nan for a, b in zip(images, originals, strict=True)]),
        np.array([psnr(middle, b, span) for b in originals]),
        np.array([psnr(a, b, span) for a, b in zip(chance, originals, strict=True)]),
        _ranks(images, originals, others),
    )  # fmt: skip


def _ranks(images: Any, originals: Any, others: Any) -> Any:
    known, own, found = (part.reshape(len(part), -1) - others.mean(0).ravel() for part in (others, originals, images))
    near = found @ known.T / np.maximum(np.linalg.norm(known, axis=1), 1e-12)
    right = (found * own).sum(1) / np.maximum(np.linalg.norm(own, axis=1), 1e-12)
    there = images.reshape(len(images), -1).any(1)
    return np.where(there, (near > right[:, None]).sum(1), len(others))


def _assigned(found: Any, originals: Any, span: float) -> Any:
    from scipy.optimize import linear_sum_assignment  # a second of every start if it were imported at once

    a, b = (part.reshape(len(part), -1).astype(np.float64) for part in (found, originals))
    error = ((a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T) / max(b.shape[1], 1)
    near = -np.log10(np.maximum(error, span * span * 10 ** (-MOST / 10)))
    images = np.zeros_like(originals)
    for row, column in zip(*linear_sum_assignment(-near), strict=True):
        images[column] = found[row]
    return images
