"""The likelihood ratio attack: is a model as sure of an example as models that were trained on it, or as others?

Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership Inference Attacks From First Principles", S&P 2022, arXiv
2112.03570. The confidence is logit-scaled, and normal distributions are fitted to that of shadow models.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from cloud.audit.privacy.membership.signals import Array
from cloud.errors import AuditError

__all__ = ["Mode", "Variance", "lira"]

Mode: TypeAlias = Literal["online", "offline"]
Variance: TypeAlias = Literal["auto", "example", "shared"]

MANY = 64
"""From so many shadow models on, a variance for each example is better than a shared one (the paper's figure 9)."""


def lira(
    target: Array, shadows: Array, keep: Array, *, mode: Mode = "online", variance: Variance = "auto",
    centre: Literal["median", "mean"] = "median",
) -> Array:  # fmt: skip
    """Scores (n,) float64, higher for members.

    target: logit-scaled confidences (n,) or (n, queries), queries being views of one example. shadows: the same of
    shadow models, (models, n) or (models, n, queries). keep: (models, n) bool, which of them were trained on which
    example. "online": the logarithm of the ratio of both likelihoods, the mean over queries as in the authors' program.
    "offline": the logarithm of the probability that a model without the example is less sure (their section VI-B; only
    models that were not trained on it are read). centre: the authors' program takes the median, the paper the mean.
    Raises AuditError for shapes that do not fit and for examples that too few models have, or lack.
    """
    target, shadows = (np.asarray(part, np.float64) for part in (target, shadows))
    target, shadows = target.reshape(len(target), -1), shadows.reshape(*shadows.shape[:2], -1)
    keep = np.asarray(keep)
    if shadows.shape[1:] != target.shape or keep.shape != shadows.shape[:2] or keep.dtype != np.bool_:
        raise AuditError(
            f"expected shadows (models, {', '.join(map(str, target.shape))}) and keep, bool (models, {len(target)}), "
            f"got {list(shadows.shape)} and {keep.dtype}{list(keep.shape)}"
        )
    if not (np.isfinite(target).all() and np.isfinite(shadows).all()):
        raise AuditError("expected finite confidences, got NaN or infinity; use logit_confidence of finite logits")
    by_example = variance == "example" or (variance == "auto" and len(shadows) >= MANY)
    from scipy.stats import norm  # a second of every start if it were imported at once

    without = _fitted(shadows, ~keep, by_example, centre, "lack")
    if mode == "offline":
        return np.asarray(norm.logcdf(target, *without).mean(1))
    inside = _fitted(shadows, keep, by_example, centre, "were trained on")
    return np.asarray((norm.logpdf(target, *inside) - norm.logpdf(target, *without)).mean(1))


def _fitted(shadows: Array, chosen: Array, by_example: bool, centre: str, what: str) -> tuple[Any, Any]:
    """Centres (n, queries), and standard deviations (n, queries), or () if shared."""
    least = 2 if by_example else 1
    counts = chosen.sum(0)
    if counts.min() < least or (not by_example and counts.max() < 2):
        raise AuditError(
            f"expected at least {max(least, 2 if counts.max() < 2 else least)} shadow models that {what} each example, "
            f"got {counts.min()} for {int((counts < max(least, 1)).sum() or (counts < 2).sum())} examples; train more, "
            "each on a random half"
        )
    values = np.where(chosen[:, :, None], shadows, np.nan)
    centres = np.nanmedian(values, 0) if centre == "median" else np.nanmean(values, 0)
    spread = np.nanstd(values, 0) if by_example else np.nanstd(values - centres)
    return centres, np.maximum(spread, 1e-12)
