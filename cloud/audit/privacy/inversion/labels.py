"""Labels from the gradient of the last layer.

Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", 2020, arXiv 2001.02610: with a softmax and
cross-entropy, the gradient of a class's bias is its mean probability less its share of the labels, so that one
example's label has the only negative sign. For several examples, counts follow as in Wainakh et al., "User-Level Label
Leakage from Gradients in Federated Learning", PoPETs 2022, with the classes that have positive gradients as measure of
the mean probability, so that a factor, as clipping leaves it, does not matter.
"""

from __future__ import annotations

import numpy as np

from cloud.audit.privacy.inversion.observe import Observed
from cloud.errors import AuditError

__all__ = ["labels_of"]


def labels_of(observed: Observed) -> np.ndarray:
    """The labels of the batch, (examples,) int32, sorted: exact for one example, otherwise counts that hold while the
    model is as unsure of all classes as at its start, and a guess if the gradient was changed on its way. Raises
    AuditError for a model whose last layer has no parameters of its own."""
    slope = _last(observed).astype(np.float64)
    positive = slope[slope > 0]
    left = np.maximum((float(np.median(positive)) if len(positive) else 0.0) - slope, 0.0)
    total = float(left.sum())
    counts = left * (observed.examples / total) if total > 0 else np.full(len(left), observed.examples / len(left))
    found = []
    for _ in range(observed.examples):
        found.append(int(counts.argmax()))
        counts[found[-1]] -= 1
    return np.sort(np.array(found, np.int32))


def _last(observed: Observed) -> np.ndarray:
    """The gradient (classes,) of the last layer's bias, or a multiple of it: the sum over features, which are positive
    behind a ReLU, of its weights' gradient."""
    count = observed.classes
    for step in reversed(observed.function.program.steps):
        own = [name for name in step.inputs if name in observed.gradient]
        for name in sorted(own, key=lambda name: observed.gradient[name].ndim):
            slope = np.asarray(observed.gradient[name])
            if slope.shape == (count,):
                return slope
            if slope.ndim == 2 and count in slope.shape:
                return np.asarray(slope.sum(1 if slope.shape[0] == count else 0))
    raise AuditError("expected a last layer with weights, one a class, got none; give the labels")
