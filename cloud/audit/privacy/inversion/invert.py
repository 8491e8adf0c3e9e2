"""The attack that fits a model: a division for a dense first layer, a search for all others."""

from __future__ import annotations

import numpy as np

from cloud.audit.privacy.inversion.dense import dense_inputs, first_dense
from cloud.audit.privacy.inversion.geiping import geiping
from cloud.audit.privacy.inversion.labels import labels_of
from cloud.audit.privacy.inversion.observe import Observed

__all__ = ["invert"]


def invert(
    observed: Observed, *, steps: int = 1200, restarts: int = 2, clip: tuple[float, float] = (0.0, 1.0), seed: int = 0
) -> np.ndarray:
    """Reconstructions (up to examples, ...) float32; those of a search are within `clip`. The labels are those that the
    gradient shows. Raises AuditError for a model whose gradient is zero or whose last layer has no weights."""
    if first_dense(observed) is not None:
        return dense_inputs(observed)
    return geiping(observed, labels_of(observed), steps=steps, restarts=restarts, clip=clip, seed=seed)
